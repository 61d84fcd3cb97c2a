"""Look-alikes: pictures whose pooled grids are much closer to each other than neighbours usually are.

Near-duplicates by pixels (data/near_duplicates.py) are the same photograph; look-alikes are pictures that the backbone
cannot tell apart: another frame of the same moment, or a recoloured copy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CLOSE = 0.55  # share of the median distance to the nearest neighbour
_FEW = 0.01  # share of the pictures that look like another one, at most
_AT_ONCE = 1024


class LookAlike(NamedTuple):
    """Two pictures by their numbers, and their distance divided by the median distance of nearest neighbours."""

    first: int
    second: int
    distance: float


def look_alikes(pooled: Tensor, most: int) -> tuple[list[LookAlike], int]:
    """Return the pairs of pictures that look alike, closest first, and the number of all such pairs.

    pooled (N, C) float32 of length 1. most: the maximum number of pairs to return.
    """
    if len(pooled) < 3:
        return [], 0
    starts = range(0, len(pooled), _AT_ONCE)
    nearest = torch.cat([_distances(pooled, start).min(dim=1).values for start in starts])
    usual = float(nearest.median())
    closest_are = min(_CLOSE * usual, float(nearest.quantile(_FEW)))  # if many are alike, being alike says nothing
    pairs: list[LookAlike] = []
    total = 0
    for start in starts:
        distances = _distances(pooled, start)
        numbers = torch.arange(start, start + len(distances)).unsqueeze(1)
        distances[torch.arange(len(pooled)).unsqueeze(0) < numbers] = torch.inf  # each pair once
        total += int((distances <= closest_are).sum())
        closest = distances.flatten().topk(min(most, distances.numel()), largest=False)
        for index, distance in zip(closest.indices.tolist(), closest.values.tolist(), strict=True):
            if distance <= closest_are:
                row, column = divmod(index, len(pooled))
                pairs.append(LookAlike(row + start, column, round(distance / usual, 3) if usual else 0.0))
    return sorted(pairs, key=lambda pair: (pair.distance, pair.first, pair.second))[:most], total


def _distances(pooled: Tensor, start: int) -> Tensor:
    """Return the distances of some pictures, from number `start` on, to all; infinite to themselves."""
    part = pooled[start : start + _AT_ONCE]
    distances = (2 - 2 * (part @ pooled.T)).clamp_min(0).sqrt()
    own = torch.arange(len(part))
    distances[own, own + start] = torch.inf
    return distances
