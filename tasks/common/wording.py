"""Counts and lists in messages, in the words that a person would use."""

from __future__ import annotations

from collections.abc import Sequence


def listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 picture`, `2 pictures`, `1,000 pictures`. plural: of the noun, where it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
