"""How much of a score is luck of the pictures: the bootstrap over them (Koehn 2004), paired for two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.metrics import Counts, Metric, Scored

ROUNDS = 1000
LEVEL = 0.95  # of the intervals
_AT_ONCE = 50  # rounds: their weights are (rounds, pictures) numbers


@dataclass(frozen=True)
class Compared:
    """Two models' score on the same pictures.

    interval: of second - first. better: share of the resamples in which the second scores higher.
    """

    score: str
    first: float
    second: float
    interval: tuple[float, float]
    better: float


def resampled(statistics: Counts, rounds: int = ROUNDS, seed: int = 0) -> Counts:
    """Sums of (pictures, S) over `rounds` draws of as many pictures, with replacement: (rounds, S)."""
    generator = np.random.default_rng(seed)
    pictures = len(statistics)
    shares = np.full(pictures, 1 / pictures)
    parts = [min(_AT_ONCE, rounds - at) for at in range(0, rounds, _AT_ONCE)]
    return np.concatenate([generator.multinomial(pictures, shares, size=part) @ statistics for part in parts])


def intervals(metric: Metric, statistics: Counts) -> dict[str, tuple[float, float]]:
    """Score -> the interval that holds 95 % of its resamples."""
    return {name: _interval(values) for name, values in metric.scores(resampled(statistics)).items()}


def compare(metric: Metric, first: Sequence[Scored], second: Sequence[Scored]) -> list[Compared]:
    """Each score of two models whose captions are of the same pictures, in the same order.

    Both are resampled by the same draws, so that what is hard about a picture is hard for both.
    """
    statistics = [metric.statistics(corpus) for corpus in (first, second)]
    width = statistics[0].shape[1]
    drawn = resampled(np.concatenate(statistics, axis=1))
    ours, theirs = metric.scores(drawn[:, :width]), metric.scores(drawn[:, width:])
    whole = [metric.scores(counted.sum(axis=0)) for counted in statistics]
    return [
        Compared(
            name,
            float(whole[0][name]),
            float(whole[1][name]),
            _interval(theirs[name] - ours[name]),
            float(np.mean(theirs[name] > ours[name])),
        )
        for name in ours
    ]


def _interval(values: Counts) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
