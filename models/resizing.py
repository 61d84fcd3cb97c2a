"""The resizing of photographs to the square that a backbone takes, by Pillow, which does it without Python's lock."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from .picture_formats import Fit, Interpolation

Pixels = npt.NDArray[np.uint8]
_KERNELS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def seen(photograph: Pixels, fit: Fit) -> Pixels:
    """Return the part of a photograph (H, W, 3) that a backbone is given: all for `squash`, the middle for `crop`."""
    if fit == "squash":
        return photograph
    height, width = photograph.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return photograph[top : top + side, left : left + side]


def resize(photograph: Pixels, size: int, fit: Fit, interpolation: Interpolation = "bilinear") -> Pixels:
    """Return a photograph, uint8 (H, W, 3), resized to (size, size, 3), antialiased.

    `squash` fits the whole photograph into the square; `crop` keeps its proportions and takes the middle.
    """
    part = Image.fromarray(np.ascontiguousarray(seen(photograph, fit)))
    return np.array(part.resize((size, size), _KERNELS[interpolation]))
