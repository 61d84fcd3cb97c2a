"""Metrics: predictions and references in, named scores out.

Adding one: a file with a function of the shape of `Metric`, and a line here. The registry imports nothing,
so that configs are checked without loading nltk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


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
    """A corpus of captions -> name of a score -> its value."""

    def __call__(self, corpus: Sequence[Scored]) -> dict[str, float]: ...


class Member(NamedTuple):
    """Where a metric is, and the names of the scores it gives."""

    module: str
    function: str
    scores: tuple[str, ...]


METRICS: dict[str, Member] = {
    "bleu": Member("bleu", "bleu", ("bleu1", "bleu2", "bleu3", "bleu4")),
    "truth": Member("truth", "truth", ("truth",)),
}
