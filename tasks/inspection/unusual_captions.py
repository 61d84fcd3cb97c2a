"""Unusual captions: in another script or language than the others, or of another length."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tasks.metrics.ptb import tokenize

_FEWEST_WORDS = 3  # of a caption whose language is told by its words
_UNKNOWN = 0.6  # share of the words that hardly another caption has, from which it is in another language
_SELDOM = 3  # captions that have a word which is known
_FENCE = 3.0  # times the middle half's width beyond which a length stands out (Tukey's outer fence)
_ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}  # Japanese is written in all three
_FEW = 0.05  # share of all captions that are in another language, at most: where there are more, words are just rare
_FEWEST_CAPTIONS = 100  # among which something can stand out


class Unusual(NamedTuple):
    """A caption that stands out: by how much, from 0 up, and by what, in words."""

    digest: str
    caption: str
    score: float
    why: str


def unusual_captions(captions: Mapping[str, Sequence[str]]) -> list[Unusual]:
    """Return the captions that stand out, the most striking first. captions: of each digest."""
    texts = [(digest, text) for digest, own in captions.items() for text in own]
    if len(texts) < _FEWEST_CAPTIONS:
        return []
    words = [tokenize(text) for _, text in texts]
    captions_with = Counter(word for own in words for word in set(own))
    scripts = [script_of(text) for _, text in texts]
    usual_script = Counter(filter(None, scripts)).most_common(1)[0][0] if any(scripts) else None
    lengths = np.array([len(own) for own in words])
    low, high = np.quantile(lengths, [0.25, 0.75])
    longest, shortest = high + _FENCE * max(high - low, 1), low - _FENCE * max(high - low, 1)
    found: list[Unusual] = []
    foreign: list[Unusual] = []
    usual = f"where most have {low:.0f} to {high:.0f}"
    for (digest, text), own, script, length in zip(texts, words, scripts, lengths.tolist(), strict=True):
        unknown = sum(captions_with[word] < _SELDOM for word in own)
        if script is None:
            found.append(Unusual(digest, text, 2.0, "has no letters"))
        elif script != usual_script:
            why = f"written in {script.title()} letters, the others in {str(usual_script).title()}"
            found.append(Unusual(digest, text, 2.0, why))
        elif len(own) >= _FEWEST_WORDS and unknown >= _UNKNOWN * len(own):
            why = f"{unknown} of its {len(own)} words are in hardly any other caption"
            foreign.append(Unusual(digest, text, 1 + unknown / len(own), why))
        elif length > longest:
            found.append(Unusual(digest, text, 1 - longest / length, f"{length} words, {usual}"))
        elif length < max(shortest, 2) and low > 2:
            found.append(Unusual(digest, text, 1.0, f"{length} word{'s' * (length != 1)}, {usual}"))
    found += foreign if len(foreign) <= _FEW * len(texts) else []
    return sorted(found, key=lambda item: (-item.score, item.digest))


def script_of(text: str) -> str | None:
    """Return the script of most letters of a text, as Unicode names it; None for a text without letters."""
    names = Counter(unicodedata.name(letter, "UNKNOWN").split()[0] for letter in text if letter.isalpha())
    return _ONE_SCRIPT.get(name := names.most_common(1)[0][0], name) if names else None
