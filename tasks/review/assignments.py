"""Who is asked what: several people answer the questions of a queue at once, and none gets another's picture.

An answer is in the file before it is confirmed, so that whoever dies then, nothing is lost. A person who is asked about
a picture keeps it until it is answered, also when the server is started anew; only where no other is left does someone
get the picture of a person of whom nothing was heard for a while.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from tasks.datasets.corrections import GIVING, Answer, Chosen, Verdict, checked
from tasks.review.queue import Question

KEPT = 600.0  # seconds for which a person who is not heard of keeps a picture
_PAGE = "page"  # begins the source of an answer that was given on the page: `page PERSON NUMBER`


class Asked(NamedTuple):
    """Hold a question, why it is asked, and the address of the version whose caption it is about."""

    question: Question
    chosen: Chosen
    model: str


class Held(NamedTuple):
    """Hold what a person has.

    undo: the number of the request that undid their answer to it, or None. answers: how many of theirs about it were in
    the file then: with more of them there, it is answered, though the process died before it let go of it. heard: when
    they were heard of, in seconds since 1970.
    """

    asked: Asked
    undo: str | None
    answers: int
    heard: float


class Reply(NamedTuple):
    """Hold what a person answers: the verdict, the caption that they gave, or None, and their name, if they tell it.

    number: identifies the answer, so that one that is sent twice is taken once.
    """

    number: str
    verdict: Verdict
    given: str | None
    who: str | None


class Record(Protocol):
    """The part of the state that outlives the process."""

    def answers(self) -> list[Answer]:
        """Return the answers of the file."""

    def write(self, answer: Answer) -> None:
        """Add an answer to the file, and return when it is there."""

    def held(self) -> dict[str, Held]:
        """Return what people have, by person."""

    def hold(self, held: Mapping[str, Held]) -> None:
        """Keep what people have."""


@dataclass
class _Person:
    """Hold when a person was heard of, in seconds, what they have, and their answers, the last one last.

    answers: the last one about each picture. times: how many they gave about each.
    """

    heard: float = 0.0
    held: Held | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    @property
    def picture(self) -> str | None:
        return None if self.held is None else self.held.asked.question.picture

    def add(self, answer: Answer) -> None:
        self.answers.pop(answer["picture"], None)
        self.answers[answer["picture"]] = answer
        self.times[answer["picture"]] += 1


class Assignments:
    """The questions of a queue, who has which of them, and what was answered.

    It is not locked: one thread at a time may call it.
    """

    def __init__(self, asked: Iterable[Asked], record: Record) -> None:
        """asked: the questions of the queue."""
        self._record = record
        self._people: dict[str, _Person] = {}
        self._taken: set[str] = set()
        for answer in record.answers():
            source = answer.get("source", "")
            self._taken.add(source)
            if (parts := source.split())[:1] == [_PAGE] and len(parts) == 3:
                self._people.setdefault(parts[1], _Person()).add(answer)
        self._open = {item.question.picture: item for item in asked}
        for person, held in record.held().items():
            own, picture = self._people.setdefault(person, _Person()), held.asked.question.picture
            if own.times[picture] <= held.answers:
                own.heard, own.held = held.heard, held
                # The queue may be another one now, of another version: they answer the caption that they see.
                self._open[picture] = held.asked
        self._number = len(self._open)

    @property
    def counts(self) -> tuple[int, int]:
        """Return how many questions are open, and how many there are."""
        return len(self._open), self._number

    def question(self, picture: str) -> Question | None:
        """Return the open question about a picture; None where there is none."""
        return self._open[picture].question if picture in self._open else None

    def next(self, person: str, now: float) -> Question | None:
        """Return the question that a person is asked, the same until it is answered; None where none is left for them.

        person: identifies a browser. now: the time, in seconds since 1970.
        """
        own = self._heard(person, now)
        if own.picture not in self._open:
            others = self._others(own)
            free = (picture for picture in self._open if picture not in others)
            left = (picture for picture in self._open if now - others[picture] >= KEPT)
            picture = next(free, None) or next(left, None)
            self._give(own, None if picture is None else Held(self._open[picture], None, own.times[picture], now))
        return None if own.picture is None else self.question(own.picture)

    def answer(self, person: str, picture: str, shown: str, reply: Reply, now: float) -> Literal["taken", "lost"]:
        """Write a person's answer to the file.

        Returns "lost" where it is none to a question of this queue, or someone else has it, or answered it. An answer
        that is there is taken, and not written again. Raises AttendError for one that cannot be written.
        """
        own = self._heard(person, now)
        source = f"{_PAGE} {person} {reply.number}"
        if source in self._taken:
            return "taken"
        heard = self._others(own).get(picture)
        is_others = heard is not None and now - heard < KEPT
        if picture not in self._open or is_others or self._open[picture].question.shown != shown:
            return "lost"
        question, chosen, model = self._open[picture]
        before = own.answers.get(picture)
        answer: Answer = {
            "picture": picture,
            "name": question.name,
            "shown": shown,
            "given": reply.given if reply.verdict in GIVING else None,
            "verdict": reply.verdict,
            "model": model,
            "confidence": question.confidence,
            "chosen": chosen,
            # Who puts an answer of theirs right is the one who gave it, whatever the name is now.
            "who": reply.who if before is None else before["who"],
            "when": datetime.datetime.now(datetime.UTC).isoformat(),
            "source": source,
        }
        self._record.write(checked(answer, "the answer"))
        self._taken.add(source)
        del self._open[picture]
        own.add(answer)
        self._give(own, None)
        return "taken"

    def to_undo(self, person: str, number: str) -> Answer | None:
        """Return the answer that `undo` asks about once more; None where there is none.

        number: identifies the request, so that one that is sent twice undoes one answer.
        """
        own = self._people.get(person, _Person())
        pictures = list(own.answers)
        if own.held is not None and own.held.undo is not None and own.picture in own.answers:
            at = pictures.index(own.picture)
            pictures = pictures[: at + 1 if own.held.undo == number else at]
        return own.answers[pictures[-1]] if pictures else None

    def undo(self, person: str, number: str, now: float) -> Question | None:
        """Ask a person once more what they answered last, or before the one that they undid; None where there is none.

        number: as in `to_undo`. The file keeps what was said until they say something else: of a person's answers about
        a caption, the last counts.
        """
        own, answer = self._heard(person, now), self.to_undo(person, number)
        if answer is None:
            return None
        if own.held is not None and own.held.undo is not None and own.picture != answer["picture"]:
            self._open.pop(own.picture or "", None)  # what they said of that one stands
        sureness = answer["confidence"] or 0.0  # nothing is chosen by it any more
        question = Question(answer["picture"], answer["name"], answer["shown"], answer["confidence"], sureness)
        asked = Asked(question, answer["chosen"], answer["model"])
        self._open = {question.picture: asked, **self._open}  # it is asked first, should they leave it
        self._number = max(self._number, len(self._open))
        self._give(own, Held(asked, number, own.times[question.picture], now))
        return question

    def drop(self, picture: str) -> None:
        """Ask nobody about a picture any more, as its file is not there."""
        if self._open.pop(picture, None) is not None:
            self._number -= 1

    def _give(self, own: _Person, held: Held | None) -> None:
        """Give a person a question, which nobody else has then."""
        for one in self._people.values():
            if held is not None and one.picture == held.asked.question.picture:
                one.held = None
        own.held = held
        self._record.hold({name: one.held for name, one in self._people.items() if one.held is not None})

    def _others(self, own: _Person) -> dict[str, float]:
        """Return which pictures others have, and when they were heard of."""
        return {one.picture: one.heard for one in self._people.values() if one is not own and one.picture is not None}

    def _heard(self, person: str, now: float) -> _Person:
        own = self._people.setdefault(person, _Person())
        own.heard = now
        return own
