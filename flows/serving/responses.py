"""The server's JSON responses, as pydantic models for the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# A share computed in float32 may slightly exceed 1 by rounding.
_Share = Annotated[float, Field(ge=0, le=1.001)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Alternative(_Answer):
    """Another caption of the same picture."""

    caption: str
    log_probability: float


class Neighbour(_Answer):
    """A training picture that supports a caption."""

    captions: list[str]
    cosine: Annotated[float, Field(ge=-1.001, le=1.001)]
    support: _Share


class Row(_Answer):
    """A picture's caption, or why there is none: see `models.requests.CaptionRow`."""

    caption: str
    tokens: list[str]
    token_probabilities: list[_Share]
    log_probability: Annotated[float, Field(le=0.001)]
    confidence: Annotated[float, Field(ge=0, le=1)] | None
    no_confidence: Annotated[str | None, Field(description="why `confidence` is null")]
    alternatives: list[Alternative]
    attention: Annotated[list[list[list[float]]], Field(description="a map for each token, where asked for")]
    neighbours: Annotated[list[Neighbour], Field(description="those that support the caption most, where asked for")]
    error: Annotated[str | None, Field(description="why there is no caption")]


class Predictions(_Answer):
    """A row for each picture of a request."""

    predictions: list[Row]


class Health(_Answer):
    """The state of the thread that captions."""

    status: Literal["ok", "stuck"]


class Ready(_Answer):
    """The readiness for more pictures. failure: why the last check for another model failed."""

    ready: bool
    model: str
    waiting: int
    failure: str | None


class ModelInfo(_Answer):
    """The version that is served, with its model card."""

    model: str
    version: str
    runtime: str
    parameters: list[str]
    attends: bool
    fit: Literal["squash", "crop"]
    beam: int
    confident: bool
    card: str


class Error(_Answer):
    """Why a request is refused."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "what is wrong with the request"},
    "5XX": {"model": Error, "description": "busy (503), too slow (504), or failed: the log says why (500)"},
}
