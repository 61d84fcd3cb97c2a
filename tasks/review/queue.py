"""The pictures that people are asked about: those that a model is least sure of or knows least, and some at random.

A fifth of all pictures, decided by their contents alone, before any caption is made, is never asked about but at
random: what people say of these is therefore an unbiased measure, however the others are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.common.fractions import fraction
from tasks.datasets.corrections import Chosen

_REVIEW = "review"  # the purpose of the draws: a picture's says nothing of its split
_RESERVED = 0.2  # share of all pictures that are asked about at random alone; it must stay as it is, as they are


@dataclass(frozen=True)
class Question:
    """A caption to ask about, with fields as of `Answer`.

    sureness: larger for captions that are likelier right. distance: of the picture from those that the model was
    trained on; None where the model does not know.
    """

    picture: str
    name: str
    shown: str
    confidence: float | None
    sureness: float
    distance: float | None = None


@dataclass(frozen=True)
class Shares:
    """The shares of the questions that are drawn at random, and that are least like the training pictures."""

    at_random: float
    unlike: float = 0.0


def at_random(digest: str) -> bool:
    """Return whether a picture is asked about at random alone. digest: SHA-256 (hex) of its file."""
    return _draw(digest) < _RESERVED


def choose(questions: Iterable[Question], number: int, shares: Shares) -> list[tuple[Question, Chosen]]:
    """Return up to `number` questions, and why each is asked.

    Those of each kind are in the order in which they matter, and the kinds are mixed evenly, so that who answers only
    the first ones has answered some of each.
    """
    ordered = sorted(questions, key=lambda question: (question.sureness, question.picture))
    drawn = sorted((q for q in ordered if at_random(q.picture)), key=lambda q: _draw(q.picture))
    drawn = drawn[: max(round(number * shares.at_random), 1) if shares.at_random else 0]
    others = [question for question in ordered if not at_random(question.picture)]
    far = sorted((q for q in others if q.distance is not None), key=lambda q: (-(q.distance or 0.0), q.picture))
    far = far[: min(round(number * shares.unlike), number - len(drawn))]
    taken = {question.picture for question in far}
    unsure = [question for question in others if question.picture not in taken][: number - len(drawn) - len(far)]
    kinds: list[tuple[Chosen, list[Question]]] = [
        ("least sure", unsure),
        ("least like training", far),
        ("at random", drawn),
    ]
    placed = [((at + 0.5) / len(kind), q, why) for why, kind in kinds for at, q in enumerate(kind)]
    return [(question, why) for _, question, why in sorted(placed, key=lambda item: item[0])]


def _draw(digest: str) -> float:
    return fraction(_REVIEW, digest)
