"""The pictures to ask people about: those that a model is least sure of or knows least, and some at random.

A fifth of all pictures, chosen only by their contents before any caption is generated, is asked about only at random:
the answers about these are therefore an unbiased measure, however the other pictures are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.common.fractions import fraction
from tasks.datasets.corrections import Chosen

_REVIEW = "review"  # the purpose of the draws, which makes them independent of the splits
_RESERVED = 0.2  # share of pictures asked about only at random; it must not change, so that these stay the same


@dataclass(frozen=True)
class Question:
    """A caption to ask about, with fields as in `Answer`.

    sureness: larger for captions that are more likely right. distance: of the picture from the training pictures; None
    if the model does not know it.
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
    """Return whether a picture is asked about only at random. digest: SHA-256 (hex) of its file."""
    return _draw(digest) < _RESERVED


def choose(questions: Iterable[Question], number: int, shares: Shares) -> list[tuple[Question, Chosen]]:
    """Return up to `number` questions, and why each was chosen.

    Each kind is ordered by importance, and the kinds are mixed evenly, so that a person who answers only the first
    questions has answered some of each kind.
    """
    ordered = sorted(questions, key=lambda question: (question.sureness, question.picture))
    drawn = sorted((q for q in ordered if at_random(q.picture)), key=lambda q: _draw(q.picture))
    drawn = drawn[: max(round(number * shares.at_random), 1) if shares.at_random else 0]
    rest = [question for question in ordered if not at_random(question.picture)]
    far = sorted((q for q in rest if q.distance is not None), key=lambda q: (-(q.distance or 0.0), q.picture))
    far = far[: min(round(number * shares.unlike), number - len(drawn))]
    taken = {question.picture for question in far}
    unsure = [question for question in rest if question.picture not in taken][: number - len(drawn) - len(far)]
    kinds: list[tuple[Chosen, list[Question]]] = [
        ("least sure", unsure),
        ("least like training", far),
        ("at random", drawn),
    ]
    placed = [((at + 0.5) / len(kind), q, why) for why, kind in kinds for at, q in enumerate(kind)]
    return [(question, why) for _, question, why in sorted(placed, key=lambda item: item[0])]


def _draw(digest: str) -> float:
    return fraction(_REVIEW, digest)
