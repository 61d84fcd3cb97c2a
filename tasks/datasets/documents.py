"""Readers of JSON documents that check the type of each field."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.common.errors import AttendError
from tasks.datasets.base import unicode_of

ObjectOf = Callable[[list[tuple[str, Any]]], Any]


def json_text(path: Path) -> str:
    """Return the text of a JSON file; raise AttendError if it is missing, or is no text."""
    try:
        data = path.read_bytes()
        return data.decode(unicode_of(data))
    except UnicodeDecodeError:
        raise AttendError(f"{path}: is not UTF-8 text: save it as UTF-8") from None
    except (FileNotFoundError, IsADirectoryError):
        raise AttendError(f"{path}: no such file") from None


def parse_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raise AttendError as `json_text` does, or if it cannot be parsed, with line and column.
    """
    return parse_text(json_text(path), path)


def parse_json_or_lines(path: Path, object_of: ObjectOf | None = None) -> Any:
    """Return the content of a JSON file, or the list of the objects in a file with one per line.

    object_of: see `parse_text`. Raise AttendError as `parse_json` does.
    """
    text = json_text(path)
    try:
        return parse_text(text, path, object_of=object_of)
    except AttendError:
        lines = text.splitlines()
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines if line.strip()):
            raise
        return [parse_text(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]


def parse_text(text: str | bytes, source: Path | str, line: int = 1, object_of: ObjectOf | None = None) -> Any:
    """Return the value of a JSON text; raise AttendError, with line and column, if it cannot be parsed.

    source: the file it is from, for the message. line: the number of its first line there. object_of: makes each object
    of its names and values; default: a dict, which keeps only the last value of a name that is there twice.
    """
    try:
        return json.loads(text, object_pairs_hook=object_of)
    except json.JSONDecodeError as error:
        where = f"{source}:{line + error.lineno - 1}"
        raise AttendError(f"{where}: is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise AttendError(f"{source}:{line}: is JSON nested too deeply") from None
    except ValueError as error:  # bytes that are not UTF-8, or a number of thousands of digits
        raise AttendError(f"{source}:{line}: is not JSON: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise AttendError as `parse_json` does, or if it holds no object."""
    document = parse_json(path)
    if not isinstance(document, dict):
        raise AttendError(f"{path}: the document is a {type(document).__name__}, an object is needed")
    return document


def require_objects(document: dict[str, Any], field: str, where: str) -> list[dict[str, Any]]:
    """Return `document[field]`; raise AttendError, which names the item, unless it is a list of objects."""
    items = document.get(field)
    if not isinstance(items, list):
        raise AttendError(f"{where}: {field}: is {'missing' if items is None else 'not a list'}")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise AttendError(f"{where}: {field}[{index}]: is not an object")
    return items


def require_field(item: dict[str, Any], field: str, kind: type, where: str) -> Any:
    """Return `item[field]`; raise AttendError, which names the field, unless it is of type `kind`."""
    value = item.get(field)
    if not isinstance(value, kind) or isinstance(value, bool):
        problem = "is missing" if value is None else f"is {reprlib.repr(value)}, not {kind.__name__}"
        raise AttendError(f"{where}.{field}: {problem}")
    return value
