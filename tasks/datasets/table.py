"""Adapter for a table, one caption per row: CSV, TSV, Parquet or JSON lines (Kaggle's Flickr `captions.txt`)."""

from __future__ import annotations

import ast
import csv
import json
import re
import reprlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from pydantic import Field, field_validator

from tasks.common.errors import AttendError
from tasks.datasets.base import (
    SPLIT_NAMES,
    NamedOptions,
    Row,
    known_encoding,
    needs_text,
    numbered_lines,
    parse_split,
    require_file,
    require_folder,
)
from tasks.datasets.documents import parse_json_or_lines, parse_text, require_objects
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.picture_finder import PictureFinder

Record = tuple[str, dict[str, Any]]  # (`file:line`, column -> value)


@dataclass
class _Named:
    """A picture as records name it: where it is named first, its split, and its captions."""

    where: str
    split: str | None
    texts: list[str]

    def add(self, where: str, name: str, split: str | None, texts: list[str]) -> None:
        """Add captions; AttendError where another split is given than before."""
        if split != self.split:
            raise AttendError(
                f"{where}: split: {name} is in {split} here and in {self.split} at {self.where}: a picture is in "
                "one split, with all its captions"
            )
        self.texts += texts


DELIMITERS = {"\t": "tab", ",": ",", ";": ";", "|": "|"}  # with their names in messages
_APART = re.compile(r"""(["'])\s+(["'])""")
TABLE_SUFFIXES = (".csv", ".txt", ".tsv", ".parquet", ".jsonl", ".json")
IMAGE_FOLDERS = ("Images", "images")


class RecordOptions(NamedOptions):
    """The base class of adapters of records with an image column, a caption column and an optional split column."""

    image_column: str
    caption_column: str | tuple[str, ...]
    split_column: str | None = Field(
        "split", description="column of the split; where no row has it, or with null, the pictures are divided"
    )
    delimiter: str | None = Field(
        None, description="character between the columns, or `tab`; default: a tab in .tsv, else a comma"
    )
    columns: tuple[str, ...] | None = Field(
        None, description="names of the columns of a text table whose first line is no header, such as [image, caption]"
    )
    lists: str | None = Field(
        None,
        min_length=1,
        description="several captions in a cell: `json` for a list as JSON or Python writes it, or what stands between "
        "them, such as `||`",
    )
    quotes: bool = Field(
        True, description="whether a field of a text table may stand in double quotes; false: they are part of the text"
    )
    encoding: str = Field("utf-8", description="encoding of a text file, such as cp1252 or utf-16")

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str | None) -> str | None:
        delimiter = "\t" if delimiter == "tab" else delimiter
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise ValueError("is not one character, such as ;, or tab")
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
        # Random splits in place of those that were named would put test pictures into training.
        missing_split = "split_column" in self.model_fields_set and self.split_column is not None
        for number, (where, record) in enumerate(self.records(faults)):
            missing_split = missing_split and self.split_column not in record
            if number == 0:
                self._check_columns(where, record)  # of a table, all rows have those of the first
            with faults.of_row():
                self._check_columns(where, record)
                name = self._name_of(record[self.image_column], where)
                value = None if self.split_column is None else record.get(self.split_column)
                split = None if value in (None, "") else parse_split(str(value), where)
                texts = self._texts(record, where)
                named.setdefault(name, _Named(where, split, [])).add(where, name, split, texts)
        if named and missing_split:
            raise AttendError(
                f"data.split_column: {self.path} has no column {self.split_column!r}: correct it, or leave it out: the "
                "pictures are then divided by data.dev_share and data.test_share"
            )
        yield from self._found_rows(named, PictureFinder.of(self.image_folder(generated)), faults)

    def _found_rows(self, named: dict[str, _Named], finder: PictureFinder, faults: Faults) -> Iterator[Row]:
        """Yield a row for each picture that records name, those of two spellings of its name together."""
        rows: dict[str, _Named] = {}
        for name, meant in finder.find(named).items():
            item = named[name]
            with faults.of_row():
                picture = finder.one(name, meant, item.where)
                split = item.split or self.split_in(name, picture, item.where)
                first = rows.setdefault(picture, _Named(item.where, split, []))
                first.add(item.where, picture, split, item.texts)
        for picture, item in rows.items():
            with faults.of_row():
                yield Row(picture, tuple(item.texts), item.split, item.where)

    @property
    def _caption_columns(self) -> tuple[str, ...]:
        return (self.caption_column,) if isinstance(self.caption_column, str) else self.caption_column

    def _texts(self, record: dict[str, Any], where: str) -> list[str]:
        """Return the captions of a record; of several columns, those that are not blank."""
        columns = self._caption_columns
        filled = [column for column in columns if record[column] not in (None, "") or len(columns) == 1]
        texts = [text for column in filled for text in captions_in(record[column], self.lists, where, column)]
        if not texts:
            raise AttendError(f"{where}: {', '.join(columns)}: are empty; a text is needed")
        return texts

    def _check_columns(self, where: str, record: dict[str, Any]) -> None:
        """Raise AttendError where a record lacks a column."""
        captions = [(column, "caption_column") for column in self._caption_columns]
        for column, setting in ((self.image_column, "image_column"), *captions):
            if column in record:
                continue
            columns = [str(name) for name in record]
            signs = [sign for sign in DELIMITERS if len(columns) == 1 and sign in columns[0]]
            advice = f"set data.{setting}=NAME"
            if signs:
                name = DELIMITERS[signs[0]]
                advice = f"the columns seem to be separated by {name!r}: set data.delimiter={name}"
            raise AttendError(f"{where}: no column {column!r}; there are: {', '.join(columns)}: {advice}")

    def _name_of(self, value: object, where: str) -> str:
        """Return the name of a record's picture; AttendError for an address, which is not downloaded."""
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        name = needs_text(str(value) if isinstance(value, int) else value, where, self.image_column)
        if name.startswith(("http://", "https://")):
            raise AttendError(
                f"{where}: {self.image_column}: is an address: download the pictures, and give their files"
            )
        return name

    def records_of(self, path: Path, faults: Faults) -> Iterable[Record]:
        """Return the records of one file, which is read as the ending of its name says."""
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            return _parquet_records(path)
        if suffix == ".jsonl":
            return _json_line_records(path, faults)
        if suffix == ".json":
            return _json_records(path)
        # A byte order mark is no part of the first column's name.
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        form = _Form(self.delimiter or usual_delimiter(path), encoding, self.quotes)
        return _text_records(path, form, faults, self.columns)


