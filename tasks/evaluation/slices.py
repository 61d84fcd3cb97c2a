"""Scores by slice: how good captions are on parts of the pictures.

The gender of people is taken from the references' words, as in Hendricks et al. (2018, "Women also snowboard").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.metrics import Counts, ScoredCaption, load
from tasks.metrics.bootstrap import intervals

_MEN = "man men male males boy boys guy guys gentleman gentlemen father son brother husband he him his"
_WOMEN = "woman women female females girl girls lady ladies mother daughter sister wife she her hers"
MEN, WOMEN = frozenset(_MEN.split()), frozenset(_WOMEN.split())
_ENGLISH = frozenset({"a", "the", "of", "on", "with", "is", "are", "one", "two"})
_QUARTER = 0.75  # quantile from which references are long, or their words rare
_SELDOM = 0.01  # a word is rare if the references of a smaller share of the pictures have it
_FEWEST = 10  # pictures of a slice that is reported


@dataclass(frozen=True)
class Slice:
    """A part of the pictures, with the CIDEr-D of its captions in percent and its 95 % interval."""

    name: str
    pictures: int
    cider: float
    interval: tuple[float, float]


Sources = Mapping[str, Collection[str]]  # digest of a picture -> the names of the sources that it is from


def slices_of(captions: Mapping[str, ScoredCaption], sources: Sources) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which pictures are in each slice, (N,) bool by name; slices of fewer than ten pictures are left out.

    captions: by the digest of their pictures. sources: of a combined data set, each of which is a slice too.
    """
    corpus = list(captions.values())
    lengths = _means([[len(words) for words in item.references] for item in corpus])
    pictures_with = Counter(word for item in corpus for word in {word for words in item.references for word in words})
    seldom = {word for word, number in pictures_with.items() if number < max(2, _SELDOM * len(corpus))}
    rarity = _means([[word in seldom for words in item.references for word in words] for item in corpus])
    genders = [_gender(item.references) for item in corpus] if _is_english(corpus) else [None] * len(corpus)
    slices = {
        "people call it a man": np.array([gender == "man" for gender in genders], np.bool_),
        "people call it a woman": np.array([gender == "woman" for gender in genders], np.bool_),
        "long references": lengths >= np.quantile(lengths, _QUARTER),
        "rare words": rarity >= np.quantile(rarity, _QUARTER),
    }
    for source in sorted({name for names in sources.values() for name in names}):
        slices[f"source {source}"] = np.array([source in sources.get(digest, ()) for digest in captions], np.bool_)
    return {name: flags for name, flags in slices.items() if _FEWEST <= flags.sum() < len(corpus)}


def _means(rows: Sequence[Sequence[float]]) -> Counts:
    """Return the mean of each row, 0 for an empty one."""
    return np.array([sum(row) / max(len(row), 1) for row in rows])


def scores_by_slice(captions: Mapping[str, ScoredCaption], sources: Sources) -> list[Slice]:
    """Return the CIDEr-D of each slice of `slices_of`, with the document frequencies of all pictures."""
    metric = load("cider")
    statistics = metric.statistics(list(captions.values()))
    return [
        Slice(
            name,
            int(flags.sum()),
            float(metric.scores(statistics[flags].sum(axis=0))["cider"]),
            intervals(metric, statistics[flags])["cider"],
        )
        for name, flags in slices_of(captions, sources).items()
    ]


def _is_english(corpus: Sequence[ScoredCaption]) -> bool:
    """Return whether references are in English, by its articles and prepositions; others also have the word `man`."""
    texts = [words for item in corpus for words in item.references]
    return sum(not _ENGLISH.isdisjoint(words) for words in texts) * 2 > len(texts)


def _gender(texts: Sequence[Sequence[str]]) -> str | None:
    """Return the gender that texts mention; None if they mention none or both."""
    words = {word for text in texts for word in text}
    of_men, of_women = bool(words & MEN), bool(words & WOMEN)
    return None if of_men == of_women else "man" if of_men else "woman"


def slice_loss(pairs: Mapping[str, tuple[ScoredCaption, ScoredCaption]], sources: Sources) -> dict[str, Counts]:
    """Return the CIDEr-D of each picture's second and first caption, (pictures, 2), by slice."""
    first, second = (list(items) for items in zip(*pairs.values(), strict=True))
    metric = load("cider")
    columns = np.stack([metric.statistics(corpus)[:, 0] for corpus in (second, first)], axis=1)
    return {name: columns[flags] for name, flags in slices_of(dict(zip(pairs, first, strict=True)), sources).items()}
