"""Requests -> pictures and parameters: the forms that MLflow's scoring server takes, and a picture by itself."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import itertools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from flows.serving.limits import Limits, RefusedError
from tasks.common.errors import nearest

_COLUMN = "image"
_FORMS = ("dataframe_split", "dataframe_records", "inputs", "instances")
# Brackets and commas of a request: Python makes an object of what is between, which may take fifty times its bytes.
_MOST_SIGNS = 100_000
Values = dict[str, int | float | bool]


class Asked(NamedTuple):
    """Encoded photographs (or what was sent in their place), and the parameters given."""

    pictures: list[bytes]
    params: Values


def parse(content_type: str, body: bytes, known: Mapping[str, type], limits: Limits) -> Asked:
    """The pictures and parameters of a body in one of MLflow's forms; RefusedError says what is wrong with it.

    known: the parameters that the model takes, with their types.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            asked = _from_json(body, known)
        elif kind == "text/csv":
            asked = Asked(_from_csv(body, limits), {})
        else:
            raise RefusedError(415, f"Content-Type is {kind[:80] or 'missing'}: send application/json or text/csv")
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    if not asked.pictures:
        raise RefusedError(400, "there is no picture in the request")
    if len(asked.pictures) > limits.pictures:
        raise RefusedError(413, f"{len(asked.pictures):,} pictures in a request: send {limits.pictures} at most")
    return asked


def parameters(given: Mapping[str, Any], known: Mapping[str, type]) -> Values:
    """Parameters by their right types, text read; RefusedError for one that is unknown or of another type."""
    values: Values = {}
    for name, value in given.items():
        if name not in known:
            raise RefusedError(400, f"{name[:80]}: no such parameter{nearest(name[:80], known)}")
        values[name] = _typed(name, value, known[name])
    return values


def _typed(name: str, value: Any, kind: type) -> int | float | bool:
    if kind is bool:
        found = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
        if found is not None:
            return found
    elif not isinstance(value, bool) and isinstance(value, (int, float, str)):
        try:
            number = kind(value)
            if number == float(value):  # an integer stays one; no NaN
                return number  # type: ignore[no-any-return]
        except (ValueError, OverflowError):
            pass
    needs = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise RefusedError(400, f"{name}: is {str(value)[:80]!r}: give {needs}")


def _from_json(body: bytes, known: Mapping[str, type]) -> Asked:
    _check_signs(body)
    try:
        value = json.loads(body.decode())  # of bytes, it would guess at encodings
    except RecursionError:
        raise RefusedError(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise RefusedError(400, f"the body is no JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise RefusedError(400, f"the body is {_kind(value)}: send an object with one of {', '.join(_FORMS)}")
    forms = [name for name in _FORMS if name in value]
    if len(forms) != 1:
        raise RefusedError(400, f"give one of {', '.join(_FORMS)}, this has {' and '.join(forms) or 'none'}")
    unknown = [name for name in value if name not in (forms[0], "params")]
    if unknown:
        raise RefusedError(400, f"{unknown[0][:80]}: no such field{nearest(unknown[0][:80], (*_FORMS, 'params'))}")
    params = value.get("params") or {}
    if not isinstance(params, dict):
        raise RefusedError(400, f"params: is {_kind(params)}: give an object")
    images = _from_frame(value[forms[0]]) if forms[0] == "dataframe_split" else _from_list(value[forms[0]])
    return Asked([_decoded(image, row) for row, image in enumerate(images)], parameters(params, known))


def _check_signs(body: bytes) -> None:
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) > _MOST_SIGNS:
        raise RefusedError(400, "the body has too many values")


def _from_frame(value: Any) -> list[Any]:
    columns, rows = (value.get(name) if isinstance(value, dict) else None for name in ("columns", "data"))
    if not isinstance(columns, list) or _COLUMN not in columns or not isinstance(rows, list):
        raise RefusedError(
            400, f'dataframe_split: needs "columns" with {_COLUMN!r} among them, and "data", rows of these'
        )
    place = columns.index(_COLUMN)
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise RefusedError(400, f"dataframe_split: row {number} has not the {len(columns)} values of its columns")
    return [row[place] for row in rows]


def _from_list(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = value.get(_COLUMN)
    rows = value if isinstance(value, list) else [value]
    return [row.get(_COLUMN) if isinstance(row, dict) else row for row in rows]


def _from_csv(body: bytes, limits: Limits) -> list[bytes]:
    _check_signs(body)
    csv.field_size_limit(max(len(body), csv.field_size_limit()))
    try:
        # One more than may be: more are not even read.
        rows = list(itertools.islice(csv.DictReader(io.StringIO(body.decode(), newline="")), limits.pictures + 1))
    except csv.Error as error:
        raise RefusedError(400, f"the body is no CSV: {error}") from None
    return [_decoded(row.get(_COLUMN), number) for number, row in enumerate(rows)]


def _decoded(value: Any, row: int) -> bytes:
    if not isinstance(value, str):
        raise RefusedError(400, f"row {row}: {_COLUMN}: is {_kind(value)}: give the picture's bytes as base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(400, f"row {row}: {_COLUMN}: is no base64 text") from None


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "missing"}
    return kinds.get(type(value), "a number")
