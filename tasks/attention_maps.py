"""Where the captioner looked, word by word, drawn over the photograph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 5


def draw(photograph: Image.Image, words: list[str], attention: npt.NDArray[np.float32], fit: str = "squash") -> Figure:
    """The photograph, then once a word with the word's map (words, h, w) laid over it."""
    from matplotlib.figure import Figure

    photograph = _seen(photograph, fit)
    width, height = photograph.size
    rows = math.ceil((len(words) + 1) / _COLUMNS)
    tile = 2.4
    figure = Figure(figsize=(tile * _COLUMNS, (tile * height / width + 0.35) * rows), layout="constrained", dpi=110)
    axes: list[Any] = list(np.atleast_1d(figure.subplots(rows, _COLUMNS)).flat)
    for axis in axes:
        axis.axis("off")
    axes[0].imshow(photograph)
    axes[0].set_title("photograph", fontsize=11, color="0.4")
    for axis, word, weights in zip(axes[1:], words, attention, strict=False):
        heat = Image.fromarray(weights).resize((width, height), Image.Resampling.BICUBIC)
        axis.imshow(photograph.convert("L"), cmap="gray", vmin=-60, vmax=300)
        axis.imshow(np.asarray(heat), cmap="inferno", alpha=0.55, vmin=0.0, vmax=max(float(weights.max()), 1e-6))
        axis.set_title(word, fontsize=13)
    return figure


def _seen(photograph: Image.Image, fit: str) -> Image.Image:
    """The part of the photograph that the backbone saw."""
    if fit == "squash":
        return photograph
    side = min(photograph.size)
    left, top = (photograph.width - side) // 2, (photograph.height - side) // 2
    return photograph.crop((left, top, left + side, top + side))
