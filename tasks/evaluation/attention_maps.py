"""Attention maps: where the captioner looked for each word, drawn over the photograph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from models.encoded_pictures import Pixels, seen
from models.picture_formats import Fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 5
_DARK = 0.25  # brightness of the photograph where there is no attention, so that it can still be seen


def draw(photograph: Pixels, words: list[str], attention: npt.NDArray[np.float32], fit: Fit = "squash") -> Figure:
    """Return a figure of the photograph, then of the photograph once per word, lit where that word's map is high.

    photograph: uint8 (H, W, 3). attention: (words, h, w). fit: how the photograph was fitted to the backbone's input.
    """
    from matplotlib.figure import Figure

    image = Image.fromarray(seen(photograph, fit))
    width, height = image.size
    rows = math.ceil((len(words) + 1) / _COLUMNS)
    tile = 2.4  # width of one image, inches
    figure = Figure(figsize=(tile * _COLUMNS, (tile * height / width + 0.35) * rows), layout="constrained", dpi=110)
    axes: list[Any] = list(np.atleast_1d(figure.subplots(rows, _COLUMNS)).flat)
    for axis in axes:
        axis.axis("off")
    axes[0].imshow(image)
    axes[0].set_title("photograph", fontsize=11, color="0.4")
    for axis, word, weights in zip(axes[1:], words, attention, strict=False):
        heat = np.asarray(Image.fromarray(weights).resize((width, height), Image.Resampling.BICUBIC))
        light = _DARK + (1 - _DARK) * (heat / max(float(weights.max()), 1e-6)).clip(0, 1)
        axis.imshow((np.asarray(image) * light[..., None]).astype(np.uint8))
        axis.set_title(word, fontsize=13)
    return figure
