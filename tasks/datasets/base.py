"""What an adapter is: it turns a data set's own files into rows of (picture, captions, split)."""

from __future__ import annotations

import os
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, model_validator

from tasks.common.errors import AttendError
from tasks.common.section import NotInKey, Section

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "restval": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Row:
    """One picture of a data set.

    name: its path relative to the image folder, with `/`. split: None where the data set has none.
    facts: what is known to be true of it (generated data only). where: `file:line`, for messages.
    """

    name: str
    captions: tuple[str, ...]
    split: str | None
    where: str
    facts: dict[str, Any] | None = None


class Found(NamedTuple):
    """A picture file: its path below a folder, with `/`, its bytes, and when it was changed last, in ns."""

    name: str
    size: int
    mtime_ns: int


class DatasetOptions(Section, ABC):
    """What the adapters have in common; each adds its `adapter` name, its own fields and `rows`."""

    has_facts: ClassVar[bool] = False  # whether what is true of each picture is known
    unpacks: ClassVar[bool] = False  # whether `rows` writes the pictures itself, generated or out of its files

    path: Annotated[Path, NotInKey()] = Field(description="folder of the data set, or its caption file")
    images: Annotated[Path | None, NotInKey()] = Field(None, description="image folder, where it is elsewhere")
    dev_share: float = Field(0.1, ge=0, lt=1, description="share of dev pictures, where the data set has no splits")
    test_share: float = Field(0.1, ge=0, lt=1, description="share of test pictures, where it has no splits")

    @abstractmethod
    def annotation_files(self) -> list[Path]:
        """The files that hold captions and splits. AttendError where one that must be there is not."""

    @abstractmethod
    def image_folder(self, generated: Path) -> Path:
        """Where the pictures are. generated: the folder for pictures that an adapter writes itself."""

    @abstractmethod
    def rows(self, generated: Path) -> Iterator[Row]:
        """Every picture that the data set captions. AttendError names file, line and field of what is malformed."""


def existing_folder(path: Path, field: str) -> Path:
    """`path` as a folder that is there; AttendError names the config field."""
    folder = path.expanduser()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise AttendError(f"{field}: {folder}: {what}: give the data set's folder")
    return folder


def existing_file(path: Path, field: str) -> Path:
    """`path` as a file that is there; AttendError names the config field."""
    file = path.expanduser()
    if not file.is_file():
        what = "is a folder, not a file" if file.exists() else "no such file"
        raise AttendError(f"{field}: {file}: {what}")
    return file


def split_named(value: str, where: str) -> str:
    """train, dev or test for the spellings in use; AttendError for any other."""
    try:
        return SPLIT_NAMES[value.strip().lower()]
    except KeyError:
        raise AttendError(f"{where}: split: {value!r} is none of {', '.join(sorted(SPLIT_NAMES))}") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a UTF-8 text file with their numbers; AttendError where it is not UTF-8."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise AttendError(f"{path}:{number}: is not UTF-8 text") from None
            if line.strip():
                yield number, line


def find_pictures(folder: Path, without: Path | None = None) -> list[Found]:
    """Every picture under a folder, by name; links are followed, hidden files and the folder `without` left out.

    AttendError for a link that leads nowhere, or back to where it is.
    """
    found: list[Found] = []
    waiting = [("", str(folder), [_identity(folder.stat())])]
    while waiting:
        prefix, place, above = waiting.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                if entry.is_dir():
                    own = _identity(entry.stat())
                    if own in above:
                        raise AttendError(f"{entry.path}: is a link to a folder that it is in: remove it")
                    if without is None or os.path.abspath(entry.path) != str(without):  # noqa: PTH100 -- a string
                        waiting.append((f"{prefix}{name}/", entry.path, [*above, own]))
                elif name.lower().endswith(PICTURE_SUFFIXES):
                    try:
                        stat = entry.stat()
                    except FileNotFoundError:
                        raise AttendError(f"{entry.path}: is a link to nothing: remove it") from None
                    found.append(Found(f"{prefix}{name}", stat.st_size, stat.st_mtime_ns))
    return sorted(found)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    """Of a folder, whatever links lead to it."""
    return stat.st_dev, stat.st_ino


def picture_files(folder: Path, without: Path | None = None) -> list[Path]:
    """The paths of `find_pictures`."""
    return [folder / found.name for found in find_pictures(folder, without)]


def needs_text(value: object, where: str, field: str) -> str:
    """`value` as a non-blank string; AttendError names the row and the field."""
    if not isinstance(value, str) or not value.strip():
        raise AttendError(
            f"{where}: {field}: is {'empty' if value in (None, '') else reprlib.repr(value)}; a text is needed"
        )
    return value.strip()


def first_folder(candidates: list[Path], field: str) -> Path:
    """The first candidate that is a folder; AttendError lists them."""
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise AttendError(f"{field}: no image folder: looked for {', '.join(map(str, candidates))}; set data.images=FOLDER")


class UnpackedOptions(DatasetOptions):
    """An adapter of files that hold the pictures themselves: they are written into the manifest's artifact."""

    unpacks: ClassVar[bool] = True

    @model_validator(mode="after")
    def _no_folder(self) -> UnpackedOptions:
        if self.images is not None:
            raise ValueError("images: these files hold their pictures themselves: leave it out")
        return self

    def image_folder(self, generated: Path) -> Path:
        return generated
