"""The pictures that people are asked about: those whose captions a model is least sure of, and a share at random.

Which pictures belong to the share is decided by their contents alone, before any caption is made: what people say of it
is therefore an unbiased measure, however the others are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.common.fractions import fraction
from tasks.datasets.corrections import Chosen

_REVIEW = "review"  # the purpose of the draws: a picture's says nothing of its split


@dataclass(frozen=True)
class Question:
    """A caption to ask about, with fields as of `Answer`. sureness: larger for captions that are likelier right."""

    picture: str
    name: str
    shown: str
    confidence: float | None
    sureness: float


def at_random(digest: str, share: float) -> bool:
    """Return whether a picture is of the share at random. digest: SHA-256 (hex) of its file."""
    return fraction(_REVIEW, digest) < share


def choose(questions: Iterable[Question], number: int, share: float) -> list[tuple[Question, Chosen]]:
    """Return up to `number` questions: the least sure first, then as many of the share at random as it is of them."""
    ordered = sorted(questions, key=lambda question: (question.sureness, question.picture))
    random = sorted((q for q in ordered if at_random(q.picture, share)), key=lambda q: fraction(_REVIEW, q.picture))
    others = [question for question in ordered if not at_random(question.picture, share)]
    drawn = random[: max(round(number * share), min(1, number)) if share else 0]
    unsure = others[: number - len(drawn)]
    chosen: list[tuple[Question, Chosen]] = [(question, "least sure") for question in unsure]
    return chosen + [(question, "at random") for question in drawn]
