"""Counts and lists in messages, in the words that a person would use."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 picture`, `2 pictures`, `1,000 pictures`. plural: of the noun, where it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
