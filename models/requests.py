"""Requests to a captioner: photographs and parameters in, a row for each photograph out, as in its MLflow signature.

This file needs neither torch nor MLflow nor pandas: models of every runtime use it, and the server.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from .captioned import BaseCaptioner, Captioned
from .encoded_pictures import admit

# Parameter of a request -> (decoding option, type, minimum, maximum). MLflow's signature needs a default of its type
# for each, so 0 stands for "as the model was evaluated".
PARAMETERS: dict[str, tuple[str, type, float, float]] = {
    "beam_size": ("beam", int, 1, 32),
    "max_length": ("max_length", int, 1, 100),
    "n_best": ("n_best", int, 1, 32),
    "top_k": ("top_k", int, 1, 1_000_000),
    "seed": ("seed", int, 1, 2**31 - 1),
    "temperature": ("temperature", float, 0.05, 10.0),
    "top_p": ("top_p", float, 0.01, 1.0),
    "min_confidence": ("min_confidence", float, 0.0, 1.0),
}
# All parameters, with their types.
TYPES: dict[str, type] = {
    **{name: kind for name, (_, kind, _, _) in PARAMETERS.items()},
    "otherwise": str,
    "return_attention": bool,
    "return_neighbours": bool,
}


_DATA_URI = re.compile(r"data:[\w.+-]*/?[\w.+-]*(;[\w=.+-]+)*;base64,", re.IGNORECASE)


def from_base64(text: str) -> bytes:
    """Return the bytes of base64 text; ValueError if it is not base64.

    The text may be a data URI, wrapped into lines, unpadded, or URL-safe (RFC 4648, section 5).
    """
    uri = _DATA_URI.match(text[:200].lstrip())
    plain = "".join(text.lstrip()[uri.end() if uri else 0 :].split()).rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


Params = dict[str, int | float | bool | str]


class NeighbourRow(TypedDict):
    """A training picture that supports a caption: see `captioned.SupportingPicture`."""

    captions: list[str]
    cosine: float
    support: float


class CaptionRow(TypedDict):
    """A photograph's row.

    token_probabilities: one per token. confidence: the probability that the caption is acceptable; None if the model
    has none. alternatives: caption and log_probability of each. attention: a map for each token, as a list of rows.
    neighbours: the training pictures that support the caption the most. error: why there is no caption, or None.
    """

    caption: str
    tokens: list[str]
    token_probabilities: list[float]
    log_probability: float
    confidence: float | None
    no_confidence: str | None
    alternatives: list[dict[str, str | float]]
    attention: list[list[list[float]]]
    neighbours: list[NeighbourRow]
    error: str | None


def answer(
    captioner: BaseCaptioner, photographs: Sequence[bytes], params: Mapping[str, Any] | None
) -> list[CaptionRow]:
    """Return a row for each encoded photograph, or each .npy file of a grid if the captioner takes grids.

    params: of `TYPES`. Raises ValueError for parameters that are out of bounds or do not go together.
    """
    decoding = decoding_of(params)
    refusals = [None if captioner.takes_grids else refusal(photograph) for photograph in photographs]
    admitted = [photograph for photograph, why in zip(photographs, refusals, strict=True) if why is None]
    captioned = iter(captioner.caption(admitted, **decoding))
    return [_row(next(captioned)) if why is None else failed(why) for why in refusals]


def decoding_of(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of `caption` for a request's parameters; ValueError if one is out of bounds."""
    values = dict(params or {})
    decoding = {
        "attention": bool(values.get("return_attention")),
        "explain": bool(values.get("return_neighbours")),
        "otherwise": str(values.get("otherwise") or ""),
    }
    for name, (option, _, minimum, maximum) in PARAMETERS.items():
        value = values.get(name) or None
        if value is not None and not minimum <= value <= maximum:
            raise ValueError(f"{name} is {value}: give {minimum} to {maximum}, or 0 for the model's own")
        decoding[option] = value
    return decoding


def refusal(photograph: bytes) -> str | None:
    """Return why a photograph must not be decoded; None if it may be."""
    try:
        admit(photograph)
    except ValueError as error:
        return str(error)
    return None


def failed(why: str) -> CaptionRow:
    """Return the row of a photograph that has no caption, with the reason."""
    return _row(Captioned(error=why))


def _row(item: Captioned) -> CaptionRow:
    """Return the row of a captioned photograph."""
    return {
        "caption": item.caption,
        "tokens": item.tokens,
        "token_probabilities": item.token_probabilities,
        "log_probability": item.log_probability,
        "confidence": item.confidence,
        "no_confidence": item.no_confidence,
        "alternatives": [{"caption": text, "log_probability": value} for text, value in item.alternatives],
        "attention": item.attention.tolist() if item.attention is not None else [],
        "neighbours": [
            {"captions": neighbour.captions, "cosine": neighbour.cosine, "support": neighbour.support}
            for neighbour in item.supporting or []
        ],
        "error": item.error,
    }
