"""The supported picture formats and the ways to resize pictures, for configs and checks that do not load torch."""

from typing import Literal

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 100_000_000
Fit = Literal["squash", "crop"]
Interpolation = Literal["bilinear", "bicubic"]

# First bytes of files that are often found in place of pictures, and what such files are.
_OTHERS = (
    (b"<!doctype html", "a web page"),
    (b"<html", "a web page"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML file"),
    (b"%pdf", "a PDF file"),
    (b"pk\3\4", "a ZIP archive"),
)
_BRANDS = {
    "avif": "AVIF",
    "avis": "AVIF",
    "heic": "HEIC",
    "heix": "HEIC",
    "hevc": "HEIC",
    "mif1": "HEIF",
    "msf1": "HEIF",
}


def not_a_picture(data: bytes) -> str:
    """Describe data that is not a picture of a known format, as part of a sentence. data: at least its start."""
    if not data:
        return "is empty"
    start = data[:200].lstrip().lower()
    brand = _BRANDS.get(data[8:12].decode("latin-1")) if data[4:8] == b"ftyp" else None
    kind = f"an {brand} picture" if brand else next((kind for sign, kind in _OTHERS if start.startswith(sign)), "")
    not_known = f"no picture of a known format ({', '.join(FORMATS)})"
    return f"is {kind}, {not_known}" if kind else f"is {not_known}"
