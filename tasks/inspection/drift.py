"""Drift: whether new pictures are like the earlier ones, by a two-sample test on their pooled grids.

The statistic is the energy distance (Szekely and Rizzo 2004), and its level is exact: the labels of the pictures are
permuted, and under the hypothesis that all are independent draws from one distribution, each permutation is as likely
as the true one. Frames of one moment that arrive together are not independent, and a large sample shows small changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.inspection.record import DriftRecord

LEVEL = 0.01  # probability of an alarm if nothing drifted
FEWEST = 20  # pictures on either side, at least; fewer are not tested
_MOST = 2048  # pictures on either side, at most
_PERMUTATIONS = 999
_AT_ONCE = 128


def measure_drift(reference: Tensor, new: Tensor, seed: int = 0) -> DriftRecord:
    """Return whether two samples of pooled grids, (N, C) and (M, C) float32 of length 1, have the same distribution.

    Of a sample with more than `_MOST` grids, that many are drawn at random.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = [sample[torch.randperm(len(sample), generator=generator)[:_MOST]] for sample in (reference, new)]
    count, first = sum(map(len, samples)), len(samples[0])
    pooled = torch.cat(samples)
    distances = torch.cdist(pooled, pooled)
    true = (torch.arange(count) < first).float().unsqueeze(0)
    observed = _energy(distances, true)[0]
    as_great = 1  # the true labels are one of the permutations
    for start in range(0, _PERMUTATIONS, _AT_ONCE):
        number = min(_AT_ONCE, _PERMUTATIONS - start)
        order = torch.stack([torch.randperm(count, generator=generator) for _ in range(number)])
        as_great += int((_energy(distances, true[0][order]) >= observed * (1 - 1e-6)).sum())
    probability = as_great / (_PERMUTATIONS + 1)
    return {
        "alarm": probability <= LEVEL,
        "probability": probability,
        "distance": round(float(observed), 6),
        "level": LEVEL,
        "known": len(samples[0]),
        "arrived": len(samples[1]),
    }


def _energy(distances: Tensor, of_first: Tensor) -> Tensor:
    """Return the energy distance for labels, (P,). distances (N, N). of_first (P, N): 1 for the first sample, or 0."""
    of_second = 1 - of_first
    first, second = of_first.sum(dim=1), of_second.sum(dim=1)
    to_first, to_second = of_first @ distances, of_second @ distances
    between = (to_first * of_second).sum(dim=1) / (first * second)
    within_first = (to_first * of_first).sum(dim=1) / first**2
    within_second = (to_second * of_second).sum(dim=1) / second**2
    return 2 * between - within_first - within_second
