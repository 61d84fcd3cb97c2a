"""Parts of captions that are lost, not language, or several captions in one: symbols, markup, new words, lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import regex

from tasks.common.wording import counted, shortened
from tasks.data.tokenisers import tokeniser
from tasks.datasets.base import Row
from tasks.datasets.caption_columns import FEWEST_WORDS, word_count

KEEPS_ALL = "whitespace"  # the tokeniser that keeps every word unchanged
# Symbols, and punctuation that does not occur in sentences.
_SYMBOL = regex.compile(r"[\p{S}\\_#@]")
_MARKUP = regex.compile(
    r"</?[a-z][^<>]{0,80}>|&(?:[a-z]{2,8}|#\d+);|\b(?:startseq|endseq)\b|"
    r"\A(?:nan|none|null|\\N|#?n/?a|#[a-z]+[!?]|tbd|todo|ditt?o|untitled|unknown|[\W_]+)\Z",
    regex.IGNORECASE,
)
_KNOWN_TAG = "<UNK>"
# A whole text that is a list, a tuple or an object, in JSON or Python syntax.
_LIST = regex.compile(r"""\s*(\[\s*['"[({]|[({]\s*['"]).*[])}]\s*""", regex.DOTALL)
_TENTH = 0.1  # share of the captions
_BETWEEN = regex.compile(r"(\n|\\n|\|+|###)")  # separates captions in one text; databases write a line break as \n


def lost_words(texts: Iterable[str], name: str) -> Counter[str]:
    """Count the words whose symbols a tokeniser drops, such as `||` or `>_<`.

    name: of the tokeniser.
    """
    words = Counter(word for text in texts for word in text.split() if _SYMBOL.search(word) and word != _KNOWN_TAG)
    if not words or name in (KEEPS_ALL, "characters"):
        return Counter()
    cut = tokeniser(name)
    return Counter({word: times for word, times in words.items() if not _SYMBOL.search("".join(cut(word)))})


def markup(texts: Iterable[str]) -> Counter[str]:
    """Count the parts of captions that are not language, such as `<br>`, `&amp;`, `startseq`, or a caption `#N/A`."""
    return Counter(part for text in texts for part in _MARKUP.findall(text.strip()) if part != _KNOWN_TAG)


def several_in_one(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the number of captions that are lists, objects or several in one text, with the first one of each kind."""
    examples: dict[str, list[tuple[Row, str]]] = {}  # by the setting `lists` that would split them
    for row in rows:
        for text in row.captions:
            first, *rest = _BETWEEN.split(text)  # every second item is a separator
            parts = [part for part in (first, *rest[1::2]) if part.strip()]
            if _LIST.fullmatch(text):
                examples.setdefault("json", []).append((row, text))
            elif len(parts) > 1 and all(word_count(part) >= FEWEST_WORDS for part in parts):
                examples.setdefault(rest[0], []).append((row, text))
    for lists, captions in examples.items():
        row, text = captions[0]
        form = "lists or objects" if lists == "json" else f"{lists!r} between parts of several words"
        yield (
            f"{form}, read as one caption: {counted(len(captions), 'caption')}, the first that of {row.name} "
            f"({row.where}), {shortened(text, 60)!r}: if these are several captions, write each as a text of its own, "
            f"or set the table's `lists` to {'json for lists of texts in []' if lists == 'json' else repr(lists)}"
        )


def repeated(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the number of captions that a picture has more than once, if they are many."""
    found = [row for row in rows if len(set(row.captions)) < len(row.captions)]
    number = sum(len(row.captions) - len(set(row.captions)) for row in found)
    if number > _TENTH * sum(len(row.captions) for row in rows):
        first = found[0]
        yield (
            f"the same caption again for a picture: {counted(number, 'caption')}, the first that of {first.name} "
            f"({first.where}): each counts in training: remove them if they are copies"
        )


def unknown_share(
    training: Iterable[str], texts: Sequence[str], least: int, words_of: Callable[[str], list[str]]
) -> float:
    """Return the share of words in `texts` that are not in the training vocabulary.

    training: the captions of train. least: how often a word must occur in them. words_of: returns the words of a text.
    """
    counts = Counter(word for text in training for word in words_of(text))
    words = [word for text in texts for word in words_of(text)]
    return sum(counts[word] < least for word in words) / max(len(words), 1)
