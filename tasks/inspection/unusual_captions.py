"""Unusual captions: in another script or language than the others, or of another length."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tasks.metrics.ptb import tokenize

_FEWEST_WORDS = 3  # of a caption whose language is determined by its words
_UNKNOWN = 0.6  # least share of words that hardly any other caption has, for a caption in another language
_SELDOM = 3  # a word in fewer captions is unknown
_FENCE = 3.0  # a length further outside than this times the middle half's width stands out (Tukey's outer fence)
_ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}  # Japanese is written in all three
_FEW = 0.05  # share of captions in another language, at most: if there are more, their words are just rare
_FEWEST_CAPTIONS = 100  # with fewer captions, nothing stands out


class UnusualCaption(NamedTuple):
    """A caption that stands out. score: by how much, from 0 up. why: the reason in words."""

    digest: str
    caption: str
    score: float
    why: str


def unusual_captions(captions: Mapping[str, Sequence[str]]) -> list[UnusualCaption]:
    """Return the captions that stand out, most striking first. captions: of each digest."""
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
    unusual: list[UnusualCaption] = []
    foreign: list[UnusualCaption] = []
    usual = f"where most have {low:.0f} to {high:.0f}"
    for (digest, text), own, script, length in zip(texts, words, scripts, lengths.tolist(), strict=True):
        unknown = sum(captions_with[word] < _SELDOM for word in own)
        if script is None:
            unusual.append(UnusualCaption(digest, text, 2.0, "has no letters"))
        elif script != usual_script:
            why = f"written in {script.title()} letters, the others in {str(usual_script).title()}"
            unusual.append(UnusualCaption(digest, text, 2.0, why))
        elif len(own) >= _FEWEST_WORDS and unknown >= _UNKNOWN * len(own):
            why = f"{unknown} of its {len(own)} words are in hardly any other caption"
            foreign.append(UnusualCaption(digest, text, 1 + unknown / len(own), why))
        elif length > longest:
            unusual.append(UnusualCaption(digest, text, 1 - longest / length, f"{length} words, {usual}"))
        elif length < max(shortest, 2) and low > 2:
            unusual.append(UnusualCaption(digest, text, 1.0, f"{length} word{'s' * (length != 1)}, {usual}"))
    unusual += foreign if len(foreign) <= _FEW * len(texts) else []
    return sorted(unusual, key=lambda item: (-item.score, item.digest))


def script_of(text: str) -> str | None:
    """Return the script of most letters in a text, by its Unicode name; None for a text without letters."""
    names = Counter(unicodedata.name(letter, "UNKNOWN").split()[0] for letter in text if letter.isalpha())
    return _ONE_SCRIPT.get(name := names.most_common(1)[0][0], name) if names else None
