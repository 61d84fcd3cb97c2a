"""Photographs, decoded and resized -> the tensor that a backbone takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .encoded_pictures import Pixels

# Mean and standard deviation of RGB values in [0, 1], with which a network's training photographs were normalised.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def as_batch(photographs: Sequence[Pixels]) -> Tensor:
    """Return photographs (S, S, 3), all of one size, as one tensor (N, 3, S, S), channels last in memory."""
    return torch.from_numpy(np.stack(photographs)).permute(0, 3, 1, 2)


def normalise(photographs: Tensor, statistics: Statistics = IMAGENET) -> Tensor:
    """Return photographs, uint8 (N, 3, H, W), as float32 with the statistics' mean subtracted, over their deviation.

    Values are scaled to [0, 1] first. The result is channels last in memory.
    """
    # Filled on the device: copying numbers to a GPU would wait for its work.
    mean, deviation = (
        torch.cat([torch.full((1,), value, device=photographs.device) for value in values]) for values in statistics
    )
    # Computed over whole lines of pixels, channels last: a loop over three channels is many times slower.
    lines = photographs.permute(0, 2, 3, 1).flatten(2).to(torch.float32)
    scale, shift = (values.repeat(photographs.shape[3]) for values in (1 / (255.0 * deviation), -mean / deviation))
    return (
        torch.addcmul(shift, lines, scale).view(*photographs.shape[:1], *photographs.shape[2:], 3).permute(0, 3, 1, 2)
    )
