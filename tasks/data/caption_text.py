"""What captions hold that is lost or no language: symbols that a tokeniser drops, markup, words that are new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import regex

from tasks.data.tokenisers import tokeniser

KEEPS_ALL = "whitespace"  # the tokeniser that keeps every word as it is written
# Symbols, and punctuation that no sentence has.
_SYMBOL = regex.compile(r"[\p{S}\\_#@]")
_MARKUP = regex.compile(
    r"</?[a-z][^<>]{0,80}>|&(?:[a-z]{2,8}|#\d+);|\b(?:startseq|endseq)\b|\A(?:nan|none|null|n/a)\Z", regex.IGNORECASE
)
_KNOWN_TAG = "<UNK>"


def lost_words(texts: Iterable[str], name: str) -> Counter[str]:
    """Return the words whose symbols a tokeniser drops, such as `||` or `>_<`, with how often they are there.

    name: of the tokeniser.
    """
    words = Counter(word for text in texts for word in text.split() if _SYMBOL.search(word) and word != _KNOWN_TAG)
    if not words or name in (KEEPS_ALL, "characters"):
        return Counter()
    cut = tokeniser(name)
    return Counter({word: times for word, times in words.items() if not _SYMBOL.search("".join(cut(word)))})


def markup(texts: Iterable[str]) -> Counter[str]:
    """Return what is no language in captions, such as `<br>`, `&amp;`, `startseq` or a caption `nan`, and how often."""
    return Counter(part for text in texts for part in _MARKUP.findall(text.strip()) if part != _KNOWN_TAG)


def unknown_share(
    known: Iterable[str], texts: Sequence[str], least: int, words_of: Callable[[str], list[str]]
) -> float:
    """Return the share of the words of texts that training does not know.

    known: the captions of train. least: how often a word must be in them. words_of: returns the words of a text.
    """
    counts = Counter(word for text in known for word in words_of(text))
    words = [word for text in texts for word in words_of(text)]
    return sum(counts[word] < least for word in words) / max(len(words), 1)
