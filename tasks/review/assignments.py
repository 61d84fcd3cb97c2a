"""The assignment of questions: several people answer a queue at once, and no two are asked about the same picture.

An answer is in the file before it is confirmed, so that a crash loses nothing. A person keeps a picture until it is
answered, even if the server restarts. Only if no other picture is left does someone else get the picture of a person
who has been inactive for a while.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from tasks.datasets.corrections import GIVING, Answer, Chosen, Verdict, checked
from tasks.review.queue import Question

KEPT = 600.0  # seconds for which an inactive person keeps a picture
_PAGE = "page"  # prefix of the source of an answer given on the page: `page PERSON NUMBER`


class ChosenQuestion(NamedTuple):
    """A question, why it was chosen, and the address of the version that wrote the caption."""

    question: Question
    chosen: Chosen
    model: str


class HeldQuestion(NamedTuple):
    """A question that a person has.

    undo: the number of the request that undid their answer to it, or None. answers: how many answers of theirs about it
    were in the file then: if there are more now, it is answered, although the process died before releasing it. heard:
    the time of their last request, in seconds since 1970.
    """

    asked: ChosenQuestion
    undo: str | None
    answers: int
    heard: float


class Reply(NamedTuple):
    """A person's answer: the verdict, the caption that they gave, or None, and their name, if they give it.

    number: identifies the answer, so that one that is sent twice is stored once.
    """

    number: str
    verdict: Verdict
    given: str | None
    who: str | None


class Record(Protocol):
    """The part of the state that outlives the process."""

    def answers(self) -> list[Answer]:
        """Return the answers in the file."""

    def write(self, answer: Answer) -> None:
        """Add an answer to the file; return when it is written."""

    def held(self) -> dict[str, HeldQuestion]:
        """Return the questions that people have, by person."""

    def hold(self, held: Mapping[str, HeldQuestion]) -> None:
        """Store the questions that people have."""


@dataclass
class _Person:
    """A person's last request (its time in seconds), current question, and answers, the last one last.

    answers: the last one about each picture. times: the number of answers about each picture.
    """

    heard: float = 0.0
    held: HeldQuestion | None = None
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
    """The questions of a queue, the people that have them, and the answers.

    It is not locked: only one thread at a time may call it.
    """

    def __init__(self, asked: Iterable[ChosenQuestion], record: Record) -> None:
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
                # The queue may now be from another version, but they answer about the caption that they see.
                self._open[picture] = held.asked
        self._number = len(self._open)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of open questions, and the number of all questions."""
        return len(self._open), self._number

    def question(self, picture: str) -> Question | None:
        """Return the open question about a picture; None if there is none."""
        return self._open[picture].question if picture in self._open else None

    def next(self, person: str, now: float) -> Question | None:
        """Return a person's question, the same until it is answered; None if none is left for them.

        person: identifies a browser. now: the time, in seconds since 1970.
        """
        own = self._person(person, now)
        if own.picture not in self._open:
            taken = self._held_by_others(own)
            free = (picture for picture in self._open if picture not in taken)
            left = (picture for picture in self._open if now - taken[picture] >= KEPT)
            picture = next(free, None) or next(left, None)
            self._assign(
                own, None if picture is None else HeldQuestion(self._open[picture], None, own.times[picture], now)
            )
        return None if own.picture is None else self.question(own.picture)

    def answer(self, person: str, picture: str, shown: str, reply: Reply, now: float) -> Literal["taken", "lost"]:
        """Write a person's answer to the file.

        Returns "lost" if it does not belong to a question of this queue, or if someone else has or answered the
        question. A repeated answer is "taken", but not written again. Raises AttendError for an invalid answer.
        """
        own = self._person(person, now)
        source = f"{_PAGE} {person} {reply.number}"
        if source in self._taken:
            return "taken"
        heard = self._held_by_others(own).get(picture)
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
            # A corrected answer keeps the name under which it was first given.
            "who": reply.who if before is None else before["who"],
            "when": datetime.datetime.now(datetime.UTC).isoformat(),
            "source": source,
        }
        self._record.write(checked(answer, "the answer"))
        self._taken.add(source)
        del self._open[picture]
        own.add(answer)
        self._assign(own, None)
        return "taken"

    def to_undo(self, person: str, number: str) -> Answer | None:
        """Return the answer that `undo` would ask about again; None if there is none.

        number: identifies the request, so that one that is sent twice undoes one answer.
        """
        own = self._people.get(person, _Person())
        pictures = list(own.answers)
        if own.held is not None and own.held.undo is not None and own.picture in own.answers:
            at = pictures.index(own.picture)
            pictures = pictures[: at + 1 if own.held.undo == number else at]
        return own.answers[pictures[-1]] if pictures else None

    def undo(self, person: str, number: str, now: float) -> Question | None:
        """Ask a person again about their last answer, or the one before the answer that they undid; None without one.

        number: as in `to_undo`. The file keeps the old answer until there is a new one: of a person's answers about a
        caption, the last one counts.
        """
        own, answer = self._person(person, now), self.to_undo(person, number)
        if answer is None:
            return None
        if own.held is not None and own.held.undo is not None and own.picture != answer["picture"]:
            self._open.pop(own.picture or "", None)  # their answer about that one is valid
        sureness = answer["confidence"] or 0.0  # no longer used for choosing
        question = Question(answer["picture"], answer["name"], answer["shown"], answer["confidence"], sureness)
        asked = ChosenQuestion(question, answer["chosen"], answer["model"])
        self._open = {question.picture: asked, **self._open}  # it is asked first if they leave it
        self._number = max(self._number, len(self._open))
        self._assign(own, HeldQuestion(asked, number, own.times[question.picture], now))
        return question

    def drop(self, picture: str) -> None:
        """Ask nobody about a picture any more, because its file is missing."""
        if self._open.pop(picture, None) is not None:
            self._number -= 1

    def _assign(self, own: _Person, held: HeldQuestion | None) -> None:
        """Assign a question to a person, and take it from anyone else."""
        for one in self._people.values():
            if held is not None and one.picture == held.asked.question.picture:
                one.held = None
        own.held = held
        self._record.hold({name: one.held for name, one in self._people.items() if one.held is not None})

    def _held_by_others(self, own: _Person) -> dict[str, float]:
        """Return the pictures that other people have, with the times of their last requests."""
        return {one.picture: one.heard for one in self._people.values() if one is not own and one.picture is not None}

    def _person(self, person: str, now: float) -> _Person:
        own = self._people.setdefault(person, _Person())
        own.heard = now
        return own
