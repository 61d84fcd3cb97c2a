"""Metrics of captions, one file each.

A metric computes statistics for each picture and then scores their sum, so that any selection of pictures, such as a
bootstrap resample, is scored without computing the statistics again. To add a metric, write a file with the two
functions of `Metric` and add a line to `METRICS`. This file imports none of the metrics, so that configs are checked
without loading nltk.
"""

import importlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredCaption:
    """A held-out picture's caption and what it is scored against.

    caption: the predicted words. references: the words of each reference caption. facts: what is known to be true of
    the picture; None if the data set records no facts.
    """

    caption: list[str]
    references: list[list[str]]
    facts: dict[str, Any] | None = None


class Metric(Protocol):
    """The functions that each metric's module in this package defines."""

    def statistics(self, corpus: Sequence[ScoredCaption]) -> Counts:
        """Return S statistics of each picture, float64, shape (pictures, S), which can be summed over pictures."""
        ...

    def scores(self, sums: Counts) -> dict[str, Counts]:
        """Return name of a score -> its values, shape (...), from statistics summed over pictures, shape (..., S)."""
        ...


class Member(NamedTuple):
    """An entry of `METRICS`, whose key is the name of the metric's module in this package.

    scores: the names of the scores that it returns. needs_facts: whether it scores captions against
    `ScoredCaption.facts` and not against the references. only_latin: whether it supports only languages written in
    Latin letters.
    """

    scores: tuple[str, ...]
    needs_facts: bool = False
    only_latin: bool = False


METRICS: dict[str, Member] = {
    "bleu": Member(("bleu1", "bleu2", "bleu3", "bleu4")),
    "meteor": Member(("meteor",), only_latin=True),
    "rouge": Member(("rouge_l",)),
    "cider": Member(("cider",)),
    "truth": Member(("truth",), needs_facts=True),
}
NAMES = {  # of scores, as papers write them
    **{f"bleu{order}": f"BLEU-{order}" for order in range(1, 5)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "truth": "truth",
}


def is_latin(texts: Iterable[str]) -> bool:
    """Return whether most letters of these texts are Latin; True for texts without letters."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    return sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters) * 2 >= len(letters)


def load(name: str) -> Metric:
    """Import and return the metric called `name`, a key of `METRICS`."""
    return cast(Metric, importlib.import_module(f"tasks.metrics.{name}"))


def has_facts(corpus: Sequence[ScoredCaption]) -> bool:
    """Return whether every picture has recorded facts."""
    return all(item.facts is not None for item in corpus)


def qualities(corpus: Sequence[ScoredCaption]) -> Counts:
    """Return each caption's quality: 1 or 0 for true or false if facts are recorded, else its CIDEr-D, 0 to 10."""
    values: Counts = load("truth" if has_facts(corpus) else "cider").statistics(corpus)[:, 0]
    return values


def measure(name: str, corpus: Sequence[ScoredCaption]) -> dict[str, float]:
    """Return the scores of a corpus by the metric called `name`, by the name of each score."""
    metric = load(name)
    return {score: float(value) for score, value in metric.scores(metric.statistics(corpus).sum(axis=0)).items()}
