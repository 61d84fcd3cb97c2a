"""Pictures of more than 8 bits a value: 16-bit, 32-bit and float values -> 8 bits, by the range each picture uses.

Scanners, microscopes and X-ray detectors write 10, 12 or 14 bits into 16-bit files. Scaled by 65,535 these are black.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

_BITS = (8, 10, 12, 14, 16)
_PART = 2**20  # values scaled at once: all of a large picture's would take GiBs


def deep_values(image: Image.Image, data: bytes) -> npt.NDArray[Any] | None:
    """Return the values of a picture of more than 8 bits, (H, W) or (H, W, C); None for a picture of 8 bits.

    image: the opened file, whose pixels are not loaded yet. data: the encoded picture.
    """
    values: npt.NDArray[Any]
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        return values
    swapped = _byte_swapped_tiles(image)
    if swapped is None:
        return None
    # Pillow keeps the high byte of each 16-bit colour; with the byte order swapped, the low one.
    with Image.open(io.BytesIO(data), formats=(str(image.format),)) as low:
        low.tile = swapped
        values = np.asarray(image).astype(np.uint16)
        values *= 256
        values += np.asarray(low)
        return values


def _byte_swapped_tiles(image: Image.Image) -> list[Any] | None:
    """Return the tiles of a picture of 16-bit colours with the other byte order; None for other pictures."""
    tiles = []
    for tile in getattr(image, "tile", []):
        raw, *more = tile.args if isinstance(tile.args, tuple) else (tile.args,)
        if raw not in ("RGB;16B", "RGB;16L", "RGBA;16B", "RGBA;16L"):
            return None
        swapped = raw[:-1] + ("L" if raw.endswith("B") else "B")
        tiles.append(tile._replace(args=(swapped, *more) if more else swapped))
    return tiles or None


def to_8_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return values as 0 to 255, uint8: 0 stays black, and the end of the range that the picture uses becomes white.

    White is 1 for floats up to 1. Otherwise it is the largest number of 8, 10, 12, 14 or 16 bits, the fewest that hold
    the maximum, or the maximum itself if it is larger. With negative values, the minimum becomes black and the maximum
    white. NaN is black.
    """
    if values.ndim == 3 and values.shape[2] == 4:  # opacity has a range of its own
        return np.concatenate([to_8_bits(values[..., :3]), to_8_bits(values[..., 3:])], axis=2)
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if low >= 0.0:
        low, high = 0.0, _white(high, is_float=values.dtype.kind == "f")
    scaled = np.empty(values.shape, np.uint8)
    flat, output = values.reshape(-1), scaled.reshape(-1)
    for first in range(0, len(flat), _PART):
        part = flat[first : first + _PART].astype(np.float64)
        part = np.nan_to_num((part - low) / max(high - low, 1e-12), nan=0.0, posinf=1.0, neginf=0.0)
        output[first : first + _PART] = np.clip(part * 255.0 + 0.5, 0, 255)
    return scaled


def _white(maximum: float, is_float: bool) -> float:
    """Return the value that becomes white, for values from 0 to `maximum`."""
    if is_float and maximum <= 1.0:
        return 1.0
    return next((2.0**bits - 1.0 for bits in _BITS if maximum < 2.0**bits), maximum)
