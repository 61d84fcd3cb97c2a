"""Parse requests into pictures and parameters: MLflow's forms as JSON or CSV, and a form with one file."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    model_validator,
)
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from flows.serving.limits import Limits, RefusedError
from models.requests import PARAMETERS, TYPES, Params, decoding_of, from_base64
from tasks.common.errors import suggestion

_COLUMN = "image"
_FORMS = ("dataframe_split", "dataframe_records", "inputs", "instances")
# The maximum number of brackets and commas in a body: Python creates an object for each value between them, and
# pydantic an error for each wrong one, which take far more memory than the value's bytes.
_MAX_SEPARATORS = 5_000
_MAX_TEXT = 1000  # characters of a parameter
_Model = TypeVar("_Model", bound=BaseModel)


class CaptionRequest(NamedTuple):
    """The pictures of a request, as the bytes that were sent (encoded photographs or not), and its parameters."""

    pictures: list[bytes]
    params: Params


def _plain(value: Any) -> Any:
    """Refuse text that Python parses as a number but other programs do not: 1_0, other scripts' digits."""
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        raise ValueError("is no number")
    return value


def _truth(value: Any, info: ValidationInfo) -> Any:
    """Return the truth value of a text in a query. Raises ValueError for any other text."""
    if not isinstance(value, str) or info.mode == "json":
        return value
    if value.lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return value.lower() == "true"


def _field(name: str, kind: type) -> tuple[Any, Any]:
    """Return the type and the default of a parameter: 0, or an empty text, means the model's default."""
    if kind is bool:
        return Annotated[bool, BeforeValidator(_truth)], False
    if kind is str:
        return Annotated[str, Field(max_length=_MAX_TEXT)], ""
    _, _, least, most = PARAMETERS[name]
    bounds: dict[str, Any] = {"anyOf": [{"const": 0}, {"minimum": least, "maximum": most}]}
    field = Field(json_schema_extra=bounds) if kind is int else Field(json_schema_extra=bounds, allow_inf_nan=False)
    return Annotated[kind, BeforeValidator(_plain), field], 0


class _Bounded(BaseModel):
    """Parameters that are refused where one is unknown or out of bounds."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def check_bounds(self) -> _Bounded:
        decoding_of(self.as_params())  # checked here too, because the model never sees a request without valid pictures
        return self

    def as_params(self) -> Params:
        """Return the parameters that were set in the request."""
        return self.model_dump(exclude_unset=True)


_fields: dict[str, Any] = {name: _field(name, kind) for name, kind in TYPES.items()}
Parameters = create_model("Parameters", __base__=_Bounded, **_fields)


def _from_base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError("give the picture's bytes as base64 text")
    try:
        return from_base64(value)
    except ValueError:
        raise ValueError("is not base64 text") from None


def _records(value: Any) -> list[dict[str, Any]]:
    """Return the rows of a `dataframe_split` as records."""
    columns, rows = (value.get(name) if isinstance(value, dict) else None for name in ("columns", "data"))
    if not isinstance(columns, list) or _COLUMN not in columns or not isinstance(rows, list):
        raise ValueError(f'needs "columns" with {_COLUMN!r} among them, and "data" with the rows')
    index = columns.index(_COLUMN)
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise ValueError(f"row {number} needs {len(columns)} values, one for each column")
    return [{_COLUMN: row[index]} for row in rows]


_PICTURE = {"type": "string", "format": "byte", "description": "a picture's bytes as base64 text"}
_FRAME = {
    "type": "object",
    "required": ["columns", "data"],
    "properties": {
        "columns": {"const": [_COLUMN]},
        "data": {"type": "array", "items": {"type": "array", "items": _PICTURE, "minItems": 1, "maxItems": 1}},
    },
}
Picture = Annotated[bytes, BeforeValidator(_from_base64), WithJsonSchema(_PICTURE)]


class Record(BaseModel):
    """A row with a picture; its other columns are not read."""

    image: Picture


class Column(BaseModel):
    """A table with a column of pictures, or one picture."""

    image: Annotated[Picture | list[Picture], Field(union_mode="left_to_right")]


_Row = Annotated[Picture | Record, Field(union_mode="left_to_right")]
_Rows = Annotated[Picture | list[_Row] | Column, Field(union_mode="left_to_right")]


class Invocation(BaseModel):
    """A body in one of the forms that MLflow's scoring server takes."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"oneOf": [{"required": [form]} for form in _FORMS]})

    dataframe_split: Annotated[list[Record], BeforeValidator(_records), WithJsonSchema(_FRAME)] = []
    dataframe_records: list[Record] = []
    inputs: _Rows = []
    instances: _Rows = []
    params: Parameters | None = None

    @model_validator(mode="before")
    @classmethod
    def check_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"send an object with one of {', '.join(_FORMS)}")
        forms = [name for name in _FORMS if name in value]
        if len(forms) != 1:
            raise ValueError(f"give one of {', '.join(_FORMS)}: this has {' and '.join(forms) or 'none'}")
        return value

    def request(self) -> CaptionRequest:
        """Return the pictures and parameters."""
        params: Any = self.params
        return CaptionRequest(
            [
                picture
                for rows in (self.dataframe_split, self.dataframe_records, self.inputs, self.instances)
                for picture in _pictures(rows)
            ],
            {} if params is None else params.as_params(),
        )


