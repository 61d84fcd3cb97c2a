"""`meteor`: METEOR 1.5 (Denkowski and Lavie 2014) with its English parameters, matching words and stems, in percent.

Synonyms and paraphrases need WordNet and a table of 60 MB that METEOR brings with it, and are left out: scores are a
little lower than the COCO caption toolkit's. Stems are NLTK's Snowball stemmer's. Function words count less; METEOR's
rule for them is a share of the language above one in a thousand, and the list here is of English.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tasks.metrics import Counts, Scored

_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_EXACT, _STEM = 1.0, 0.6
_BEAM = 40
FUNCTION_WORDS = frozenset(
    """a about after all also an and are as at be because been but by can could did do does for from had has have he
    her him his i if in into is it its just like may more most my new no not of on one only or other our out over said
    she so some such than that the their them then there these they this to two under up us was we were what when which
    who will with would you your 's n't""".split()  # noqa: SIM905 -- a page of quotes otherwise
)


class _Alignment(NamedTuple):
    """A part of an alignment: pairs (caption's place, reference's place, weight)."""

    pairs: tuple[tuple[int, int, float], ...]
    used: int  # bits: places of the reference
    chunks: int
    distance: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return (-len(self.pairs), self.chunks, self.distance)


def statistics(corpus: Sequence[Scored]) -> Counts:
    """(pictures, 6), against the best reference each.

    Weighted matches in caption and reference, weighted lengths of both, words matched, and chunks: none for a caption
    that is its reference.
    """
    return np.array([max((_against(item.caption, words) for words in item.references), key=_score) for item in corpus])


def scores(sums: Counts) -> dict[str, Counts]:
    """F of precision and recall, less a penalty for being in many pieces; 0 where no word matches."""
    ours, true, length, true_length, matches, chunks = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    precision, recall = ours / np.maximum(length, 1e-9), true / np.maximum(true_length, 1e-9)
    mean = precision * recall / np.maximum((1 - _ALPHA) * recall + _ALPHA * precision, 1e-12)
    penalty = _GAMMA * (chunks / np.maximum(matches, 1e-9)) ** _BETA
    return {"meteor": 100.0 * mean * (1 - np.minimum(penalty, 1.0))}


def _score(statistics: Counts) -> float:
    return float(scores(statistics)["meteor"])


def _against(caption: list[str], reference: list[str]) -> Counts:
    found = _align(caption, reference)
    whole = len(found.pairs) == len(caption) == len(reference) and found.chunks == 1
    matched = [
        sum(weight * _weight(caption[place]) for place, _, weight in found.pairs),
        sum(weight * _weight(reference[place]) for _, place, weight in found.pairs),
    ]
    lengths = [sum(map(_weight, words)) for words in (caption, reference)]
    return np.array([*matched, *lengths, len(found.pairs), 0 if whole else found.chunks], dtype=np.float64)


def _weight(word: str) -> float:
    return 1 - _DELTA if word in FUNCTION_WORDS else _DELTA


def _align(caption: list[str], reference: list[str]) -> _Alignment:
    """The alignment with most words, then fewest chunks, then least distance, among those a beam search keeps."""
    beam = [_Alignment((), 0, 0, 0)]
    for place, word in enumerate(caption):
        like = [(other, weight) for other, true in enumerate(reference) if (weight := _likeness(word, true))]
        longer = list(beam)  # the word stays alone
        for part in beam:
            for other, weight in like:
                if not part.used >> other & 1:
                    goes_on = bool(part.pairs) and part.pairs[-1][:2] == (place - 1, other - 1)
                    longer.append(
                        _Alignment(
                            (*part.pairs, (place, other, weight)),
                            part.used | 1 << other,
                            part.chunks + (not goes_on),
                            part.distance + abs(place - other),
                        )
                    )
        beam = sorted(longer, key=lambda part: part.rank)[:_BEAM]
    return beam[0]


def _likeness(word: str, other: str) -> float:
    return _EXACT if word == other else _STEM if _stem(word) == _stem(other) else 0.0


@functools.cache
def _stemmer() -> object:
    from nltk.stem.snowball import EnglishStemmer

    return EnglishStemmer()


@functools.lru_cache(100_000)
def _stem(word: str) -> str:
    return str(_stemmer().stem(word))  # type: ignore[attr-defined]
