"""Adapter for a table, one caption per row: CSV, TSV, Parquet or JSON lines (Kaggle's Flickr `captions.txt`)."""

from __future__ import annotations

import re
import reprlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from tasks.common.errors import AttendError
from tasks.common.files import check_name
from tasks.datasets.base import (
    SPLIT_NAMES,
    NamedOptions,
    Row,
    known_encoding,
    needs_text,
    parse_split,
    require_file,
)
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.picture_finder import PictureFinder
from tasks.datasets.records import (
    AFTER_NAME,
    ASKED,
    DELIMITERS,
    Lists,
    Record,
    TextForm,
    captions_of,
    columns_of,
    records_of,
    usual_delimiter,
)


@dataclass
class _Named:
    """A picture in the records: where it is first named, its split, and its captions."""

    where: str
    split: str | None
    texts: list[str]

    def add(self, where: str, name: str, split: str | None, texts: list[str]) -> None:
        """Add captions; AttendError if the split differs from before."""
        if split != self.split:
            raise AttendError(
                f"{where}: split: {name} is in {split} here and in {self.split} at {self.where}: a picture is in "
                "one split, with all its captions"
            )
        self.texts += texts


TABLE_SUFFIXES = (".csv", ".txt", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")
IMAGE_FOLDERS = ("Images", "images")


def _may_differ(where: str) -> bool:
    """Return whether a record is of JSON, where each has fields of its own. where: its file and line."""
    return re.search(r"\.(json|jsonl|ndjson):", where, re.IGNORECASE) is not None


class RecordOptions(NamedOptions):
    """The base class of adapters of records with an image column, a caption column and an optional split column."""

    image_column: str
    caption_column: str | tuple[str, ...]
    split_column: str | None = Field(
        "split", description="column of the split; if no row has it, or if null, attend assigns the splits"
    )
    delimiter: str | None = Field(
        None,
        description="character between the columns, or `tab`; default: a tab in .tsv, else a comma; `name` for lines "
        "that begin with a picture's file name, then a blank, colon or dash, and the caption",
    )
    columns: tuple[str, ...] | None = Field(
        None, description="names of the columns of a text table without a header line, such as [image, caption]"
    )
    lists: Lists = None
    quotes: bool = Field(
        True, description="whether fields of a text table may be in double quotes; false: quotes are part of the text"
    )
    encoding: str = Field("utf-8", description="encoding of a text file, such as cp1252 or utf-16")

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str | None) -> str | None:
        delimiter = "\t" if delimiter == "tab" else delimiter
        if delimiter not in (None, AFTER_NAME) and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise ValueError("is not one character, such as ;, nor tab or name")
        return delimiter

    _check_encoding = field_validator("encoding")(known_encoding)

    def key_part(self) -> dict[str, Any]:
        part = super().key_part()
        if self.path.suffix and part.get("delimiter") == usual_delimiter(self.path):
            del part["delimiter"]
        return part

    @abstractmethod
    def records(self, faults: Faults) -> Iterable[Record]:
        """Return each record with its position as `file:line`."""

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        named: dict[str, _Named] = {}  # by the picture's name in the records
        # Random splits in place of the configured ones would put test pictures into training.
        missing_split = "split_column" in self.model_fields_set and self.split_column is not None
        for number, (where, record) in enumerate(self.records(faults)):
            missing_split = missing_split and self.split_column not in record
            if number == 0 and not _may_differ(where):
                self._check_columns(where, record)  # outside `of_row`: all rows of such a table have the same columns
            with faults.of_row():
                self._check_columns(where, record)
                name = self._name_of(record[self.image_column], where)
                value = None if self.split_column is None else record.get(self.split_column)
                split = None if value in (None, "") else parse_split(str(value), where)
                texts = captions_of(record, self.caption_column, self.lists, where)
                named.setdefault(name, _Named(where, split, [])).add(where, name, split, texts)
        if named and missing_split:
            raise AttendError(
                f"data.split_column: {self.path} has no column {self.split_column!r}: correct it, or leave it out: the "
                "pictures are then divided by data.dev_share and data.test_share"
            )
        yield from self._found_rows(named, PictureFinder.of(self.image_folder(generated)), faults)

    def _found_rows(self, named: dict[str, _Named], finder: PictureFinder, faults: Faults) -> Iterator[Row]:
        """Yield a row for each picture that records name; different spellings of its name are merged."""
        rows: dict[str, _Named] = {}
        pictures = finder.find(named, any_ending=True)
        level = self.level_of_splits(pictures)
        for name, meant in pictures.items():
            item = named[name]
            with faults.of_row():
                picture = finder.one(name, meant, item.where)
                split = item.split or self.split_in(name, picture, level, item.where)
                first = rows.setdefault(picture, _Named(item.where, split, []))
                first.add(item.where, picture, split, item.texts)
        for picture, item in rows.items():
            with faults.of_row():
                yield Row(picture, tuple(item.texts), item.split, item.where)

    def _check_columns(self, where: str, record: dict[str, Any]) -> None:
        """Raise AttendError if a record lacks a column."""
        captions = [(column, "caption_column") for column in columns_of(self.caption_column)]
        for column, setting in ((self.image_column, "image_column"), *captions):
            if column in record:
                continue
            columns = [str(name) for name in record if name != ASKED]
            signs = [sign for sign in DELIMITERS if len(columns) == 1 and sign in columns[0]]
            also = "add it, or " if _may_differ(where) else ""
            advice = f"{also}set data.{setting}=NAME"
            if signs:
                name = DELIMITERS[signs[0]]
                advice = f"the columns seem to be separated by {name!r}: set data.delimiter={name}"
            raise AttendError(f"{where}: no column {column!r}; there are: {', '.join(columns)}: {advice}")

    def _name_of(self, value: object, where: str) -> str:
        """Return the name of a record's picture."""
        value = only(value)
        if value in (None, ""):
            raise AttendError(
                f"{where}: {self.image_column}: is empty: name the picture in each row, also where the row above does"
            )
        name = needs_text(str(value) if isinstance(value, int) else value, where, self.image_column)
        try:
            return check_name(name)
        except ValueError as error:
            raise AttendError(f"{where}: {reprlib.repr(name)}: the picture's name {error}") from None

    def records_of(self, path: Path, faults: Faults) -> Iterable[Record]:
        """Return the records of one file, whose suffix determines its format."""
        form = TextForm(self.delimiter or usual_delimiter(path), self.encoding, self.quotes, self.columns)
        return records_of(path, form, faults)


