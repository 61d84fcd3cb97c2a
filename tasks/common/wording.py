"""Counts and lists for messages, in words."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

# The parts that differ between messages of one kind: quoted texts, and words with a path, a dot or a number.
_OWN = re.compile(r"""'[^']*'|"[^"]*"|\S*[/\\.\d]\S*""")


def listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 picture`, `2 pictures`, `1,000 pictures`. plural: of the noun, if it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def counts_in_words(counts: Mapping[str, int]) -> str:
    """Return counts in words, in order, such as `1 picture, 1,200 train`. counts: plural or split -> number."""
    return ", ".join(f"{number:,} {name.removesuffix('s') if number == 1 else name}" for name, number in counts.items())


def counted_by_split(sizes: Mapping[str, float]) -> str:
    """Return `1,200 train, 150 dev, 150 test`: the splits in `sizes`, in its order."""
    return ", ".join(f"{int(size):,} {split}" for split, size in sizes.items())


def kind_of(message: str) -> str:
    """Return a message without the parts that differ between messages of one kind: names, numbers and quotes."""
    return _OWN.sub("", message)


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters, which ends in `...` if it was longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def minute(at: float) -> str:
    """Return a Unix time as `2026-01-31 09:30`, in the time zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
