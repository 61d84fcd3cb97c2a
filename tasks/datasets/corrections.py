"""Adapter `corrections`, and its file: people's answers about a model's captions, one line of JSON each.

Each line has the fields of `Answer`. Lines are only ever added, and can be read without this project.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired, TypedDict, get_args

import filelock

from tasks.common.errors import AttendError
from tasks.common.files import check_text, digest_of_file, flush, write_atomically
from tasks.common.log import log
from tasks.common.wording import counted
from tasks.datasets.base import DatasetOptions, Row, numbered_lines, picture_files, require_file, require_folder
from tasks.datasets.documents import parse_text
from tasks.datasets.faults import REFUSE, Faults

Verdict = Literal["accepted", "edited", "rejected", "skipped", "no photograph"]
Chosen = Literal["least sure", "least like training", "at random"]
ANSWERS = "corrections"  # the adapter
ANSWERS_FILE = "reviews.jsonl"  # in the workspace
GIVING: tuple[Verdict, ...] = ("accepted", "edited")  # verdicts with a caption to train on


class Answer(TypedDict):
    """One person's answer about one caption.

    picture: SHA-256 of the photograph's file. name: its path in the reviewed folder. shown, given: the model's caption,
    and the person's, or null. model: the version, `models:/NAME/VERSION`. confidence: the model's, from 0 to 1, or
    null. chosen: why the picture was selected for review. who: the person, or null. when: in ISO 8601. source:
    identifies the answer at its origin, so that it is imported once.
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
    """Yield each answer of a file with its position, `file:line`. Invalid lines are added to the `faults`."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        with faults.of_row():
            yield where, checked(_parsed(line, path, number), where)


def _parsed(line: str, path: Path, number: int) -> Any:
    try:
        return parse_text(line, path, number)
    except AttendError as error:
        raise AttendError(f"{error}: mend the line, or remove it") from None


def checked(value: object, where: str) -> Answer:
    """Return a parsed JSON value as an answer; raise AttendError, which names the field, if it is not valid."""
    if not isinstance(value, dict):
        raise AttendError(f"{where}: is a {type(value).__name__}, not an object: remove the line")
    for field in ("picture", "name", "model", "when"):
        _check_text(value.get(field), f"{where}: {field}")
    if value.get("shown") != "":  # a barely trained model gives empty captions to some pictures
        _check_text(value.get("shown"), f"{where}: shown")
    for field, known in (("verdict", get_args(Verdict)), ("chosen", get_args(Chosen))):
        if value.get(field) not in known:
            raise AttendError(f"{where}: {field}: is {reprlib.repr(value.get(field))}: give one of: {', '.join(known)}")
    if value["verdict"] in GIVING:
        _check_text(value.get("given"), f"{where}: given")
    elif value.get("given") is not None:
        raise AttendError(f"{where}: given: an answer that is {value['verdict']!r} has no caption of its own: use null")
    for field in ("who", "source"):
        if value.get(field) is not None:
            _check_text(value[field], f"{where}: {field}")
    confidence = value.get("confidence")
    if confidence is not None and not (isinstance(confidence, int | float) and 0 <= confidence <= 1):
        raise AttendError(
            f"{where}: confidence: is {reprlib.repr(confidence)}; a number from 0 to 1, or null, is needed"
        )
    try:
        time_of(value)  # type: ignore[arg-type] # its fields were checked above
    except ValueError:
        raise AttendError(f"{where}: when: {reprlib.repr(value['when'])} is no time in ISO 8601") from None
    return value  # type: ignore[return-value] # as before


def _check_text(value: object, where: str) -> None:
    """Raise AttendError unless a value is a non-blank text that can be written."""
    try:
        if isinstance(value, str) and value.strip():
            check_text(value)
            return
    except ValueError as error:
        raise AttendError(f"{where}: {error}") from None
    raise AttendError(f"{where}: is {reprlib.repr(value)}; a text is needed")


def time_of(answer: Answer) -> datetime.datetime:
    """Return when an answer was given; a time without a zone is UTC. Raises ValueError if it is not a time."""
    when = datetime.datetime.fromisoformat(answer["when"])
    return when if when.tzinfo is not None else when.replace(tzinfo=datetime.UTC)


def add_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Add answers to the end of a file, which is replaced as a whole, so that it never holds a partial line.

    After the return, a power cut loses none of them. Hold the `answers_lock` if other processes may add answers.
    """
    path = path.resolve()  # replace the target of a link, not the link
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = "".join(f"{json.dumps(answer, ensure_ascii=False)}\n" for answer in answers)
    write_atomically(path, f"{before}{lines}" if not before or before.endswith("\n") else f"{before}\n{lines}")
    flush(path.parent)  # makes the file's name durable


