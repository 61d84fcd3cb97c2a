"""Photographs: encoded bytes -> the upright RGB picture that a person sees -> the tensor that a backbone takes.

Extraction and the registered captioner share this code, so both compute the same grids.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional
from torchcodec import decoders

from .memory import is_out_of_memory
from .picture_formats import FORMATS, MAX_PIXELS

Fit = Literal["squash", "crop"]
Interpolation = Literal["bilinear", "bicubic"]
# Mean and standard deviation of RGB values in [0, 1], by which a network's training photographs were normalised.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

# What `admit` takes.
ADMITTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
ADMITTED_BYTES, ADMITTED_PIXELS, _ADMITTED_MARKERS = 32 * 2**20, 50_000_000, 200
_ADMITTED_READS = 10_000  # of a header: they take some milliseconds
_ORIENTATION = 0x0112  # the EXIF tag


def decode(data: bytes) -> Tensor:
    """Return the upright RGB picture of an encoded photograph, uint8 (3, H, W), channels last in memory.

    Grey, palette, CMYK and 16-bit pictures become 8-bit RGB; transparent pixels are blended with white; EXIF
    orientation is applied. Raises ValueError, with the reason, for data that is not such a picture, is truncated, or
    has over 100 million pixels, and MemoryError where this machine has no memory for it, which is no fault of the data.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"has {image.width} x {image.height} pixels, over the limit of {MAX_PIXELS:,}")
            if _is_plain_jpeg(image):
                # The pixels are the same as Pillow's, but threads can decode in parallel: Pillow holds the GIL.
                return _decode_jpeg(data)
            image.load()
            upright = image if _is_upright(image) else ImageOps.exif_transpose(image)
            return torch.from_numpy(np.array(_to_rgb(upright))).permute(2, 0, 1)
    except ValueError:
        raise
    except UnidentifiedImageError:
        raise ValueError(f"is no picture of a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from None
        raise ValueError(f"cannot be decoded: {error or type(error).__name__}") from None


def is_plain_jpeg(data: bytes) -> bool:
    """Return whether the data is a whole JPEG of RGB or grey pixels that are stored upright, by its header and end.

    Such a photograph any JPEG decoder turns into the picture that a person sees.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            has_end = data.rstrip(b"\0")[-2:] == b"\xff\xd9"
            return has_end and image.width * image.height <= MAX_PIXELS and _is_plain_jpeg(image)
    except Exception:  # Pillow's plugins raise OSError, SyntaxError, struct.error, ...
        return False


def _is_plain_jpeg(image: Image.Image) -> bool:
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
            pixels = image.width * image.height
    except _LongHeaderError:
        raise ValueError("has a longer header than any photograph") from None
    except MemoryError:
        raise
    except Exception:  # Pillow's plugins raise OSError, SyntaxError, struct.error, ...
        raise ValueError(f"is no picture of a known format ({', '.join(ADMITTED)})") from None
    if pixels > ADMITTED_PIXELS:
        raise ValueError(f"has {pixels:,} pixels, over the limit of {ADMITTED_PIXELS:,}")
    return pixels


def _decode_jpeg(data: bytes) -> Tensor:
    """Return the RGB picture of a JPEG as `decode` does; ValueError if it cannot be decoded."""
    try:
        # As a bytearray: for `bytes`, torchcodec changes the process's warning filters, for other threads too.
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        pixels: Tensor = decoders.decode_jpeg(encoded)  # type: ignore[attr-defined, assignment]
        return pixels
    except RuntimeError as error:  # its message begins with a position in torchcodec's source
        if is_out_of_memory(error):
            raise
        raise ValueError(f"cannot be decoded: {str(error).rpartition(', ')[2]}") from None


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


def seen(photograph: Tensor, fit: Fit) -> Tensor:
    """Return the part of a photograph (3, H, W) that a backbone is given: all for `squash`, the middle for `crop`."""
    if fit == "squash":
        return photograph
    height, width = photograph.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return photograph[:, top : top + side, left : left + side]


def resize(photograph: Tensor, size: int, fit: Fit, interpolation: Interpolation = "bilinear") -> Tensor:
    """Return a photograph, uint8 (3, H, W), resized to (3, size, size), antialiased, channels last in memory.

    `squash` fits the whole photograph into the square; `crop` keeps its proportions and takes the middle. The kernels
    are Pillow's, and the pixel values differ from Pillow's by 1 at most; with the bicubic kernel they may differ by
    more where one side grows and the other shrinks, because values that overshoot between the two passes are clipped
    in another order.
    """
    fitted = seen(photograph, fit).unsqueeze(0).contiguous(memory_format=torch.channels_last)
    return functional.interpolate(fitted, (size, size), mode=interpolation, antialias=True).squeeze(0)


def resize_in_float(photograph: Tensor, size: int, fit: Fit, interpolation: Interpolation = "bilinear") -> Tensor:
    """Return a photograph resized as `resize` does it, by float32 numbers, which a GPU has kernels for.

    The pixel values differ from those of `resize` by 1 at most, apart from its exception for the bicubic kernel.
    """
    fitted = seen(photograph, fit).unsqueeze(0).float()
    resized = functional.interpolate(fitted, (size, size), mode=interpolation, antialias=True).squeeze(0)
    return resized.round().clamp(0, 255).to(torch.uint8)


def stack(photographs: Sequence[Tensor]) -> Tensor:
    """Return photographs (3, H, W), all of one size, as one tensor (N, 3, H, W), channels last in memory."""
    return torch.stack([photograph.permute(1, 2, 0) for photograph in photographs]).permute(0, 3, 1, 2)


def normalise(photographs: Tensor, statistics: Statistics = IMAGENET) -> Tensor:
    """Return photographs, uint8 (N, 3, H, W), as float32 with the statistics' mean subtracted, over their deviation.

    Values are scaled to [0, 1] first. The result is channels last in memory.
    """
    # Filled there: numbers that were copied to a GPU would have it waited for.
    mean, deviation = (
        torch.cat([torch.full((1,), value, device=photographs.device) for value in values]) for values in statistics
    )
    # Computed over whole lines of pixels, channels last: a loop over three channels would be many times slower.
    lines = photographs.permute(0, 2, 3, 1).flatten(2).to(torch.float32)
    scale, shift = (values.repeat(photographs.shape[3]) for values in (1 / (255.0 * deviation), -mean / deviation))
    return (
        torch.addcmul(shift, lines, scale).view(*photographs.shape[:1], *photographs.shape[2:], 3).permute(0, 3, 1, 2)
    )
