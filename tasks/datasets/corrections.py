"""Adapter `corrections`, and its file: what people said of captions that a model made, one answer a line of JSON.

Each line has the fields of `Answer`. Lines are only ever added, and to read them takes no program of this project.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, get_args

from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.datasets.base import DatasetOptions, Row, numbered_lines, require_file, require_folder
from tasks.datasets.documents import parse_text
from tasks.datasets.faults import REFUSE, Faults

Verdict = Literal["accepted", "edited", "rejected", "skipped", "no photograph"]
Chosen = Literal["least sure", "at random"]
GIVING: tuple[Verdict, ...] = ("accepted", "edited")  # verdicts with a caption to train on


class Answer(TypedDict):
    """Hold what one person said of one caption.

    picture: SHA-256 of the photograph's file. name: its path in the folder that was reviewed. shown, given: the caption
    that the model made, and the person's; null where there is none. model: the version, `models:/NAME/VERSION`.
    confidence: of the model, from 0 to 1, or null. chosen: why the picture was asked about. who: the person, or null.
    when: as ISO 8601. source: what identifies the answer where it was given, so that it is taken once.
    """

    picture: str
    name: str
    shown: str
    given: str | None
    verdict: Verdict
    model: str
    confidence: float | None
    chosen: Chosen
    who: str | None
    when: str
    source: NotRequired[str]


def read_answers(path: Path, faults: Faults = REFUSE) -> Iterator[tuple[str, Answer]]:
    """Yield each answer of a file with its position, `file:line`. A line that is no answer is one of the `faults`."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        with faults.of_row():
            yield where, _checked(parse_text(line, path, number), where)


def _checked(value: object, where: str) -> Answer:
    """Return a line's answer; raise AttendError, which names the field, where it is none."""
    if not isinstance(value, dict):
        raise AttendError(f"{where}: is a {type(value).__name__}, not an object: remove the line")
    for field in ("picture", "name", "shown", "model", "when"):
        if not isinstance(value.get(field), str):
            raise AttendError(f"{where}: {field}: is {reprlib.repr(value.get(field))}; a text is needed")
    for field, known in (("verdict", get_args(Verdict)), ("chosen", get_args(Chosen))):
        if value.get(field) not in known:
            raise AttendError(f"{where}: {field}: is {reprlib.repr(value.get(field))}: give one of: {', '.join(known)}")
    gives = isinstance(value.get("given"), str) and bool(value["given"].strip())
    if gives != (value["verdict"] in GIVING):
        needs = "needs a caption" if value["verdict"] in GIVING else "has no caption of its own: use null"
        raise AttendError(f"{where}: given: an answer that is {value['verdict']!r} {needs}")
    if not isinstance(value.get("confidence"), int | float | None) or not isinstance(value.get("who"), str | None):
        raise AttendError(f"{where}: confidence is a number or null, and who a text or null")
    return value  # type: ignore[return-value] # the fields were looked at above


def add_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Add answers to the end of a file, which is replaced as a whole: it never holds a part of a line."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = "".join(f"{json.dumps(answer, ensure_ascii=False)}\n" for answer in answers)
    write_atomically(path, f"{before}{lines}" if not before or before.endswith("\n") else f"{before}\n{lines}")


def latest(answers: Iterable[Answer]) -> list[Answer]:
    """Return the last answer of each person about each picture and caption: who changed their mind counts once."""
    last: dict[tuple[str, str, str | None], Answer] = {}
    for answer in sorted(answers, key=lambda answer: answer["when"]):
        last[answer["picture"], answer["shown"], answer["who"]] = answer
    return list(last.values())


class Corrections(DatasetOptions):
    """A file of answers of `attend review`, whose captions people accepted or wrote; for `data.sources`.

    What was asked at random is test, so that scores stay honest; the rest, which the model was least sure of, trains.
    """

    adapter: Literal["corrections"] = "corrections"

    def annotation_files(self) -> list[Path]:
        return [require_file(self.path, "data.path")]

    def image_folder(self, generated: Path) -> Path:
        """Return the folder that was reviewed: `data.images`, or that of the file."""
        return require_folder(self.images if self.images is not None else self.path.expanduser().parent, "data.images")

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        positions: dict[str, str] = {}
        answers: list[Answer] = []
        for where, answer in read_answers(require_file(self.path, "data.path"), faults):
            positions.setdefault(answer["picture"], where)
            answers.append(answer)
        by_picture: dict[str, list[Answer]] = {}
        for answer in latest(answers):
            by_picture.setdefault(answer["picture"], []).append(answer)
        for digest, given in by_picture.items():
            captions = dict.fromkeys(answer["given"] for answer in given if answer["given"] is not None)
            split = "test" if any(answer["chosen"] == "at random" for answer in given) else "train"
            if captions:
                with faults.of_row():
                    yield Row(given[-1]["name"], tuple(map(str, captions)), split, positions[digest], digest=digest)
