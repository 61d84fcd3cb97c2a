"""Encoded pictures: the bytes of a file -> the upright picture that a person sees -> the square that a backbone takes.

This file needs no torch: the captioner on onnxruntime and the server share it with photographs.py.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

from .deep_pixels import deep_values, to_8_bits
from .out_of_memory import is_out_of_memory
from .picture_formats import FORMATS, MAX_PIXELS, Fit, Interpolation, not_a_picture

Pixels = npt.NDArray[np.uint8]
# The limits of `admit`.
ADMITTED_BYTES, ADMITTED_PIXELS, ADMITTED_SIDE, _ADMITTED_MARKERS = 32 * 2**20, 50_000_000, 65_535, 200
_ADMITTED_READS = 10_000  # of a header: they take some milliseconds
_ORIENTATION = 0x0112  # the EXIF tag
_PHOTOMETRIC, _WHITE_IS_ZERO = 0x0106, 0  # the TIFF tag, and its value if 0 is white
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_JPEG = ("JPEG", "MPO")  # MPO: several JPEG pictures in a file; the first is read
_KERNELS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """Open an encoded picture, for the block to decode.

    Raises ValueError, with the reason, for data that is not a picture, is truncated, or has over 100 million pixels,
    and MemoryError if this machine has too little memory, which is not the data's fault; also for errors in the block.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"has {image.width} x {image.height} pixels, over the limit of {MAX_PIXELS:,}")
            yield image
    except ValueError:
        raise
    except UnidentifiedImageError:
        raise ValueError(not_a_picture(data)) from None
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from None
        raise ValueError(f"cannot be decoded: {error or type(error).__name__}") from None


def decode(data: bytes) -> Pixels:
    """Return the upright RGB picture of an encoded photograph, uint8 (H, W, 3).

    Grey, palette and CMYK pictures become RGB; values of more than 8 bits are scaled by the range that the picture uses
    (see `deep_pixels.to_8_bits`); transparent pixels are blended with white; EXIF orientation is applied. Raises
    ValueError, with the reason, for data that is not such a picture, is truncated or damaged, or has over 100 million
    pixels, and MemoryError if this machine has too little memory, which is not the data's fault.
    """
    with opened(data) as image:
        if image.format not in _JPEG:
            return upright_pixels(image, data)
        pixels = _decode_jpeg(data, "CMYK" if image.mode == "CMYK" else "RGB")
        if image.mode == "CMYK":  # Pillow converts its colours
            return upright_pixels(image, data)
        turn = _TURNS.get(_orientation(image))
        return pixels if turn is None else np.array(Image.fromarray(pixels).transpose(turn))


def _decode_jpeg(data: bytes, colours: str) -> Pixels:
    """Return the pixels of a JPEG file (H, W, C); ValueError if any part of it is missing or damaged.

    Pillow and libjpeg decode a truncated file that has an end marker without an error: the missing part becomes grey.
    """
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colours, strict=True)
    except ValueError as error:
        # Unused bytes after the last pixel do no harm: some cameras write them.
        if "extraneous bytes before marker 0xd9" not in str(error):
            raise
        pixels = simplejpeg.decode_jpeg(data, colours, strict=False)
    return pixels


def upright_pixels(image: Image.Image, data: bytes) -> Pixels:
    """Return the upright RGB picture of an opened file not loaded yet, uint8 (H, W, 3). data: its content."""
    values = deep_values(image, data)
    image.load()
    turn = _TURNS.get(_orientation(image))
    if values is not None:
        scaled = to_8_bits(values)
        # Pillow itself inverts 8-bit TIFFs only.
        is_inverted = getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        image = Image.fromarray(255 - scaled if is_inverted else scaled)
    return np.array(_to_rgb(image if turn is None else image.transpose(turn)))


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1, which is upright, if the EXIF data is missing or broken."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # SyntaxError, struct.error, ...: the pixels may be intact even if the EXIF data is broken
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return the picture as 8-bit RGB, its transparent pixels blended with white."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, image).convert("RGB")
    return image.convert("RGB")


def seen(photograph: Pixels, fit: Fit) -> Pixels:
    """Return the part of a photograph (H, W, 3) that a backbone sees: all for `squash`, the middle for `crop`."""
    if fit == "squash":
        return photograph
    height, width = photograph.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return photograph[top : top + side, left : left + side]


def resize(photograph: Pixels, size: int, fit: Fit, interpolation: Interpolation = "bilinear") -> Pixels:
    """Return a photograph, uint8 (H, W, 3), resized to (size, size, 3), antialiased.

    `squash` fits the whole photograph into the square; `crop` keeps its proportions and takes the middle.
    Pillow resizes without Python's lock.
    """
    part = Image.fromarray(np.ascontiguousarray(seen(photograph, fit)))
    return np.array(part.resize((size, size), _KERNELS[interpolation]))


class _LongHeaderError(Exception):
    """An error for a header that takes more reads than any photograph's."""


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


def admit(data: bytes) -> int:
    """Return the number of pixels of an untrusted photograph, by its header alone; ValueError if it is refused.

    Its limits of bytes and pixels are below those of `decode`, and it refuses pictures crafted to be slow: a JPEG of
    thousands of scans, or a header of so many parts or so much junk that reading it takes long.
    """
    if len(data) > ADMITTED_BYTES:
        raise ValueError(f"has {len(data):,} bytes, over the limit of {ADMITTED_BYTES:,}")
    # SOS and APP1: neither marker occurs in coded pixels; a photograph has one to ten scans and one or two segments.
    if data[:2] == b"\xff\xd8" and max(data.count(b"\xff\xda"), data.count(b"\xff\xe1")) > _ADMITTED_MARKERS:
        raise ValueError("has more scans or segments than any photograph")
    try:
        with Image.open(_HeaderReader(data), formats=FORMATS) as image:
            pixels, side = image.width * image.height, max(image.size)
    except _LongHeaderError:
        raise ValueError("has a longer header than any photograph") from None
    except MemoryError:
        raise
    except Exception:  # Pillow's plugins raise OSError, SyntaxError, struct.error, ...
        raise ValueError(not_a_picture(data)) from None
    if pixels > ADMITTED_PIXELS:
        raise ValueError(f"has {pixels:,} pixels, over the limit of {ADMITTED_PIXELS:,}")
    if side > ADMITTED_SIDE:  # JPEG's own limit; a small PNG can have lines of millions of pixels, slow to resize
        raise ValueError(f"is {side:,} pixels wide or high, over the limit of {ADMITTED_SIDE:,}")
    return pixels