class Table(RecordOptions):
    """A CSV (also `.txt`), TSV, Parquet, .jsonl or .json file of captions, or a folder with one for each split.

    The pictures are in its folder, or in `images/` there. A file of a folder is named by its split: `train.csv`.
    """

    adapter: Literal["table"] = "table"
    image_column: str = Field("image", description="column of the picture's file")
    caption_column: str | tuple[str, ...] = Field(
        "caption",
        description="column of the caption: a text, or a list of texts; or several columns: [caption_1, caption_2]",
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

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return require_folder(self.images, "data.images")
        return usual_images(self.annotation_files()[0].parent)

    def records(self, faults: Faults) -> Iterable[Record]:
        for path in self.annotation_files():
            for where, record in self.records_of(path, faults):
                if self.path.expanduser().is_dir():
                    record.setdefault(self.split_column or "split", path.stem)
                yield where, record


def usual_images(folder: Path) -> Path:
    """Return the folder of the pictures of a file of captions in `folder`: `images/` there, or the folder itself."""
    return next((folder / name for name in IMAGE_FOLDERS if (folder / name).is_dir()), folder)


def is_table(path: Path) -> bool:
    """Return whether a file is a table by the ending of its name, in letters of either case."""
    return path.suffix.lower() in TABLE_SUFFIXES


def split_tables(folder: Path) -> list[Path]:
    """Return the tables of a folder that are named by their splits, such as train.csv."""
    files = sorted(path for path in folder.iterdir() if is_table(path) and path.is_file())
    return [path for path in files if path.stem.lower() in SPLIT_NAMES]


def usual_delimiter(path: Path) -> str:
    """Return the character between the columns of a table of text where no setting names it: a tab in .tsv."""
    return "\t" if path.suffix.lower() == ".tsv" else ","


def listed_texts(text: str, form: str, where: str) -> list[Any]:
    """Return the texts in a cell. form: see `RecordOptions.lists`. Raise AttendError where it holds no list."""
    if form != "json":
        return [part.strip() for part in text.split(form) if part.strip()]
    if not text.strip().startswith("["):
        return [text]
    # NumPy and pandas write no commas between the texts of an array.
    text = _APART.sub(r"\1, \2", text)
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(found, list):
            return found
    raise AttendError(f"{where}: is {reprlib.repr(text)}; a list of captions is needed, because data.lists is set")


def captions_in(value: object, lists: str | None, where: str, field: str) -> list[str]:
    """Return the captions in a cell: a text, a list of texts, or a text that is a list (see `RecordOptions.lists`)."""
    if lists is not None and isinstance(value, str):
        value = listed_texts(value, lists, f"{where}: {field}")
    if isinstance(value, list):
        value = [text_of(item) for item in value]
    if not isinstance(value, list) or len(value) < 2:
        return [needs_text(text, where, field) for text in (value if isinstance(value, list) and value else [value])]
    return [needs_text(text, where, f"{field}[{number}]") for number, text in enumerate(value)]


class _Form(NamedTuple):
    """How a table of text is written."""

    delimiter: str
    encoding: str
    quotes: bool

    def reader(self, file: TextIO) -> Any:
        """Return csv's reader of an opened file."""
        if self.quotes:
            return csv.reader(file, delimiter=self.delimiter, strict=True)
        return csv.reader(file, delimiter=self.delimiter, strict=True, quoting=csv.QUOTE_NONE)


def text_of(item: object) -> object:
    """Return the text of an object such as `{"raw": "a dog", "id": 3}` in a list of captions; others as they are."""
    if isinstance(item, dict):
        return next((item[field] for field in ("raw", "caption", "text", "sentence") if field in item), item)
    return item


def _text_records(path: Path, form: _Form, faults: Faults, columns: Sequence[str] | None) -> Iterator[Record]:
    """Yield the records of a table of text. columns: their names, where its first line is a record; else None."""
    namer = "the first line names" if columns is None else "data.columns names"
    delimiter, encoding = form.delimiter, form.encoding
    with path.open(encoding=encoding, newline="") as file:
        reader = form.reader(file)
        try:
            header = next(reader, None) if columns is None else list(columns)
            if header is not None and columns is None and "".join(header).startswith("sep="):
                header = next(reader, None)  # Excel's line on the delimiter
            if header is None:
                raise AttendError(f"{path}: is empty: its first line must name the columns")
            _check_names(path, header)
            while True:
                start = reader.line_num + 1
                values = next(reader, None)
                if values is None:
                    return
                if not values:
                    continue
                if len(values) != len(header):
                    faults.add(
                        AttendError(
                            f"{path}:{start}: has {len(values)} fields, {namer} {len(header)} "
                            f"({', '.join(header)}): quote a field that holds {delimiter!r}"
                        )
                    )
                    continue
                yield f"{path}:{start}", dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise AttendError(f"{path}:{reader.line_num}: is not well-formed: {error}") from None
        except UnicodeError:
            name = "UTF-8" if encoding == "utf-8-sig" else encoding
            raise AttendError(
                f"{path}:{reader.line_num + 1}: is not {name} text: set data.encoding, for instance to cp1252 or utf-16"
            ) from None


def _check_names(path: Path, columns: Sequence[str]) -> None:
    """Raise AttendError where two columns have the same name: one would hide the other."""
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise AttendError(
            f"{path}: the column {twice[0]!r} is there {columns.count(twice[0])} times: rename all but one, or give "
            "each caption a row of its own"
        )


def _json_line_records(path: Path, faults: Faults) -> Iterator[Record]:
    for number, line in numbered_lines(path):
        with faults.of_row():
            record = parse_text(line, path, number)
            if not isinstance(record, dict):
                raise AttendError(f"{path}:{number}: is not an object")
            yield f"{path}:{number}", _with_answer(record)


def _json_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON list, also of the only list in an object.

    An object whose values are texts, or lists of texts, has a record `image` and `caption` for each of its names.
    """
    document = parse_json_or_lines(path)
    if isinstance(document, dict) and document and all(map(_are_captions, document.values())):
        for name, texts in document.items():
            yield f"{path}: {name}", {"image": name, "caption": texts}
        return
    if isinstance(document, dict) and document and all(isinstance(value, dict) for value in document.values()):
        for name, record in document.items():
            yield f"{path}: {name}", {"image": name, **record}
        return
    if (
        isinstance(document, dict)
        and document
        and all(str(name).lower() in SPLIT_NAMES and isinstance(value, list) for name, value in document.items())
    ):
        for split in document:
            for number, record in enumerate(require_objects(document, split, str(path))):
                yield f"{path}: {split}[{number}]", {**_with_answer(record), "split": split}
        return
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list) and value]
        document = lists[0] if len(lists) == 1 else document
    for number, record in enumerate(require_objects({"the document": document}, "the document", str(path))):
        yield f"{path}: [{number}]", _with_answer(record)


def _with_answer(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the first answer in place of a conversation, as LLaVA and chat models are tuned on.

    That is `conversations: [{from: human, value: ...}, {from: gpt, value: ...}]`, or `messages` with `role` and
    `content`.
    """
    for field, who, said in (("conversations", "from", "value"), ("messages", "role", "content")):
        turns = record.get(field)
        if isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
            answers = [turn.get(said) for turn in turns if turn.get(who) in ("gpt", "assistant")]
            return {**record, field: answers[0] if answers else None}
    return record


def _are_captions(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value))


def _parquet_records(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        _check_names(path, table.column_names)
        records = table.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise AttendError(f"{path}: is not a Parquet file: {' '.join(str(error).split())[:120]}") from None
    for number, record in enumerate(records):
        yield f"{path}: row {number}", record
