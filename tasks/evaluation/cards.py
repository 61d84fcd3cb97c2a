"""Cards of captioned pictures, for pages: photograph, words, attention maps, and the neighbours of a caption."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from PIL import Image

from models.captioned import SupportingPicture, key_of_digest
from models.encoded_pictures import Pixels, decode, seen
from models.options import Decoding
from models.vocabulary import WORD_END
from tasks.grids.photographs import read_photograph
from tasks.grids.reader import GridReader

_MAX_SIDE, _NEIGHBOUR_SIDE = 240, 112  # longest side of a photograph on a card, and of a neighbour's, px
_PLAIN = np.full((_MAX_SIDE, _MAX_SIDE, 3), 128, np.uint8)  # in place of a photograph


class NeighbourCard(TypedDict):
    """A training picture that supports a caption: its photograph, empty if there is none, and its captions."""

    photograph: str
    captions: list[str]


class Card(TypedDict):
    """The data of a picture's card. row: its index among the photographs captioned for the page."""

    row: int
    photograph: str
    width: int
    height: int
    tokens: list[str]
    probabilities: list[float]
    confidence: float | None
    neighbours: list[NeighbourCard]
    maps: str
    side: list[int]


def cards_of(
    digests: Sequence[str],
    captioner: Any,
    files: Mapping[str, Path],
    grids: GridReader | None,
    decoding: Decoding,
    remembered: Sequence[str],
) -> dict[str, Card]:
    """Return digest -> the data of its card: the photograph or a plain square, the tokens and their attention maps.

    Photographs are JPEG and maps uint8 (words, h, w), both in base64. A map is scaled so that its greatest weight is
    255. captioner: a bundle's. files: digest -> photograph, or the .npy file of a grid. grids: the grids that the
    captioner reads in place of these files; None if it reads the files. decoding: the settings of the search.
    remembered: the digests of the pictures in the captioner's memory, in its order; if empty, neighbours have no
    photographs.
    """
    contents = [read_photograph(digest, files[digest]) for digest in digests]
    settings = {"attention": captioner.attends, **vars(decoding)}
    if captioner.neighbours is not None:
        settings["explain"] = True
    elif "neighbours" in settings:
        settings["neighbours"] = False
    if grids is None:
        captioned = captioner.caption(contents, **settings)
    else:
        captioned = captioner.from_cached(
            grids.read(digests), [key_of_digest(digest) for digest in digests], **settings
        )
    fit = captioner.config["backbone"].get("fit", "squash")  # unknown for grids
    cards: dict[str, Card] = {}
    for row, (digest, content, item) in enumerate(zip(digests, contents, captioned, strict=True)):
        jpeg, width, height = thumbnail(_PLAIN if is_grid(files[digest]) else seen(decode(content), fit))
        maps, side = b"", (0, 0)
        if item.attention is not None and len(item.attention):
            weights = item.attention
            greatest = weights.max(axis=(1, 2), keepdims=True).clip(1e-9)
            maps, side = (weights / greatest * 255).round().astype(np.uint8).tobytes(), weights.shape[1:]
        cards[digest] = {
            "row": row,
            "photograph": jpeg,
            "width": width,
            "height": height,
            "tokens": [token.replace(WORD_END, "") for token in item.tokens],
            "probabilities": [round(value, 3) for value in item.token_probabilities],
            "confidence": item.confidence,
            "neighbours": [_neighbour(one, files, remembered) for one in item.supporting or []],
            "maps": base64.b64encode(maps).decode(),
            "side": list(side),
        }
    return cards


def _neighbour(one: SupportingPicture, files: Mapping[str, Path], remembered: Sequence[str]) -> NeighbourCard:
    """Return the data of a training picture that supports a caption; its photograph is empty if there is none."""
    path = files.get(remembered[one.picture]) if remembered else None
    if path is None or is_grid(path):
        return {"photograph": "", "captions": one.captions}
    jpeg, _, _ = thumbnail(decode(read_photograph(remembered[one.picture], path)), _NEIGHBOUR_SIDE)
    return {"photograph": jpeg, "captions": one.captions}


def is_grid(path: Path) -> bool:
    """Return whether a data set's file is a grid in place of a photograph."""
    return path.suffix == ".npy"


def thumbnail(pixels: Pixels, side: int = _MAX_SIDE) -> tuple[str, int, int]:
    """Return a picture, uint8 (H, W, 3), as a small JPEG file in base64, with its width and height in pixels.

    side: the longest side of the result, in pixels.
    """
    small = Image.fromarray(pixels)
    small.thumbnail((side, side))
    jpeg = io.BytesIO()
    small.save(jpeg, "JPEG", quality=75)
    return base64.b64encode(jpeg.getvalue()).decode(), small.width, small.height
