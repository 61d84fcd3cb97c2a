"""The OpenAPI description of the server, from the parameters of the model that it serves: GET /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from flows.serving.limits import Limits
from flows.serving.requests import FORMS, MAX_TEXT
from models.requests import PARAMETERS

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_PICTURE: Schema = {"type": "string", "format": "byte", "description": "a picture's bytes as base64 text"}
_PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "application/octet-stream")
_WHY = {
    400: "what is wrong with the request",
    403: "the Host is not one that this server answers",
    408: "the body did not arrive in time",
    413: "the body, or what is in it, is too large",
    415: "the Content-Type is not taken",
    500: "the server failed: its log says why",
    503: "the server is busy: try again in a moment",
    504: "no caption in time",
}


def description(params: Mapping[str, type], limits: Limits) -> Schema:
    """Return the description. params: the parameters that the model takes, with their types."""
    known = {name: _parameter(name, kind) for name, kind in params.items()}
    in_query = [{"name": name, "in": "query", "schema": schema} for name, schema in known.items()]
    rows = {"type": "array", "items": {"$ref": "#/components/schemas/Row"}}
    predictions = {"type": "object", "required": ["predictions"], "properties": {"predictions": rows}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "attend serve",
            "version": metadata.version("attend"),
            "description": "Captions of photographs, in the protocol of MLflow's server and for single pictures.",
        },
        "paths": {
            "/caption": {
                "post": {
                    "summary": "Caption the picture whose bytes are the body",
                    "parameters": in_query,
                    "requestBody": {"required": True, "content": dict.fromkeys(_PICTURE_TYPES, binary)},
                    "responses": _responses({"$ref": "#/components/schemas/Row"}, *_WHY),
                }
            },
            "/invocations": {
                "post": {
                    "summary": "Caption the pictures of a request in one of MLflow's forms",
                    "requestBody": {
                        "required": True,
                        "content": {
                            "application/json": {"schema": {"oneOf": _forms(known, limits)}},
                            "text/csv": {"schema": {"type": "string", "description": "a table with a column image"}},
                        },
                    },
                    "responses": _responses(predictions, *_WHY),
                }
            },
            **{path: {"get": _get(path, _HEALTH, 503)} for path in ("/health", "/ping")},
            "/ready": {"get": _get("whether it takes more pictures", _READY, 503)},
            **{path: {"get": _get("the model that is served", _MODEL)} for path in ("/model", "/version")},
            "/metrics": {"get": _get("metrics for Prometheus", None)},
            "/openapi.json": {"get": _get("this description", {"type": "object"})},
        },
        "components": {"schemas": {"Row": _ROW, "Error": _ERROR}},
    }


def _parameter(name: str, kind: type) -> Schema:
    """Return the schema of a parameter. 0, or an empty text, stands for the model's own."""
    if kind is bool:
        return {"type": "boolean", "default": False}
    if kind is str:
        return {"type": "string", "maxLength": MAX_TEXT, "default": ""}
    schema: Schema = {"type": "integer" if kind is int else "number", "default": 0}
    if name in PARAMETERS:
        _, _, least, most = PARAMETERS[name]
        schema["anyOf"] = [{"const": 0}, {"minimum": least, "maximum": most}]
    return schema


def _forms(known: Mapping[str, Schema], limits: Limits) -> list[Schema]:
    """Return the schemas of the forms of a JSON body."""
    params = {"type": ["object", "null"], "properties": dict(known), "additionalProperties": False}
    record = {"type": "object", "required": ["image"], "properties": {"image": _PICTURE}}
    several = {"minItems": 1, "maxItems": limits.pictures}
    listed = {"type": "array", "items": {"anyOf": [_PICTURE, record]}, **several}
    column = {"type": "array", "items": _PICTURE, **several}
    named = {"type": "object", "required": ["image"], "properties": {"image": {"anyOf": [_PICTURE, column]}}}
    pictures = {"anyOf": [listed, named, _PICTURE]}
    row = {"type": "array", "items": _PICTURE, "minItems": 1, "maxItems": 1}
    frame = {
        "type": "object",
        "required": ["columns", "data"],
        "properties": {"columns": {"const": ["image"]}, "data": {"type": "array", "items": row, **several}},
    }
    records = {"type": "array", "items": record, **several}
    schemas = {"dataframe_split": frame, "dataframe_records": records, "inputs": pictures, "instances": pictures}
    return [
        {
            "type": "object",
            "required": [form],
            "properties": {form: schemas[form], "params": params},
            "additionalProperties": False,
        }
        for form in FORMS
    ]


