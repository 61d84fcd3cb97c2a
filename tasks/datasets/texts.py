"""Adapter for pictures with a text file each: `a.jpg` and `a.txt`, as used to train image generators.

FOLDER/a.jpg, FOLDER/a.txt                  also a.caption, a.jpg.txt, or a.json with a field such as `caption`
FOLDER/images/a.jpg, FOLDER/captions/a.txt  also in two parallel folders
FOLDER/train/a.jpg, FOLDER/train/a.txt      also in a folder for each split
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.common.wording import counted
from tasks.datasets.base import (
    NamedOptions,
    Row,
    folder_split,
    known_encoding,
    require_folder,
    shown_files,
    unicode_of,
)
from tasks.datasets.documents import read_json
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.picture_finder import PictureFinder
from tasks.datasets.records import captions_in

Lines = Annotated[
    Literal["captions", "paragraph"],
    Field(description="`captions`: each line of a text is a caption; `paragraph`: all lines together are one"),
]
_MOST, _NEARLY_ALL = 0.6, 0.9  # shares of texts
_WIDE = (55, 85)  # characters of a line that was wrapped at the page width
TEXT_SUFFIXES = (".txt", ".caption", ".json")
# Names of Google Photos' sidecar files, such as IMG_1.jpg.supplemental-metadata(2).json, which may be truncated:
# IMG_1.jpg.suppl.json. The number belongs to the picture: IMG_1(2).jpg.
_SIDECAR = re.compile(r"(?P<stem>.+)(?P<ending>\.[a-z0-9]{3,4})(\.s[a-z.-]*)?(?P<number>\(\d+\))?", re.IGNORECASE)


class Texts(NamedOptions):
    """A folder of pictures, each with a text file of the same name: .txt, .caption, or .json with a caption in it."""

    adapter: Literal["texts"] = "texts"
    suffix: str = Field(".txt", pattern=r"^\.\w+$", description="suffix of the text files: .txt, .caption or .json")
    lines: Lines = "captions"
    encoding: str = Field("utf-8", description="encoding of texts that are not in UTF-8, such as cp1252")
    caption_field: str = Field(
        "caption", description="field of a .json file that contains the caption, or a list of captions"
    )

    _check_encoding = field_validator("encoding")(known_encoding)

    def annotation_files(self) -> list[Path]:
        folder = require_folder(self.path, "data.path")
        finder = PictureFinder.of(self.image_folder(folder))
        files = [item.text for item in texts_of(folder, self.suffix, finder) if item.pictures]
        if not files:
            raise AttendError(f"data.path: {folder}: no {self.suffix} file in it has the name of a picture")
        return files

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        folder = require_folder(self.path, "data.path")
        finder = PictureFinder.of(self.image_folder(folder))
        texts = texts_of(folder, self.suffix, finder)
        without = [item.text.name for item in texts if not item.pictures]
        if without:
            number = counted(len(without), f"{self.suffix} file")
            log.info(f"{folder}: {number} with no picture of this name, not read, such as {without[0]}")
        level = self.level_of_splits({item.name: item.pictures for item in texts})
        for text, name, pictures in texts:
            if not pictures:
                continue
            with faults.of_row():
                picture = finder.one(name, pictures, str(text))
                yield Row(
                    picture, tuple(self._captions(text)), self.split_in(name, picture, level, str(text)), str(text)
                )

    def _captions(self, path: Path) -> list[str]:
        """Return the captions in a text file; AttendError if there are none."""
        if self.suffix == ".json":
            value = read_json(path).get(self.caption_field)
            texts = [] if value in (None, [], "") else captions_in(value, None, str(path), self.caption_field)
        else:
            texts = captions_of(read_text(path, self.encoding), self.lines)
        texts = [text.strip() for text in texts if text.strip()]
        if not texts:
            field = f"{self.caption_field}: " if self.suffix == ".json" else ""
            raise AttendError(f"{path}: {field}is empty; a text is needed")
        return texts


class TextFile(NamedTuple):
    """A text file, its name in the folder without suffix, and the pictures that it may belong to."""

    text: Path
    name: str
    pictures: list[str]


def texts_of(folder: Path, suffix: str, finder: PictureFinder) -> list[TextFile]:
    """Return the files below a folder that end in `suffix`, with the pictures of the same name."""
    with_pictures = {name.rpartition("/")[0] for name in finder.names}
    result = []
    for path, files in shown_files(folder, follow_links=True):
        parent = path.relative_to(folder).as_posix().removeprefix(".")
        for file in files:
            if file.lower().endswith(suffix):
                name = file[: -len(suffix)]
                pictures = finder.named(name) or finder.named(_of_sidecar(name))
                if parent in with_pictures:
                    pictures = [picture for picture in pictures if picture.rpartition("/")[0] == parent]
                else:
                    pictures = [picture for picture in pictures if _is_parallel(parent, picture.rpartition("/")[0])]
                result.append(TextFile(path / file, f"{parent}/{name}" if parent else name, pictures))
    return _next_to_pictures_first(result) if any(item.pictures for item in result) else _by_names_alone(result, finder)


def _next_to_pictures_first(files: list[TextFile]) -> list[TextFile]:
    """Return text files without pictures in other folders that have a text next to them."""
    near = {picture for item in files for picture in item.pictures if _folder(picture) == _folder(item.name)}
    return [
        item._replace(pictures=[own for own in item.pictures if own not in near or _folder(own) == _folder(item.name)])
        for item in files
    ]


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _by_names_alone(files: list[TextFile], finder: PictureFinder) -> list[TextFile]:
    """Return text files with the pictures of the same name in any folder.

    They are returned unchanged unless nearly every name matches one picture, and most pictures have a text.
    """
    named = [item._replace(pictures=finder.named(item.name.rpartition("/")[2])) for item in files]
    pictures = [item.pictures[0] for item in named if len(item.pictures) == 1]
    is_clear = len(pictures) == len(set(pictures)) and len(pictures) >= max(
        _NEARLY_ALL * len(named), _MOST * len(finder.names)
    )
    return named if is_clear else files


def _of_sidecar(name: str) -> str:
    """Return the name of the picture that a sidecar file of this name, without suffix, describes."""
    match = _SIDECAR.fullmatch(name)
    return name if match is None else f"{match['stem']}{match['number'] or ''}{match['ending']}"


def _is_parallel(folder: str, other: str) -> bool:
    """Return whether the paths of two folders differ in only one part, like captions/train and images/train."""
    parts, others = folder.split("/"), other.split("/")
    if folder_split(parts) != folder_split(others) and None not in (folder_split(parts), folder_split(others)):
        return False
    if len(parts) == len(others):
        return sum(part != own for part, own in zip(parts, others, strict=True)) == 1
    longer, shorter = sorted((parts, others), key=len, reverse=True)
    return shorter in ([""], longer[:-1], longer[1:]) and len(longer) - len(shorter) <= 1


def read_text(path: Path, encoding: str) -> str:
    """Return the content of a text file in UTF-8, in UTF-16 (see `unicode_of`), or else in `encoding`.

    Raises AttendError if it is in none of these.
    """
    data = path.read_bytes()
    for name in (unicode_of(data), encoding):
        try:
            return data.decode(name)
        except UnicodeError:
            continue
    raise AttendError(f"{path}: is not {encoding.upper()} text: set data.encoding, for instance to cp1252")


def is_unicode(data: bytes) -> bool:
    """Return whether the bytes of a text are UTF-8, or UTF-16 (see `unicode_of`)."""
    try:
        data.decode(unicode_of(data))
    except UnicodeError:
        return False
    return True


def lines_of(texts: list[str]) -> dict[str, Lines]:
    """Return the setting `lines` that suits these texts; empty if each has one line.

    Lines form a paragraph if they break sentences: later lines begin in lower case after a capitalised first, only the
    last line ends in a full stop, or all lines except the last are about as wide as a page.
    """
    several = [lines for text in texts if len(lines := captions_of(text, "captions")) > 1]
    if not several:
        return {}
    firsts, later = [lines[0] for lines in several], [line for lines in several for line in lines[1:]]
    inner, lasts = [line for lines in several for line in lines[:-1]], [lines[-1] for lines in several]
    goes_on = _share(firsts, lambda line: line[0].isupper()) > _MOST and _share(later, lambda line: line[0].islower())
    open_ended = _share(lasts, _is_ended) > _MOST and 1 - _share(inner, _is_ended)
    wide = _share(inner, lambda line: _WIDE[0] <= len(line) <= _WIDE[1])
    is_short_at_end = sum(map(len, lasts)) / len(lasts) < 0.75 * sum(map(len, inner)) / len(inner)
    is_paragraph = goes_on > 0.4 or open_ended > 0.5 or (wide > 0.9 and is_short_at_end)
    return {"lines": "paragraph" if is_paragraph else "captions"}


def _share(lines: list[str], holds: Callable[[str], bool]) -> float:
    return sum(map(holds, lines)) / len(lines)


def _is_ended(line: str) -> bool:
    return line.rstrip("\"'\u201d\u2019)] ").endswith((".", "!", "?", "\u2026", "\u3002"))


def captions_of(text: str, lines: Lines) -> list[str]:
    """Return the captions in a text: each non-blank line, or all of them joined."""
    lines_with_text = [line.strip() for line in text.splitlines() if line.strip()]
    return lines_with_text if lines == "captions" else [" ".join(lines_with_text)] if lines_with_text else []
