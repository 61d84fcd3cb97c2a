"""Reading JSON documents whose shape is checked field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.common.errors import AttendError


def parse_json(path: Path) -> Any:
    """What a JSON file holds; AttendError where it is missing, or gives line and column of what does not parse."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise AttendError(f"{path}:{error.lineno}: is not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError:
        raise AttendError(f"{path}: is not UTF-8 text") from None
    except (FileNotFoundError, IsADirectoryError):
        raise AttendError(f"{path}: no such file") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; AttendError as of `parse_json`."""
    value = parse_json(path)
    if not isinstance(value, dict):
        raise AttendError(f"{path}: the document is a {type(value).__name__}, an object is needed")
    return value


def list_in(document: dict[str, Any], field: str, where: str) -> list[dict[str, Any]]:
    """`document[field]` as a list of objects; AttendError names the item that is none."""
    items = document.get(field)
    if not isinstance(items, list):
        raise AttendError(f"{where}: {field}: is {'missing' if items is None else 'not a list'}")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise AttendError(f"{where}: {field}[{index}]: is not an object")
    return items


def field_of(item: dict[str, Any], field: str, kind: type, where: str) -> Any:
    """`item[field]`, which must be of `kind`; AttendError names the field."""
    value = item.get(field)
    if not isinstance(value, kind) or isinstance(value, bool):
        what = "is missing" if value is None else f"is {value!r}, not {kind.__name__}"
        raise AttendError(f"{where}.{field}: {what}")
    return value
