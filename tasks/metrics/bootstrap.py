"""How much a score depends on the choice of pictures: the bootstrap (Koehn 2004), paired for two models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tasks.metrics import Counts, Metric, ScoredCaption

ROUNDS = 1000
LEVEL = 0.95  # confidence level of the intervals
_ROUNDS_AT_ONCE = 50  # bounds the memory of the resampling weights, an array (rounds, pictures)


@dataclass(frozen=True)
class ScoreComparison:
    """A score of two models on the same pictures.

    score: the score's name. first, second: its values. interval: the confidence interval of second - first. better: the
    share of the resamples in which the second model scores higher.
    """

    score: str
    first: float
    second: float
    interval: tuple[float, float]
    better: float


def resampled(statistics: Counts, rounds: int = ROUNDS, seed: int = 0) -> Counts:
    """Return the sums of statistics, shape (pictures, S), over `rounds` bootstrap resamples, shape (rounds, S).

    Each resample draws as many pictures as there are, with replacement.
    """
    generator = np.random.default_rng(seed)
    pictures = len(statistics)
    probabilities = np.full(pictures, 1 / pictures)
    sizes = [min(_ROUNDS_AT_ONCE, rounds - start) for start in range(0, rounds, _ROUNDS_AT_ONCE)]
    return np.concatenate([generator.multinomial(pictures, probabilities, size=size) @ statistics for size in sizes])


def intervals(metric: Metric, statistics: Counts) -> dict[str, tuple[float, float]]:
    """Return name of a score -> the interval (low, high) that holds 95 % of its resampled values."""
    return {name: _interval(values) for name, values in metric.scores(resampled(statistics)).items()}


def compare(metric: Metric, first: Sequence[ScoredCaption], second: Sequence[ScoredCaption]) -> list[ScoreComparison]:
    """Return each score of two models, compared by the paired bootstrap.

    first, second: captions of the same pictures in the same order. Both are resampled by the same draws, so that a
    difficult picture counts for both models or for neither.
    """
    statistics = [metric.statistics(corpus) for corpus in (first, second)]
    width = statistics[0].shape[1]
    sums = resampled(np.concatenate(statistics, axis=1))
    first_resampled, second_resampled = metric.scores(sums[:, :width]), metric.scores(sums[:, width:])
    first_scores, second_scores = (metric.scores(per_picture.sum(axis=0)) for per_picture in statistics)
    return [
        ScoreComparison(
            name,
            float(first_scores[name]),
            float(second_scores[name]),
            _interval(second_resampled[name] - first_resampled[name]),
            float(np.mean(second_resampled[name] > first_resampled[name])),
        )
        for name in first_resampled
    ]


def interval_of_ratio(statistics: Counts) -> tuple[float, tuple[float, float]]:
    """Return the ratio of two sums over pictures, with its interval. statistics (pictures, 2).

    A ratio to 0 counts as 1.
    """

    def ratio(sums: Counts) -> Counts:
        return np.divide(sums[..., 0], sums[..., 1], out=np.ones(sums.shape[:-1]), where=sums[..., 1] > 0)

    return float(ratio(statistics.sum(axis=0))), _interval(ratio(resampled(statistics)))


def interval_of_share(number: int, of: int) -> tuple[float, float]:
    """Return the interval of a share, by Wilson's score (Wilson 1927), which also holds for 0 or all of a few."""
    z, share = NormalDist().inv_cdf((1 + LEVEL) / 2), number / of
    middle = share + z * z / (2 * of)
    width = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - width) / (1 + z * z / of), (middle + width) / (1 + z * z / of)


def _interval(values: Counts) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
