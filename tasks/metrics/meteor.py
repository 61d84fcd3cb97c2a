"""`meteor`: METEOR 1.5 (Denkowski and Lavie 2014) with its English parameters, matching words and stems, in percent.

Matches of synonyms and paraphrases need WordNet and a 60 MB table that comes with METEOR, and are left out, so scores
are a little lower than the COCO caption toolkit's. Stems come from NLTK's Snowball stemmer. Function words weigh less
than content words; METEOR defines them as words with a relative frequency above one in a thousand, and the list here is
for English.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.metrics import Counts, ScoredCaption

_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_EXACT, _STEM = 1.0, 0.6  # weights of a match of words, and of stems
_BEAM = 40  # hypotheses that the search for an alignment keeps
FUNCTION_WORDS = frozenset(
    """a about after all also an and are as at be because been but by can could did do does for from had has have he
    her him his i if in into is it its just like may more most my new no not of on one only or other our out over said
    she so some such than that the their them then there these they this to two under up us was we were what when which
    who will with would you your 's n't""".split()  # noqa: SIM905 -- a list would be a page of quotes
)


class _Alignment(NamedTuple):
    """A partial alignment of a caption with a reference: a hypothesis of the beam search.

    pairs: (position in the caption, position in the reference, weight of the match). used: a bit mask of the matched
    positions of the reference. chunks: the number of runs of pairs that are adjacent in both texts. distance: the sum
    of the pairs' distances in position.
    """

    pairs: tuple[tuple[int, int, float], ...]
    used: int
    chunks: int
    distance: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """Return the sort key: most pairs first, then fewest chunks, then least distance."""
        return (-len(self.pairs), self.chunks, self.distance)


def statistics(corpus: Sequence[ScoredCaption]) -> Counts:
    """Return the statistics of each picture against the reference with the best score, shape (pictures, 6).

    Columns: weighted matches in the caption, the same in the reference, weighted length of the caption, the same of the
    reference, matched words, and chunks (0 for a caption that matches its reference completely and in order).
    """
    rows = [max((_pair_statistics(item.caption, words) for words in item.references), key=_score) for item in corpus]
    return np.array(rows)


def scores(sums: Counts) -> dict[str, Counts]:
    """Return `meteor` in percent: the F-measure of precision and recall, less a penalty for matches in many chunks.

    The score is 0 if no word matches.
    """
    columns = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    matched, reference_matched, length, reference_length, matches, chunks = columns
    precision, recall = matched / np.maximum(length, 1e-9), reference_matched / np.maximum(reference_length, 1e-9)
    f_mean = precision * recall / np.maximum((1 - _ALPHA) * recall + _ALPHA * precision, 1e-12)
    penalty = _GAMMA * (chunks / np.maximum(matches, 1e-9)) ** _BETA
    return {"meteor": 100.0 * f_mean * (1 - np.minimum(penalty, 1.0))}


def _score(statistics: Counts) -> float:
    return float(scores(statistics)["meteor"])


def _pair_statistics(caption: list[str], reference: list[str]) -> Counts:
    """Return the statistics of a caption against one reference, shape (6,), with the columns of `statistics`."""
    alignment = _align(caption, reference)
    pairs, chunks = alignment.pairs, alignment.chunks
    complete = len(pairs) == len(caption) == len(reference) and chunks == 1
    matched = [
        sum(match * _word_weight(caption[position]) for position, _, match in pairs),
        sum(match * _word_weight(reference[position]) for _, position, match in pairs),
    ]
    lengths = [sum(map(_word_weight, words)) for words in (caption, reference)]
    return np.array([*matched, *lengths, len(pairs), 0 if complete else chunks], dtype=np.float64)


def _word_weight(word: str) -> float:
    return 1 - _DELTA if word in FUNCTION_WORDS else _DELTA


def _align(caption: list[str], reference: list[str]) -> _Alignment:
    """Return the alignment with the most pairs, then fewest chunks, then least distance, that a beam search finds."""
    beam = [_Alignment((), 0, 0, 0)]
    for position, word in enumerate(caption):
        candidates = [(other, weight) for other, text in enumerate(reference) if (weight := _match_weight(word, text))]
        hypotheses = list(beam)  # the word may also stay unmatched
        for hypothesis in beam:
            for other, weight in candidates:
                if not hypothesis.used >> other & 1:
                    pairs = hypothesis.pairs
                    extends_chunk = bool(pairs) and pairs[-1][:2] == (position - 1, other - 1)
                    hypotheses.append(
                        _Alignment(
                            (*pairs, (position, other, weight)),
                            hypothesis.used | 1 << other,
                            hypothesis.chunks + (not extends_chunk),
                            hypothesis.distance + abs(position - other),
                        )
                    )
        beam = sorted(hypotheses, key=lambda hypothesis: hypothesis.rank)[:_BEAM]
    return beam[0]


def _match_weight(word: str, other: str) -> float:
    """Return the weight of matching two words: exact, by stem, or 0 if they do not match."""
    return _EXACT if word == other else _STEM if stem(word) == stem(other) else 0.0


@functools.cache
def _stemmer() -> Any:
    """Return NLTK's stemmer, imported when the first word is stemmed because that takes seconds."""
    from nltk.stem.snowball import EnglishStemmer

    return EnglishStemmer()


@functools.lru_cache(100_000)
def stem(word: str) -> str:
    """Return the stem of an English word; words in other scripts are unchanged."""
    return str(_stemmer().stem(word))
