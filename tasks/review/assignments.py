"""Who is asked what: several people answer the questions of a queue at once, and none gets another's picture.

An answer is in the file before it is confirmed, so that whoever dies then, nothing is lost. A person who is asked about
a picture keeps it until it is answered, or until another one needs a question and nothing was heard of the first for a
while.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from tasks.datasets.corrections import GIVING, Answer, Chosen, Verdict, checked
from tasks.review.queue import Question

KEPT = 600.0  # seconds for which a person who is not heard of keeps a picture


class Said(NamedTuple):
    """What a person said: the verdict, the caption that they gave, or None, and their name, if they tell it.

    number: identifies the answer, so that one that is sent twice is taken once.
    """

    number: str
    verdict: Verdict
    given: str | None
    who: str | None


@dataclass
class _Person:
    """heard: when, in seconds. asked: the digest of the picture that they have. said: what was answered, in order."""

    heard: float = 0.0
    asked: str | None = None
    said: list[tuple[str, Said]] = field(default_factory=list)


class Record(Protocol):
    """What outlives the process that asks."""

    def taken(self) -> set[str]:
        """Return the numbers of the answers that are in the file."""

    def write(self, answer: Answer) -> None:
        """Add an answer to the file, and return when it is there."""

    def held(self) -> dict[str, str]:
        """Return who has which picture: person -> digest."""

    def hold(self, held: Mapping[str, str]) -> None:
        """Keep who has which picture."""


class Assignments:
    """The questions of a queue, who has which of them, and what was answered.

    It is not locked: one thread at a time may call it.
    """

    def __init__(
        self,
        questions: Iterable[tuple[Question, Chosen]],
        model: str,
        record: Record,
        now: float,
    ) -> None:
        """model: the version that captioned. now: the time, in seconds."""
        self._questions = {question.picture: (question, chosen) for question, chosen in questions}
        self._model, self._record = model, record
        self._open = dict.fromkeys(self._questions)
        self._people = {person: _Person(now, picture) for person, picture in record.held().items()}
        self._taken = record.taken()

    @property
    def counts(self) -> tuple[int, int]:
        """Return how many questions are open, and how many there are."""
        return len(self._open), len(self._questions)

    def question(self, picture: str) -> Question | None:
        """Return the question about a picture; None where there is none."""
        return self._questions[picture][0] if picture in self._questions else None

    def next(self, person: str, now: float) -> Question | None:
        """Return the question that a person is asked, the same until it is answered; None where none is left for them.

        person: identifies a browser. now: a time in seconds.
        """
        own = self._heard(person, now)
        if own.asked not in self._open:
            held = {other.asked for other in self._people.values() if other is not own and now - other.heard < KEPT}
            self._give(own, next((picture for picture in self._open if picture not in held), None))
        return None if own.asked is None else self.question(own.asked)

    def answer(self, person: str, picture: str, shown: str, said: Said, now: float) -> Literal["taken", "lost"]:
        """Write a person's answer to the file.

        Returns "lost" where it is none to a question of this queue, or someone else has it, or answered it. An answer
        that is there is taken, and not written again. Raises AttendError for one that cannot be written.
        """
        own = self._heard(person, now)
        if said.number in self._taken:
            return "taken"
        held = any(
            other.asked == picture and now - other.heard < KEPT for other in self._people.values() if other is not own
        )
        question, chosen = self._questions.get(picture, (None, None))
        if question is None or chosen is None or picture not in self._open or held or question.shown != shown:
            return "lost"
        answer: Answer = {
            "picture": picture,
            "name": question.name,
            "shown": shown,
            "given": said.given if said.verdict in GIVING else None,
            "verdict": said.verdict,
            "model": self._model,
            "confidence": question.confidence,
            "chosen": chosen,
            "who": said.who,
            "when": datetime.datetime.now(datetime.UTC).isoformat(),
            "source": said.number,
        }
        self._record.write(checked(answer, "the answer"))
        self._taken.add(said.number)
        del self._open[picture]
        own.said.append((picture, said))
        own.asked = None
        return "taken"

    def undo(self, person: str, now: float) -> tuple[Question, Said] | None:
        """Ask a person once more what they answered last, and return it with that; None where they answered nothing.

        The file keeps what was said until they say something else: of a person's answers about a caption, the last
        counts.
        """
        own = self._heard(person, now)
        if not own.said:
            return None
        picture, said = own.said.pop()
        # It is asked first again, should they leave it.
        self._open = {picture: None, **self._open}
        self._give(own, picture)
        return self._questions[picture][0], said

    def drop(self, picture: str) -> None:
        """Ask nobody about a picture any more, as its file is not there."""
        self._questions.pop(picture, None)
        self._open.pop(picture, None)

    def _give(self, own: _Person, picture: str | None) -> None:
        """Give a person a picture, which nobody else has then: of who has had it, nothing was heard for long."""
        for other in self._people.values():
            if other.asked == picture:
                other.asked = None
        own.asked = picture
        self._record.hold({name: one.asked for name, one in self._people.items() if one.asked is not None})

    def _heard(self, person: str, now: float) -> _Person:
        own = self._people.setdefault(person, _Person())
        own.heard = now
        return own
