"""Metrics: predictions and references in, named scores out.

A metric is counted picture by picture and then summed, so that any choice of pictures, such as a bootstrap's, is
scored without counting again. Adding one: a file with the two functions of `Metric`, and a line here. The registry
imports nothing, so that configs are checked without loading nltk.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """One held-out picture.

    caption: the words predicted. references: the words of each reference. facts: what is known to be true
    of the picture, where the data set says.
    """

    caption: list[str]
    references: list[list[str]]
    facts: dict[str, Any] | None = None


class Metric(Protocol):
    """A module of this package."""

    def statistics(self, corpus: Sequence[Scored]) -> Counts:
        """What the metric counts: (pictures, S)."""
        ...

    def scores(self, sums: Counts) -> dict[str, Counts]:
        """Name of a score -> its value, (...), of statistics summed over the pictures, (..., S)."""
        ...


class Member(NamedTuple):
    """Where a metric is, and the names of the scores it gives. needs_facts: scores `Scored.facts`, not references."""

    module: str
    scores: tuple[str, ...]
    needs_facts: bool = False


METRICS: dict[str, Member] = {
    "bleu": Member("bleu", ("bleu1", "bleu2", "bleu3", "bleu4")),
    "meteor": Member("meteor", ("meteor",)),
    "rouge": Member("rouge", ("rouge_l",)),
    "cider": Member("cider", ("cider", "cider_plain")),
    "truth": Member("truth", ("truth",), needs_facts=True),
}


def load(name: str) -> Metric:
    """The metric of this name."""
    return cast(Metric, importlib.import_module(f"tasks.metrics.{METRICS[name].module}"))


def measure(name: str, corpus: Sequence[Scored]) -> dict[str, float]:
    """The scores that the metric of this name gives a corpus."""
    metric = load(name)
    return {score: float(value) for score, value in metric.scores(metric.statistics(corpus).sum(axis=0)).items()}