@contextlib.contextmanager
def answers_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file of answers for the length of the block, after waiting for it."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


def latest(answers: Iterable[Answer]) -> list[Answer]:
    """Return the last answer of each person about each picture and caption, which replaces their earlier ones."""
    last: dict[tuple[str, str, str | None], Answer] = {}
    for answer in sorted(answers, key=time_of):
        last[answer["picture"], answer["shown"], answer["who"]] = answer
    return list(last.values())


class Corrections(DatasetOptions):
    """A file of answers from `attend review`: captions that people accepted or wrote; for `data.sources`.

    What was asked at random is test, so that scores stay honest; the rest, chosen to be learned from, trains. The file
    need not be there yet: it is then as good as empty.
    """

    adapter: Literal["corrections"] = "corrections"
    expects_captions: ClassVar[bool] = False

    def annotation_files(self) -> list[Path]:
        path = self.path.expanduser()
        return [path] if path.exists() else []

    def image_folder(self, generated: Path) -> Path:
        """Return the reviewed folder: `data.images`, or the folder of the file."""
        return require_folder(self.images if self.images is not None else self.path.expanduser().parent, "data.images")

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        if not self.annotation_files():
            return
        positions: dict[str, str] = {}
        answers: list[Answer] = []
        for where, answer in read_answers(require_file(self.path, "data.path"), faults):
            positions.setdefault(answer["picture"], where)
            answers.append(answer)
        by_picture: dict[str, list[Answer]] = {}
        for answer in latest(answers):
            by_picture.setdefault(answer["picture"], []).append(answer)
        now = {answer["name"]: answer["picture"] for answer in sorted(answers, key=time_of)}
        folder = self.image_folder(generated)
        moved, missing = self._moved(now, folder)
        if missing and len(missing) == len(by_picture):
            raise AttendError(f"{folder}: has none of the {len(missing):,} photographs of {self.path}: set data.images")
        if missing:
            log.warning(f"{self.path}: {counted(len(missing), 'photograph')} not in {folder} any more: left out")
        for digest, given in by_picture.items():
            name = moved.get(digest, given[-1]["name"])
            if digest in missing or now.get(name, digest) != digest:
                continue  # it was removed, or replaced by a picture of the same name that was reviewed since
            captions = dict.fromkeys(answer["given"] for answer in given if answer["verdict"] in GIVING)
            split = "test" if any(answer["chosen"] == "at random" for answer in given) else "train"
            if captions:
                with faults.of_row():
                    yield Row(name, tuple(map(str, captions)), split, positions[digest], digest=digest)

    def _moved(self, digests: Mapping[str, str], folder: Path) -> tuple[dict[str, str], set[str]]:
        """Return digest -> new name of pictures renamed or moved in the folder, and the digests of missing pictures.

        digests: former name -> digest.
        """
        missing = {digest for name, digest in digests.items() if not (folder / name).is_file()}
        if not missing:
            return {}, set()  # so that no file needs to be read
        names = {digest_of_file(path): path.relative_to(folder).as_posix() for path in picture_files(folder)}
        return {digest: names[digest] for digest in missing if digest in names}, missing - names.keys()