def _responses(answer: Schema, *refusals: int) -> Schema:
    """Return the responses of a route that answers JSON. refusals: the other statuses that it may have."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "200": {"description": "the answer", "content": {"application/json": {"schema": answer}}},
        **{str(status): {"description": _WHY[status], "content": error} for status in refusals},
    }


def _get(summary: str, answer: Schema | None, *other: int) -> Schema:
    """Return a route that is read. answer: the schema of its JSON, for every status; None for plain text."""
    content = {"text/plain": {"schema": _TEXT}} if answer is None else {"application/json": {"schema": answer}}
    statuses = {str(status): {"description": "not now", "content": content} for status in other}
    errors = {status: response for status, response in _responses({}, 403, 500).items() if status != "200"}
    return {
        "summary": summary,
        "responses": {"200": {"description": "the answer", "content": content}, **statuses, **errors},
    }


_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": _TEXT},
    "additionalProperties": False,
}
_ROW: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": [
        "caption",
        "tokens",
        "token_probabilities",
        "log_probability",
        "confidence",
        "no_confidence",
        "alternatives",
        "attention",
        "neighbours",
        "error",
    ],
    "properties": {
        "caption": _TEXT,
        "tokens": {"type": "array", "items": _TEXT},
        "token_probabilities": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1.001}},
        "log_probability": {"type": "number", "maximum": 0.001},
        "confidence": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "no_confidence": {"type": ["string", "null"], "description": "why `confidence` is null"},
        "alternatives": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["caption", "log_probability"],
                "properties": {"caption": _TEXT, "log_probability": _NUMBER},
                "additionalProperties": False,
            },
        },
        "attention": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "array", "items": {"type": "number", "minimum": 0}}},
            "description": "a map for each token, if return_attention is true",
        },
        "neighbours": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["captions", "cosine", "support"],
                "properties": {
                    "captions": {"type": "array", "items": _TEXT},
                    "cosine": {"type": "number", "minimum": -1.001, "maximum": 1.001},
                    "support": {"type": "number", "minimum": 0, "maximum": 1.001},
                },
                "additionalProperties": False,
            },
            "description": "the training pictures that support the caption the most, if return_neighbours is true",
        },
        "error": {"type": ["string", "null"], "description": "why there is no caption"},
    },
}
_HEALTH: Schema = {"type": "object", "required": ["status"], "properties": {"status": {"enum": ["ok", "stuck"]}}}
_READY: Schema = {
    "type": "object",
    "required": ["ready", "model", "waiting", "failure"],
    "properties": {
        "ready": {"type": "boolean"},
        "model": _TEXT,
        "waiting": {"type": "integer", "minimum": 0},
        "failure": {"type": ["string", "null"], "description": "why the last look for another model failed"},
    },
}
_MODEL: Schema = {
    "type": "object",
    "required": ["model", "version", "runtime", "parameters", "attends", "fit", "beam", "confident", "card"],
    "properties": {
        "model": _TEXT,
        "version": _TEXT,
        "runtime": _TEXT,
        "parameters": {"type": "array", "items": _TEXT},
        "attends": {"type": "boolean"},
        "fit": {"enum": ["squash", "crop"]},
        "beam": {"type": "integer", "minimum": 1},
        "confident": {"type": "boolean"},
        "card": _TEXT,
    },
}
