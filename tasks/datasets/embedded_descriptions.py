"""Descriptions in the metadata of the pictures themselves, as Lightroom, digiKam and cameras write them.

They are not read as captions: `attend init` names the command that writes them to a table.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from PIL import ExifTags, Image, IptcImagePlugin

_XMP = re.compile(rb"<dc:description>.*?<rdf:li[^>]*>(.*?)</rdf:li>", re.DOTALL)
_CAPTION_OF_IPTC = (2, 120)
_LOOKED_AT = 100  # most pictures examined
_DIFFERENT = 0.5  # least share of different descriptions: cameras write their own name into each picture


class Descriptions(NamedTuple):
    """Descriptions in pictures' metadata: exiftool's name of their field, their number, and one of them."""

    field: str
    number: int
    example: str


def descriptions_in(pictures: Iterable[Path]) -> Descriptions | None:
    """Return the descriptions of the field that most of the first hundred pictures have, or None."""
    by_field: dict[str, list[str]] = {}
    for path in sorted(pictures)[:_LOOKED_AT]:
        for field, text in _texts_of(path).items():
            if " " in text.strip():
                by_field.setdefault(field, []).append(text.strip())
    varied = {field: texts for field, texts in by_field.items() if len(set(texts)) > _DIFFERENT * len(texts)}
    if not varied:
        return None
    field = max(varied, key=lambda name: len(varied[name]))
    return Descriptions(field, len(varied[field]), varied[field][0])


def _texts_of(path: Path) -> dict[str, str]:
    """Return the descriptions in a picture's metadata by exiftool's names of their fields."""
    try:
        with Image.open(path) as image:
            exif = image.getexif().get(ExifTags.Base.ImageDescription)
            iptc = (IptcImagePlugin.getiptcinfo(image) or {}).get(_CAPTION_OF_IPTC)
            xmp = _XMP.search(image.info.get("xmp") or b"")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return {}  # `attend check` names pictures that cannot be read
    texts = {"Description": html.unescape(_decoded(xmp[1])) if xmp else "", "ImageDescription": _decoded(exif)}
    return {**texts, "Caption-Abstract": _decoded(iptc)}


def _decoded(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
