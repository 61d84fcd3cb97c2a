"""The rows of a file of captions, one for each picture: CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.common.files import atomic_file
from tasks.datasets.base import numbered_lines

Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("file_name", pa.string()),
        ("folder", pa.string()),
        ("text", pa.string()),
        ("log_probability", pa.float64()),
        ("confidence", pa.float64()),
        ("error", pa.string()),
        ("digest", pa.string()),
        ("model", pa.string()),
    ]
)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file of captions, none if it does not exist; raise AttendError for another kind of file."""
    if not path.exists():
        return []
    try:
        if path.suffix == ".parquet":
            _check_columns(path, pq.read_schema(path).names)
            return [_row_of(row) for row in pq.read_table(path).to_pylist()]
        if path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file)
                _check_columns(path, reader.fieldnames or ())
                return [_row_of_csv(row) for row in reader]
        rows, number = [], 0
        for number, line in numbered_lines(path):  # noqa: B007 -- named in the error below
            row = dict(json.loads(line))
            _check_columns(path, row)
            rows.append(_row_of(row))
        return rows
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError):
        if path.suffix != ".jsonl":
            raise AttendError(f"--out: {path}: is not a file of captions: give another name, or remove it") from None
        raise AttendError(f"--out: {path}:{number}: is not a line of captions: give another name") from None


def _check_columns(path: Path, names: Iterable[str]) -> None:
    """Raise AttendError if a file of captions has additional columns, which would be lost."""
    added = sorted(set(names) - set(SCHEMA.names))
    if added and set(SCHEMA.names) <= set(names):
        raise AttendError(
            f"--out: {path}: has columns of its own ({', '.join(added)}), which would be lost: give another name"
        )


def _row_of(values: Row) -> Row:
    """Return a row with only the columns of `SCHEMA`, in order. Raises KeyError if one is missing."""
    return {name: values[name] for name in SCHEMA.names}


def _row_of_csv(row: dict[str, str]) -> Row:
    """Return a row of a CSV file, in which an empty field means null."""
    values = {name: value or None for name, value in _row_of(row).items()}
    for name in ("log_probability", "confidence"):
        values[name] = None if (number := values[name]) is None else float(number)
    if values["error"] is None:
        values["text"] = values["text"] or ""
    return values


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write all rows to a file atomically: an existing file is replaced as a whole or not at all."""
    rows = list(map(_row_of, rows))
    with atomic_file(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), temporary)
        elif path.suffix == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, SCHEMA.names)
                writer.writeheader()
                writer.writerows(rows)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