def _pictures(rows: Any) -> list[bytes]:
    """Return the pictures of a form's rows."""
    if isinstance(rows, (Record, Column)):
        return _pictures(rows.image)
    return [rows] if isinstance(rows, bytes) else [row if isinstance(row, bytes) else row.image for row in rows]


def parse(content_type: str, body: bytes, limits: Limits) -> CaptionRequest:
    """Return the pictures and parameters of a body in one of MLflow's forms, as JSON or CSV.

    Raises RefusedError with the reason.
    """
    media_type = media_type_of(content_type)
    if media_type not in ("application/json", "text/csv"):
        raise RefusedError(415, f"Content-Type is {media_type[:80] or 'missing'}: send application/json or text/csv")
    if sum(body.count(separator) for separator in (b",", b"[", b"{")) > _MAX_SEPARATORS:
        raise RefusedError(400, "the body has too many values")
    if media_type == "application/json":
        request = validated(Invocation, body).request()
    else:
        request = validated(Invocation, {"inputs": _from_csv(body, limits)}).request()
    if not request.pictures:
        raise RefusedError(400, "there is no picture in the request")
    if len(request.pictures) > limits.pictures:
        raise RefusedError(413, f"{len(request.pictures):,} pictures in a request: send {limits.pictures} at most")
    return request


def parse_form(content_type: str, body: bytes, limits: Limits) -> CaptionRequest:
    """Return the one file of a form, and its other fields as parameters. Raises RefusedError for any other form.

    The parser is written in Python, and slow on some bodies: call this in a thread.
    """
    if "charset" in content_type.lower():  # some of Python's codecs take minutes to decode a field
        raise RefusedError(400, "a form is UTF-8: leave out the charset of its Content-Type")

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body

    fields = {"max_files": 1, "max_fields": len(TYPES), "max_part_size": 8 * _MAX_TEXT}
    parser = MultiPartParser(Headers({"Content-Type": content_type}), chunks(), **fields)
    parser.spool_max_size = limits.body  # never spool to the disk
    try:
        form = asyncio.run(parser.parse())
    except MultiPartException as error:
        raise RefusedError(400, error.message) from None
    files = [value for value in form.values() if isinstance(value, UploadFile)]
    if len(files) != 1:
        raise RefusedError(400, f"the form has {len(files)} files: send one picture, as in curl -F image=@photo.jpg")
    texts = {name: value for name, value in form.items() if isinstance(value, str)}
    return CaptionRequest([files[0].file.read()], validated(Parameters, texts).as_params())


def validated(model: type[_Model], values: bytes | Mapping[str, Any]) -> _Model:
    """Validate a JSON body, or values that may be texts, as in a form.

    Raises RefusedError, which names the first wrong field.
    """
    try:
        return (
            model.model_validate_json(values, strict=True)
            if isinstance(values, bytes)
            else model.model_validate(values)
        )
    except ValidationError as error:
        raise RefusedError(400, why_invalid(error.errors(include_url=False), model.model_fields)) from None


def why_invalid(errors: Any, names_known: Iterable[str] = ()) -> str:
    """Return the reason from pydantic's errors, in one line. names_known: the valid field names."""
    # A union has errors for each choice: the deepest error belongs to the choice that was meant.
    deepest = max(errors, key=lambda error: len(error["loc"]))
    names = {*names_known, *TYPES, "params", _COLUMN}
    location = [str(part)[:80] for part in deepest["loc"] if isinstance(part, int) or part in names]
    if deepest["type"] == "extra_forbidden":
        name = str(deepest["loc"][-1])[:80]
        return f"{name}: no such field{suggestion(name, names)}"
    why = str(deepest["ctx"]["error"]) if deepest["type"] == "value_error" else deepest["msg"]
    shown = (
        f"is {str(deepest['input'])[:80]!r}: " if location and deepest["type"] not in ("missing", "value_error") else ""
    )
    return ": ".join([*location, f"{shown}{why}"])


def media_type_of(content_type: str) -> str:
    """Return the media type of a Content-Type header, in lower case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


def _from_csv(body: bytes, limits: Limits) -> list[str | None]:
    """Return the image column of a CSV body. Raises RefusedError if it is not UTF-8 or not CSV."""
    csv.field_size_limit(max(len(body), csv.field_size_limit()))
    try:
        text = io.StringIO(body.decode(), newline="")
        # One more than the limit, so that `parse` refuses it; further rows are not read.
        return [row.get(_COLUMN) for row in itertools.islice(csv.DictReader(text), limits.pictures + 1)]
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    except csv.Error as error:
        raise RefusedError(400, f"the body is not CSV: {error}") from None
