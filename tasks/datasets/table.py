"""Adapters for one caption per row: CSV, TSV, Parquet (Kaggle's Flickr `captions.txt`), and `metadata.jsonl`."""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import (
    DatasetOptions,
    Row,
    needs_text,
    numbered_lines,
    parse_split,
    require_file,
    require_folder,
)
from tasks.datasets.documents import parse_text

Record = tuple[str, dict[str, Any]]  # (`file:line`, column -> value)


class _RecordOptions(DatasetOptions):
    """The base class of adapters of records with an image column, a caption column and an optional split column."""

    image_column: str
    caption_column: str
    split_column: str = "split"

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return require_folder(self.images, "data.images")
        folder = self.annotation_files()[0].parent
        return next((folder / name for name in ("Images", "images") if (folder / name).is_dir()), folder)

    @abstractmethod
    def records(self) -> Iterable[Record]:
        """Return each record with its position as `file:line`."""

    def rows(self, generated: Path) -> Iterator[Row]:
        captions: dict[str, list[str]] = {}
        first: dict[str, tuple[str, str | None]] = {}  # picture -> (position of its first record, its split)
        # Random splits in place of those that were named would put test pictures into training.
        missing_split = "split_column" in self.model_fields_set
        for where, record in self.records():
            missing_split = missing_split and self.split_column not in record
            for column in (self.image_column, self.caption_column):
                if column not in record:
                    raise AttendError(f"{where}: no column {column!r}; there are: {', '.join(map(str, record))}")
            name = needs_text(record[self.image_column], where, self.image_column)
            value = record.get(self.split_column)
            split = parse_split(str(value), where) if value not in (None, "") else None
            if name in first and first[name][1] != split:
                raise AttendError(
                    f"{where}: {self.split_column}: {name} is in {split} here and in {first[name][1]} at "
                    f"{first[name][0]}: a picture is in one split, with all its captions"
                )
            first.setdefault(name, (where, split))
            texts = record[self.caption_column]
            for text in texts if isinstance(texts, list) else [texts]:
                captions.setdefault(name, []).append(needs_text(text, where, self.caption_column))
        if first and missing_split:
            raise AttendError(
                f"data.split_column: {self.path} has no column {self.split_column!r}: correct it, or leave it out: the "
                "pictures are then divided by data.dev_share and data.test_share"
            )
        for name, (where, split) in first.items():
            yield Row(name, tuple(captions.get(name, ())), split, where)


class Table(_RecordOptions):
    """A CSV (also `.txt`), TSV or Parquet file of captions; the pictures are in `Images/`, `images/` or beside it."""

    adapter: Literal["table"] = "table"
    image_column: str = "image"
    caption_column: str = "caption"

    def annotation_files(self) -> list[Path]:
        return [require_file(self.path, "data.path")]

    def records(self) -> Iterable[Record]:
        path = self.annotation_files()[0]
        if path.suffix == ".parquet":
            return _parquet_records(path)
        if path.suffix in (".csv", ".txt", ".tsv"):
            return _text_records(path, "\t" if path.suffix == ".tsv" else ",")
        raise AttendError(f"data.path: {path}: a table ends in .csv, .txt, .tsv or .parquet")


class Jsonl(_RecordOptions):
    """A folder of pictures with `metadata.jsonl`: one object per line, its caption a text or a list of texts."""

    adapter: Literal["jsonl"] = "jsonl"
    image_column: str = "file_name"
    caption_column: str = "text"

    def annotation_files(self) -> list[Path]:
        path = self.path.expanduser()
        return [require_file(path / "metadata.jsonl" if path.is_dir() else path, "data.path")]

    def records(self) -> Iterable[Record]:
        path = self.annotation_files()[0]
        for number, line in numbered_lines(path):
            record = parse_text(line, path, number)
            if not isinstance(record, dict):
                raise AttendError(f"{path}:{number}: is not an object")
            yield f"{path}:{number}", record


def _text_records(path: Path, delimiter: str) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(reader, None)
            if header is None:
                raise AttendError(f"{path}: is empty: its first line must name the columns")
            while True:
                start = reader.line_num + 1
                values = next(reader, None)
                if values is None:
                    return
                if not values:
                    continue
                if len(values) != len(header):
                    raise AttendError(
                        f"{path}:{start}: has {len(values)} fields, the first line names {len(header)} "
                        f"({', '.join(header)}): quote a field that holds {delimiter!r}"
                    )
                yield f"{path}:{start}", dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise AttendError(f"{path}:{reader.line_num}: is not well-formed: {error}") from None
        except UnicodeDecodeError:
            raise AttendError(f"{path}:{reader.line_num + 1}: is not UTF-8 text") from None


def _parquet_records(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        records = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise AttendError(f"{path}: is not a Parquet file: {' '.join(str(error).split())[:120]}") from None
    for number, record in enumerate(records):
        yield f"{path}: row {number}", record
