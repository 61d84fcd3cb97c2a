"""The resizing of photographs as torch does it, to the pixel, in NumPy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..picture_formats import Fit, Interpolation

Pixels = npt.NDArray[np.uint8]
_ROWS = 256  # of a photograph that are worked on at once, so that they stay in the processor's caches
# Bits after the point: 8-bit values times such weights sum to less than 2 ** 24, overshoot of the cubic included.
_EXACT_IN_FLOAT32 = 15
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}


def seen(photograph: Pixels, fit: Fit) -> Pixels:
    """Return the part of a photograph (H, W, 3) that a backbone is given: see `photographs.seen`."""
    if fit == "squash":
        return photograph
    height, width = photograph.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return photograph[top : top + side, left : left + side]


def resize(photograph: Pixels, size: int, fit: Fit, interpolation: Interpolation) -> Pixels:
    """Return a photograph, uint8 (H, W, 3), resized to (size, size, 3), antialiased: as `photographs.resize`.

    Like torch, first every row and then every column is filtered, by weights rounded to 16 bits, and each result is
    rounded to 8 bits.
    """
    part = seen(photograph, fit)
    rows = np.empty((part.shape[0], size, 3), np.uint8)
    across = _filter(part.shape[1], size, interpolation)
    for first in range(0, len(rows), _ROWS):
        lines = part[first : first + _ROWS]
        rows[first : first + _ROWS] = _filtered(lines.transpose(1, 0, 2), across).transpose(1, 0, 2)
    return _filtered(rows, _filter(part.shape[0], size, interpolation))


class _Part(NamedTuple):
    """Some results that follow each other: values[first:last] make them, by weights (results, last - first)."""

    first: int
    last: int
    weights: npt.NDArray[Any]


class _Filter:
    """The filter of a side of `length` values into `size` results.

    parts: of all results in order, with weights that are whole numbers, of which 2 ** precision is 1. dtype: a float in
    which their sums with 8-bit values are exact, in whatever order they are added.
    """

    def __init__(self, length: int, size: int, interpolation: Interpolation) -> None:
        scale = length / size
        support = _SUPPORT[interpolation] * max(scale, 1.0)
        kernel = _triangle if interpolation == "bilinear" else _cubic
        rows: list[tuple[int, list[float]]] = []  # of each result: where its values begin, and their weights
        for index in range(size):
            centre = scale * (index + 0.5)
            first = max(int(centre - support + 0.5), 0)
            count = min(int(centre + support + 0.5), length) - first
            weights = [kernel((first + tap - centre + 0.5) / max(scale, 1.0)) for tap in range(count)]
            total = sum(weights)
            rows.append((first, [weight / total for weight in weights]))
        self.precision = _precision(max(max(weights) for _, weights in rows))
        self.dtype = np.float32 if self.precision <= _EXACT_IN_FLOAT32 else np.float64
        # As many results in a part as have about twice the values of one, so that the product has few zeros.
        together = max(int(max(len(weights) for _, weights in rows) / scale), 1)
        self.parts = [self._part(rows[start : start + together]) for start in range(0, size, together)]

    def _part(self, rows: list[tuple[int, list[float]]]) -> _Part:
        """Return the part of some results."""
        first, last = rows[0][0], max(start + len(weights) for start, weights in rows)
        matrix = np.zeros((len(rows), last - first), self.dtype)
        for row, (start, weights) in enumerate(rows):
            scaled = np.array(weights) * 2**self.precision
            matrix[row, start - first : start - first + len(weights)] = np.trunc(scaled + np.copysign(0.5, scaled))
        return _Part(first, last, matrix)


@lru_cache(maxsize=64)
def _filter(length: int, size: int, interpolation: Interpolation) -> _Filter:
    """Return the filter of a side; kept, because photographs come in few sizes."""
    return _Filter(length, size, interpolation)


def _filtered(values: Pixels, by: _Filter) -> Pixels:
    """Return values (L, X, 3) filtered along their first side: (size, X, 3)."""
    flat = values.reshape(values.shape[0], -1).astype(by.dtype)
    sums = np.concatenate([part.weights @ flat[part.first : part.last] for part in by.parts])
    rounded = (sums + 2 ** (by.precision - 1)) * 2.0**-by.precision
    pixels: Pixels = rounded.clip(0, 255).astype(np.uint8)
    return pixels.reshape(-1, *values.shape[1:])


def _precision(largest: float) -> int:
    """Return with how many bits after the point weights are rounded, so that the largest fits 16 bits with its sign."""
    precision = 0
    while precision < 22 and int(0.5 + largest * 2 ** (precision + 1)) < 2**15:
        precision += 1
    return precision


def _triangle(distance: float) -> float:
    """Return the weight of linear interpolation at a distance."""
    return max(1.0 - abs(distance), 0.0)


def _cubic(distance: float) -> float:
    """Return the weight of cubic convolution at a distance (Keys 1981), with a = -1/2."""
    x = abs(distance)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0
