"""Photographs: encoded bytes -> the upright RGB picture that a person sees -> the tensor that a backbone takes.

Extraction and the registered captioner share this code, so both compute the same grids.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from . import encoded_pictures
from .picture_formats import Fit, Interpolation

# Mean and standard deviation of RGB values in [0, 1], by which a network's training photographs were normalised.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def decode(data: bytes) -> Tensor:
    """Return the upright RGB picture of an encoded photograph, uint8 (3, H, W), channels last in memory.

    See `encoded_pictures.decode`.
    """
    return torch.from_numpy(encoded_pictures.decode(data)).permute(2, 0, 1)


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
