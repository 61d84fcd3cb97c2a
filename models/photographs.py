"""A photograph's bytes -> the upright RGB a person sees -> the tensor a backbone takes.

The same code serves extraction and the registered captioner: that is why both see the same grids.
"""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

Fit = Literal["squash", "crop"]
Interpolation = Literal["bilinear", "bicubic"]
# Mean and standard deviation of RGB in [0, 1] that a network was trained with.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 100_000_000


def decode(data: bytes) -> Image.Image:
    """The upright RGB picture of an encoded photograph.

    Grey, palette, CMYK and 16-bit pictures become 8-bit RGB; transparency is laid over white; EXIF
    orientation is applied. Raises ValueError, with the reason, for what is no such picture, is cut short,
    or has over 100 million pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"has {image.width} x {image.height} pixels, over the limit of {MAX_PIXELS:,}")
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image))
    except ValueError:
        raise
    except UnidentifiedImageError:
        raise ValueError(f"is no picture of a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        raise ValueError(f"cannot be decoded: {error}") from None


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


def resize(image: Image.Image, size: int, fit: Fit, interpolation: Interpolation = "bilinear") -> Tensor:
    """An RGB picture -> uint8 (3, size, size), antialiased.

    `squash` shows the whole photograph in the square; `crop` keeps proportions and cuts the middle out.
    """
    kernel = Image.Resampling.BICUBIC if interpolation == "bicubic" else Image.Resampling.BILINEAR
    resized = ImageOps.fit(image, (size, size), kernel) if fit == "crop" else image.resize((size, size), kernel)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()


def normalise(photographs: Tensor, statistics: Statistics = IMAGENET) -> Tensor:
    """uint8 (N, 3, H, W) -> float32 of the same shape, with mean 0 and deviation 1 by the statistics given."""
    mean, deviation = (torch.tensor(values, device=photographs.device).view(1, 3, 1, 1) for values in statistics)
    return (photographs.to(torch.float32).div(255.0) - mean) / deviation