class Table(RecordOptions):
    """A CSV (also `.txt`), TSV, Parquet, .jsonl or .json file of captions, or a folder with one for each split.

    The pictures are in its folder, or in `images/` there. A file of a folder is named by its split: `train.csv`.
    """

    adapter: Literal["table"] = "table"
    image_column: str = Field("image", description="column of the picture file")
    caption_column: str | tuple[str, ...] = Field(
        "caption",
        description="column of the captions: a text or a list of texts; or several columns: [caption_1, caption_2]",
    )

    def annotation_files(self) -> list[Path]:
        if self.path.expanduser().is_dir():
            files = split_tables(self.path.expanduser())
            if not files:
                raise AttendError(
                    f"data.path: {self.path}: no train.csv or the like in it: give the file of the captions"
                )
            return files
        path = require_file(self.path, "data.path")
        if not is_table(path):
            raise AttendError(f"data.path: {path}: a table ends in {', '.join(TABLE_SUFFIXES)}")
        return [path]

    def usual_folder(self) -> Path:
        return usual_images(self.annotation_files()[0].parent)

    def records(self, faults: Faults) -> Iterable[Record]:
        for path in self.annotation_files():
            for where, record in self.records_of(path, faults):
                if self.path.expanduser().is_dir():
                    record = with_split(record, self.split_column, path.stem)  # noqa: PLW2901
                yield where, record


def only(value: object) -> object:
    """Return the item of a list of one; any other value unchanged."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def with_split(record: dict[str, Any], column: str | None, split: str) -> dict[str, Any]:
    """Return a record with the split of its file or folder, unless its `column` (`split` if None) has one."""
    column = column or "split"
    is_blank = record.get(column) is None or not str(record[column]).strip()
    return {**record, column: split} if is_blank else record


def usual_images(folder: Path) -> Path:
    """Return the folder of the pictures of a file of captions in `folder`: `images/` there, or the folder itself."""
    return next((folder / name for name in IMAGE_FOLDERS if (folder / name).is_dir()), folder)


def is_table(path: Path) -> bool:
    """Return whether a file is a table by its suffix, in any letter case."""
    return path.suffix.lower() in TABLE_SUFFIXES


def split_tables(folder: Path) -> list[Path]:
    """Return the tables of a folder that are named after splits, such as train.csv.

    Raises AttendError if two have the same name, such as train.csv and train.json: one may be a copy of the other.
    """
    files = sorted(path for path in folder.iterdir() if is_table(path) and path.is_file())
    named: dict[str, Path] = {}
    for path in files:
        if path.stem.lower() in SPLIT_NAMES and (other := named.setdefault(path.stem.lower(), path)) != path:
            raise AttendError(f"{folder}: has both {other.name} and {path.name}: keep one, or give one as data.path")
    return list(named.values())
