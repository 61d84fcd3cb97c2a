"""Encoded pictures: the bytes of a file -> the upright RGB picture that a person sees, by Pillow alone.

This file needs no torch: the captioner on onnxruntime and the server share it with photographs.py.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from .memory import is_out_of_memory
from .picture_formats import FORMATS, MAX_PIXELS

# What `admit` takes.
ADMITTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
ADMITTED_BYTES, ADMITTED_PIXELS, ADMITTED_SIDE, _ADMITTED_MARKERS = 32 * 2**20, 50_000_000, 65_535, 200
_ADMITTED_READS = 10_000  # of a header: they take some milliseconds
_ORIENTATION = 0x0112  # the EXIF tag


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """Open an encoded picture, for the block to decode.

    Raises ValueError, with the reason, for data that is no picture, is truncated, or has over 100 million pixels, and
    MemoryError where this machine has no memory for it, which is no fault of the data; errors of the block too.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"has {image.width} x {image.height} pixels, over the limit of {MAX_PIXELS:,}")
            yield image
    except ValueError:
        raise
    except UnidentifiedImageError:
        raise ValueError(f"is no picture of a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from None
        raise ValueError(f"cannot be decoded: {error or type(error).__name__}") from None


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the upright RGB picture of an encoded photograph, uint8 (H, W, 3): see `photographs.decode`."""
    with opened(data) as image:
        return upright_pixels(image)


def upright_pixels(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Return the upright RGB picture of an opened file, uint8 (H, W, 3)."""
    image.load()
    upright = image if _is_upright(image) else ImageOps.exif_transpose(image)
    return np.array(_to_rgb(upright))


def is_plain_jpeg(data: bytes) -> bool:
    """Return whether the data is a whole JPEG of RGB or grey pixels that are stored upright, by its header and end.

    Such a photograph any JPEG decoder turns into the picture that a person sees.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            has_end = data.rstrip(b"\0")[-2:] == b"\xff\xd9"
            return has_end and image.width * image.height <= MAX_PIXELS and is_plain(image)
    except Exception:  # Pillow's plugins raise OSError, SyntaxError, struct.error, ...
        return False


def is_plain(image: Image.Image) -> bool:
    """Return whether an opened file is a JPEG of RGB or grey pixels that are stored upright."""
    return image.format == "JPEG" and image.mode in ("L", "RGB") and _is_upright(image)


class _LongHeaderError(Exception):
    """An error for a header that takes more reads than that of any photograph."""


class _HeaderReader(io.BytesIO):
    """A file that raises `_LongHeaderError` after too many reads.

    Pillow reads the segments, chunks and junk of a header one by one, so the reads bound its time.
    """

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, as `BytesIO.read` does."""
        self.reads += 1
        if self.reads > _ADMITTED_READS:
            raise _LongHeaderError
        return super().read(size)


def _is_upright(image: Image.Image) -> bool:
    """Return whether the pixels are stored upright, by EXIF; True if the EXIF data is missing or broken."""
    try:
        return bool(image.getexif().get(_ORIENTATION, 1) == 1)
    except Exception:  # SyntaxError, struct.error, ...: the pixels are sound even where the EXIF data is broken
        return True


def admit(data: bytes) -> int:
    """Return the number of pixels of an untrusted photograph, by its header alone; ValueError if it is refused.

    It takes fewer formats, bytes and pixels than `decode`, and refuses pictures crafted to be slow: a JPEG of thousands
    of scans, or a header of so many parts or so much junk that reading it takes long.
    """
    if len(data) > ADMITTED_BYTES:
        raise ValueError(f"has {len(data):,} bytes, over the limit of {ADMITTED_BYTES:,}")
    # SOS and APP1: neither marker occurs within the coded pixels; a photograph has one to ten scans and a segment or
    # two.
    if data[:2] == b"\xff\xd8" and max(data.count(b"\xff\xda"), data.count(b"\xff\xe1")) > _ADMITTED_MARKERS:
        raise ValueError("has more scans or segments than any photograph")
    try:
        with Image.open(_HeaderReader(data), formats=ADMITTED) as image:
            pixels, side = image.width * image.height, max(image.size)
    except _LongHeaderError:
        raise ValueError("has a longer header than any photograph") from None
    except MemoryError:
        raise
    except Exception:  # Pillow's plugins raise OSError, SyntaxError, struct.error, ...
        raise ValueError(f"is no picture of a known format ({', '.join(ADMITTED)})") from None
    if pixels > ADMITTED_PIXELS:
        raise ValueError(f"has {pixels:,} pixels, over the limit of {ADMITTED_PIXELS:,}")
    if side > ADMITTED_SIDE:  # a JPEG's own limit; few bytes of a PNG make a line of millions, which is slow to resize
        raise ValueError(f"is {side:,} pixels wide or high, over the limit of {ADMITTED_SIDE:,}")
    return pixels


def _parts(values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return views of an array's values, a million at most in each."""
    flat = values.reshape(-1)
    return [flat[first : first + 2**20] for first in range(0, len(flat), 2**20)]


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return the picture as 8-bit RGB, its transparent pixels blended with white."""
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow's conversion clips 16-bit grey values at 255; scale them from their true range instead.
        values = np.asarray(image)
        white = 65535.0 if image.mode.startswith("I") else max(float(values.max()), 1.0)
        grey = np.empty(values.shape, np.uint8)
        for part, into in zip(_parts(values), _parts(grey), strict=True):  # all at once would take GiBs
            into[:] = np.clip(part.astype(np.float64) / white * 255.0 + 0.5, 0, 255)
        return Image.fromarray(grey).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, image).convert("RGB")
    return image.convert("RGB")
