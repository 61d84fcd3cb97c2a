"""Parse requests into pictures and parameters, in the forms that MLflow's scoring server takes."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from flows.serving.limits import Limits, RefusedError
from models.requests import Params, decoding_of, from_base64
from tasks.common.errors import suggestion

_COLUMN = "image"
FORMS = ("dataframe_split", "dataframe_records", "inputs", "instances")
# The most brackets and commas in a body: Python makes an object of each value between them, which may take fifty times
# the value's bytes.
_MAX_SEPARATORS = 100_000
MAX_TEXT = 1000  # characters of a parameter


class CaptionRequest(NamedTuple):
    """The pictures of a request, as the bytes that were sent (encoded photographs or not), and its parameters."""

    pictures: list[bytes]
    params: Params


def parse(content_type: str, body: bytes, known: Mapping[str, type], limits: Limits) -> CaptionRequest:
    """Return the pictures and parameters of a body in one of MLflow's forms, as JSON or CSV.

    known: the parameters that the model takes, with their types. Raises RefusedError, which says what is wrong.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    try:
        if media_type == "application/json":
            request = _from_json(body, known)
        elif media_type == "text/csv":
            request = CaptionRequest(_from_csv(body, limits), {})
        else:
            raise RefusedError(
                415, f"Content-Type is {media_type[:80] or 'missing'}: send application/json or text/csv"
            )
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    if not request.pictures:
        raise RefusedError(400, "there is no picture in the request")
    if len(request.pictures) > limits.pictures:
        raise RefusedError(413, f"{len(request.pictures):,} pictures in a request: send {limits.pictures} at most")
    return request


def parameters(given: Mapping[str, Any], known: Mapping[str, type], as_text: bool = False) -> Params:
    """Return the parameters with the types of `known`. as_text: whether all are texts, as in a query.

    Raises RefusedError for one that is unknown, has another type or is out of bounds.
    """
    values: Params = {}
    for name, value in given.items():
        if name not in known:
            raise RefusedError(400, f"{name[:80]}: no such parameter{suggestion(name[:80], known)}")
        values[name] = _typed(name, value, known[name], as_text)
    try:
        decoding_of(values)  # here, because the model is not asked where no picture is one
    except ValueError as error:
        raise RefusedError(400, str(error)) from None
    return values


def _typed(name: str, value: Any, kind: type, as_text: bool) -> int | float | bool | str:
    """Return a parameter's value as a bool, int, float or text. Raises RefusedError where it is not one."""
    if kind is str:
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise RefusedError(400, f"{name}: give a text of {MAX_TEXT} characters at most")
        return value
    if kind is bool:
        truth = {"true": True, "1": True, "false": False, "0": False}.get(value.lower()) if as_text else value
        if isinstance(truth, bool):
            return truth
    elif not isinstance(value, bool) and isinstance(value, str if as_text else (int, float)) and _is_plain(value):
        try:
            number = kind(value)
            if number == float(value):  # refuses a fraction for an integer, and NaN
                return number  # type: ignore[no-any-return]
        except (ValueError, OverflowError):
            pass
    expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise RefusedError(400, f"{name}: is {str(value)[:80]!r}: give {expected}")


def _is_plain(value: float | str) -> bool:
    """Return False for a text that Python takes for a number, but others do not: 1_0, or digits of other scripts."""
    return not isinstance(value, str) or (value.isascii() and "_" not in value)


def _from_json(body: bytes, known: Mapping[str, type]) -> CaptionRequest:
    """Return the pictures and parameters of a JSON body. Raises RefusedError."""
    _check_separators(body)
    try:
        value = json.loads(body.decode())  # decoded here, because json.loads would guess the encoding
    except RecursionError:
        raise RefusedError(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise RefusedError(400, f"the body is not JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise RefusedError(400, f"the body is {_kind(value)}: send an object with one of {', '.join(FORMS)}")
    forms = [name for name in FORMS if name in value]
    if len(forms) != 1:
        raise RefusedError(400, f"give one of {', '.join(FORMS)}: this has {' and '.join(forms) or 'none'}")
    unknown = [name for name in value if name not in (forms[0], "params")]
    if unknown:
        raise RefusedError(400, f"{unknown[0][:80]}: no such field{suggestion(unknown[0][:80], (*FORMS, 'params'))}")
    params = {} if value.get("params") is None else value["params"]
    if not isinstance(params, dict):
        raise RefusedError(400, f"params: is {_kind(params)}: give an object")
    images = _from_frame(value[forms[0]]) if forms[0] == "dataframe_split" else _from_list(value[forms[0]], forms[0])
    return CaptionRequest([_decoded(image, row) for row, image in enumerate(images)], parameters(params, known))


def _check_separators(body: bytes) -> None:
    """Raise RefusedError where a body has so many values that parsing it would take too much memory."""
    if sum(body.count(separator) for separator in (b",", b"[", b"{")) > _MAX_SEPARATORS:
        raise RefusedError(400, "the body has too many values")


def _from_frame(value: Any) -> list[Any]:
    """Return the image column of a `dataframe_split`. Raises RefusedError where there is none."""
    columns, rows = (value.get(name) if isinstance(value, dict) else None for name in ("columns", "data"))
    if not isinstance(columns, list) or _COLUMN not in columns or not isinstance(rows, list):
        raise RefusedError(
            400, f'dataframe_split: needs "columns" with {_COLUMN!r} among them, and "data" with the rows'
        )
    index = columns.index(_COLUMN)
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise RefusedError(400, f"dataframe_split: row {number} needs {len(columns)} values, one for each column")
    return [row[index] for row in rows]


def _from_list(value: Any, form: str) -> list[Any]:
    """Return the images of `inputs`, `instances` or `dataframe_records`: one value, a list, or a list of records.

    Raises RefusedError where a row of `dataframe_records` is no record.
    """
    if isinstance(value, dict):
        value = value.get(_COLUMN)
    rows = value if isinstance(value, list) else [value]
    if form == "dataframe_records":
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise RefusedError(400, f"{form}: row {number} is {_kind(row)}: give an object with {_COLUMN!r}")
    return [row.get(_COLUMN) if isinstance(row, dict) else row for row in rows]


def _from_csv(body: bytes, limits: Limits) -> list[bytes]:
    """Return the pictures in the image column of a CSV body. Raises RefusedError."""
    _check_separators(body)
    csv.field_size_limit(max(len(body), csv.field_size_limit()))
    try:
        # One more than the limit, so that `parse` refuses it; further rows are not read.
        rows = list(itertools.islice(csv.DictReader(io.StringIO(body.decode(), newline="")), limits.pictures + 1))
    except csv.Error as error:
        raise RefusedError(400, f"the body is not CSV: {error}") from None
    return [_decoded(row.get(_COLUMN), number) for number, row in enumerate(rows)]


def _decoded(value: Any, row: int) -> bytes:
    """Return the bytes of a picture from its base64 text. Raises RefusedError where the value is not such a text."""
    if not isinstance(value, str):
        raise RefusedError(400, f"row {row}: {_COLUMN}: is {_kind(value)}: give the picture's bytes as base64 text")
    try:
        return from_base64(value)
    except ValueError:
        raise RefusedError(400, f"row {row}: {_COLUMN}: is not base64 text") from None


def _kind(value: Any) -> str:
    """Return what kind of JSON value this is, for messages."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "missing"}
    return kinds.get(type(value), "a number")
