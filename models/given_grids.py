"""Files of precomputed grids, which a captioner without a backbone takes in place of photographs."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_MOST_BYTES = 64 << 20


def as_float16(values: npt.ArrayLike) -> npt.NDArray[np.float16]:
    """Return a grid as grids are stored: float16, clipped to its range; ValueError if a value is not finite."""
    grid = np.asarray(values, dtype=np.float32)
    if not np.isfinite(grid).all():
        raise ValueError("holds values that are not finite")
    limit = float(np.finfo(np.float16).max)
    return grid.clip(-limit, limit).astype(np.float16)


def read_grid(data: bytes, shape: Sequence[int]) -> npt.NDArray[np.float16]:
    """Return the grid in a .npy file, float16 of this shape (h, w, C); ValueError if it holds anything else."""
    if not data.startswith(b"\x93NUMPY"):
        raise ValueError(f"is no .npy file: this model takes grids of floats of shape {tuple(shape)}, not photographs")
    if len(data) > _MOST_BYTES:
        raise ValueError(f"has {len(data):,} bytes, over the limit of {_MOST_BYTES:,}")
    try:
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy raises various errors for a damaged file
        raise ValueError(f"is no .npy file of a grid: {' '.join(str(error).split())[:100]}") from None
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.shape != tuple(shape):
        content = f"{values.shape} {values.dtype}" if isinstance(values, np.ndarray) else "several arrays"
        raise ValueError(f"holds {content}, not a grid of floats of shape {tuple(shape)}")
    return as_float16(values)
