"""Adapter for a folder of pictures with their captions in it, as Hugging Face's ImageFolder has them.

FOLDER/metadata.jsonl            {"file_name": "a.jpg", "text": "a dog runs"}, a line each; or metadata.csv, .parquet
FOLDER/train/metadata.jsonl      the same in a folder for each split
FOLDER/a.jpg, FOLDER/a.txt       or the captions of each picture in a text file beside it, a line each
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.common.errors import AttendError
from tasks.datasets.base import SPLIT_NAMES, find_pictures, numbered_lines, require_folder
from tasks.datasets.faults import Faults
from tasks.datasets.table import Record, RecordOptions

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")


class ImageFolder(RecordOptions):
    """A folder of pictures with `metadata.jsonl` or .csv or .parquet, or a .txt beside each; may have split folders."""

    adapter: Literal["imagefolder"] = "imagefolder"
    image_column: str = Field(
        "file_name", description="column of the picture's file, relative to the metadata's folder"
    )
    caption_column: str = Field("text", description="column of the caption: a text, or (not in CSV) a list of texts")

    def annotation_files(self) -> list[Path]:
        folder = require_folder(self.path, "data.path")
        files = metadata_files(folder) or _text_files(folder)
        if not files:
            raise AttendError(
                f"data.path: {folder}: holds no captions: give it a metadata.jsonl (a line a picture: "
                '{"file_name": "a.jpg", "text": "a dog runs"}), or a .txt beside each picture'
            )
        return files

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return require_folder(self.images, "data.images")
        return require_folder(self.path, "data.path")

    def records(self, faults: Faults) -> Iterable[Record]:
        folder, files = require_folder(self.path, "data.path"), self.annotation_files()
        if files[0].suffix.lower() == ".txt":
            yield from self._text_file_records(folder, files)
            return
        for path in files:
            prefix, split = path.parent.relative_to(folder), _split_of(folder, path)
            for where, record in self.records_of(path, faults):
                name = record.get(self.image_column)
                if isinstance(name, str) and name.strip() and split is not None:
                    record = {**record, self.image_column: (prefix / name.strip()).as_posix()}  # noqa: PLW2901
                    record.setdefault(self.split_column, split)
                yield where, record

    def _text_file_records(self, folder: Path, files: list[Path]) -> Iterator[Record]:
        """Yield a record for each text file beside a picture, its lines the captions."""
        names = {Path(picture.name).with_suffix("").as_posix(): picture.name for picture in find_pictures(folder)}
        for path in files:
            name = names[path.relative_to(folder).with_suffix("").as_posix()]
            lines = [line.strip() for _, line in numbered_lines(path)]
            record = {self.image_column: name, self.caption_column: lines or ""}
            split = _split_of(folder, path)
            yield str(path), record if split is None else {**record, self.split_column: split}


def metadata_files(folder: Path) -> list[Path]:
    """Return the files of metadata in a folder, and in its subfolders that are named as splits."""
    splits = sorted(path for path in folder.iterdir() if path.name.lower() in SPLIT_NAMES and path.is_dir())
    return [part / name for part in (folder, *splits) for name in METADATA if (part / name).is_file()]


def _split_of(folder: Path, path: Path) -> str | None:
    """Return the name of the split folder that a file is in; None where it is in none."""
    first = path.relative_to(folder).parts[0]
    return first if first.lower() in SPLIT_NAMES and path.parent != folder else None


def _text_files(folder: Path) -> list[Path]:
    """Return the text files that have the name of a picture beside them."""
    stems = {Path(picture.name).with_suffix("") for picture in find_pictures(folder)}
    spellings = ((folder / stem.with_suffix(suffix) for suffix in (".txt", ".TXT")) for stem in stems)
    return sorted(filter(None, (next(filter(Path.is_file, paths), None) for paths in spellings)))
