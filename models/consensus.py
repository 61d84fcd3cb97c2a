"""Consensus: of the captions that a search found, the one most like the others (minimum Bayes risk decoding).

The likeliest caption need not be the best guess: where a model is unsure of a detail, its other captions disagree with
it. The one that shares the most with the others, each weighted by its probability, is wrong about the least (Kumar and
Byrne 2004; of captions, Devlin et al. 2015, section 3.2). How much two captions share is measured as by CIDEr-D
(Vedantam et al. 2015), with all n-grams of one weight. This file needs neither torch nor NumPy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from .vocabulary import END

_ORDERS = range(1, 5)
_POWER = 0.1  # of the probabilities as weights: by themselves they leave little weight to any but the likeliest
_LENGTHS = 6.0  # standard deviation of the length penalty, in words


class _Caption(Protocol):
    @property
    def tokens(self) -> list[int]: ...
    @property
    def log_probability(self) -> float: ...


_Counts = tuple[Counter[tuple[int, ...]], float]
CaptionT = TypeVar("CaptionT", bound=_Caption)


def by_consensus(captions: Sequence[CaptionT]) -> list[CaptionT]:
    """Return ended captions of one picture, those most like the others first; of equals, in the order that they had."""
    likeliest = max((caption.log_probability for caption in captions), default=0.0)
    weights = [math.exp(_POWER * (caption.log_probability - likeliest)) for caption in captions]
    texts = [[*caption.tokens, END] for caption in captions]
    grams = [_ngrams(words) for words in texts]
    expected = list(weights)  # each is wholly like itself
    for one in range(len(captions)):
        for other in range(one):
            apart = len(texts[one]) - len(texts[other])
            shared = _likeness(grams[one], grams[other]) * math.exp(-(apart**2) / (2 * _LENGTHS**2))
            expected[one] += weights[other] * shared
            expected[other] += weights[one] * shared
    return [captions[index] for index in sorted(range(len(captions)), key=lambda index: -expected[index])]


def _ngrams(words: Sequence[int]) -> list[_Counts]:
    """Return how often each n-gram of 1 to 4 words occurs, and the length of these counts as a vector, by n."""
    counts = [Counter(zip(*(words[start:] for start in range(order)), strict=False)) for order in _ORDERS]
    return [(own, math.hypot(*own.values())) for own in counts]


def _likeness(one: Sequence[_Counts], other: Sequence[_Counts]) -> float:
    """Return the cosine of two captions' n-gram counts, of at most the smaller count, the mean over the orders."""
    cosines = []
    for (own, own_length), (others, length) in zip(one, other, strict=True):
        shared = sum(min(number, others[gram]) ** 2 for gram, number in own.items() if gram in others)
        cosines.append(shared / (own_length * length) if shared else 0.0)
    return sum(cosines) / len(cosines)
