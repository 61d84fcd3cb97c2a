"""A photograph's bytes -> the upright RGB a person sees -> the tensor a backbone takes.

The same code serves extraction and the registered captioner: that is why both see the same grids.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional
from torchcodec import decoders

Fit = Literal["squash", "crop"]
Interpolation = Literal["bilinear", "bicubic"]
# Mean and standard deviation of RGB in [0, 1] that a network was trained with.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 100_000_000
ADMITTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
ADMITTED_BYTES, ADMITTED_PIXELS, _ADMITTED_MARKERS = 32 * 2**20, 50_000_000, 200
_ADMITTED_PIECES = 10_000  # of a header; some milliseconds
_ORIENTATION = 0x0112  # of EXIF


def decode(data: bytes) -> Tensor:
    """The upright RGB picture of an encoded photograph, uint8 (3, H, W), channels last in memory.

    Grey, palette, CMYK and 16-bit pictures become 8-bit RGB; transparency is laid over white; EXIF
    orientation is applied. Raises ValueError, with the reason, for what is no such picture, is cut short,
    or has over 100 million pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"has {image.width} x {image.height} pixels, over the limit of {MAX_PIXELS:,}")
            if image.format == "JPEG" and image.mode in ("L", "RGB") and _upright(image):
                # The same pixels as Pillow's, but threads may decode at once: Pillow holds on to the interpreter.
                return _decode_jpeg(data)
            image.load()
            upright = image if _upright(image) else ImageOps.exif_transpose(image)
            return torch.from_numpy(np.array(_to_rgb(upright))).permute(2, 0, 1)
    except ValueError:
        raise
    except UnidentifiedImageError:
        raise ValueError(f"is no picture of a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        raise ValueError(f"cannot be decoded: {error}") from None


class _LongError(Exception):
    """A header is read in more pieces than any photograph's."""


class _Header(io.BytesIO):
    """A file of which a header may be read: Pillow goes through segments, chunks and junk one by one."""

    pieces = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.pieces += 1
        if self.pieces > _ADMITTED_PIECES:
            raise _LongError
        return super().read(size)


def _upright(image: Image.Image) -> bool:
    try:
        return bool(image.getexif().get(_ORIENTATION, 1) == 1)
    except Exception:  # SyntaxError, struct.error, ...: EXIF that is broken tells nothing, and the pixels are sound
        return True


def admit(data: bytes) -> int:
    """The pixels that a stranger's photograph tells of, by its header alone; ValueError where it is not to be decoded.

    Fewer formats and pixels than `decode` takes, and nothing made to be slow: no JPEG of thousands of scans, and no
    header of so many parts, or so much junk, that reading it takes long.
    """
    if len(data) > ADMITTED_BYTES:
        raise ValueError(f"has {len(data):,} bytes, over the limit of {ADMITTED_BYTES:,}")
    # Neither marker occurs within the coded pixels: a photograph has one scan, or ten, and a segment or two.
    if data[:2] == b"\xff\xd8" and max(data.count(b"\xff\xda"), data.count(b"\xff\xe1")) > _ADMITTED_MARKERS:
        raise ValueError("has more scans or segments than any photograph")
    try:
        with Image.open(_Header(data), formats=ADMITTED) as image:
            pixels = image.width * image.height
    except _LongError:
        raise ValueError("has a longer header than any photograph") from None
    except Exception:  # Pillow's plugins raise OSError, SyntaxError, struct.error, ...
        raise ValueError(f"is no picture of a known format ({', '.join(ADMITTED)})") from None
    if pixels > ADMITTED_PIXELS:
        raise ValueError(f"has {pixels:,} pixels, over the limit of {ADMITTED_PIXELS:,}")
    return pixels


def _decode_jpeg(data: bytes) -> Tensor:
    try:
        # Not of `bytes`: around those it changes the process's warning filters, and other threads' with them.
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        pixels: Tensor = decoders.decode_jpeg(encoded)  # type: ignore[attr-defined, assignment]
        return pixels
    except RuntimeError as error:  # it tells the place in its own source first
        raise ValueError(f"cannot be decoded: {str(error).rpartition(', ')[2]}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow clips 16-bit grey to 255 when it converts; scale it by its true range instead.
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode.startswith("I") else max(float(values.max()), 1.0)
        return Image.fromarray(np.clip(values / top * 255.0 + 0.5, 0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")


def seen(photograph: Tensor, fit: Fit) -> Tensor:
    """The part of (3, H, W) that a backbone is shown."""
    if fit == "squash":
        return photograph
    height, width = photograph.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return photograph[:, top : top + side, left : left + side]


def resize(photograph: Tensor, size: int, fit: Fit, interpolation: Interpolation = "bilinear") -> Tensor:
    """uint8 (3, H, W) -> (3, size, size), antialiased, channels last in memory.

    `squash` shows the whole photograph in the square; `crop` keeps proportions and cuts the middle out. The kernels
    are Pillow's, and so are the pixels, give or take one; cubic ones may differ by more where one side grows and the
    other shrinks, because what overshoots between the two is clipped in another order.
    """
    shown = seen(photograph, fit).unsqueeze(0).contiguous(memory_format=torch.channels_last)
    return functional.interpolate(shown, (size, size), mode=interpolation, antialias=True).squeeze(0)


def stack(photographs: Sequence[Tensor]) -> Tensor:
    """(3, H, W) each -> (N, 3, H, W), channels last in memory."""
    return torch.stack([photograph.permute(1, 2, 0) for photograph in photographs]).permute(0, 3, 1, 2)


def normalise(photographs: Tensor, statistics: Statistics = IMAGENET) -> Tensor:
    """uint8 (N, 3, H, W) -> float32, channels last in memory, with mean 0 and deviation 1 by the statistics given."""
    mean, deviation = (torch.tensor(values, device=photographs.device) for values in statistics)
    # Over whole lines of pixels, channels last: a loop over three channels would be many times slower.
    lines = photographs.permute(0, 2, 3, 1).flatten(2).to(torch.float32)
    scale, shift = (values.repeat(photographs.shape[3]) for values in (1 / (255.0 * deviation), -mean / deviation))
    return (
        torch.addcmul(shift, lines, scale).view(*photographs.shape[:1], *photographs.shape[2:], 3).permute(0, 3, 1, 2)
    )
