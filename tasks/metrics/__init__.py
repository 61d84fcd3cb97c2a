"""Metrics: predictions and references in, named scores out.

Adding one: a file with a function of the shape of `Metric`, and a line here. The registry imports nothing,
so that configs are checked without loading nltk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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


# name -> (module of this package, function in it)
METRICS: dict[str, tuple[str, str]] = {
    "bleu": ("bleu", "bleu"),
    "truth": ("truth", "truth"),
}
