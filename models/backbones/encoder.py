"""The encoder: a frozen backbone arranged for speed, which turns photographs into the grids that are stored."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .base import Backbone

Precision = Literal["float32", "bfloat16"]
# Pixels encoded at once on a CPU, so that the feature maps stay in its caches: twice as many made MobileNetV2 a
# quarter slower.
_CACHED_PIXELS = 16 * 224**2


class Encoder:
    """A copy of a backbone for inference: photographs, uint8 (N, 3, S, S) -> grids, float16 (N, h, w, C).

    Extraction and the captioner both use it, so both see the same grids. It computes what the backbone computes: batch
    norms are folded into the convolutions before them, weights are stored in `precision`, and pictures are laid out
    channels-last. Pooling and what follows it are computed in float32. The backbone passed in is not changed.
    """

    def __init__(
        self,
        backbone: Backbone,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
        compile_for: int | None = None,
    ) -> None:
        """Copy the backbone, fold its batch norms and move the copy to `device`.

        compile_for: the usual number of photographs in a batch, for which the forward pass is compiled; None compiles
        nothing. Batches of other sizes run uncompiled, because the compiled code works for one size only.
        """
        self.device = torch.device(device)
        self.declared = backbone.declared
        self.backbone = copy.deepcopy(backbone).requires_grad_(False).eval()
        self.backbone.fold()
        self.backbone.to(self.device).to(memory_format=torch.channels_last)
        self.backbone.features.to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
        self._compile_for = compile_for
        self.compiled: Callable[[Tensor], Tensor] | None = None
        if compile_for is not None:  # only then: loading the compiler alone takes a second
            # `reduce-overhead` replays the forward pass as a CUDA graph.
            how: Any = {"mode": "reduce-overhead"} if self.device.type == "cuda" else {"options": {"freezing": True}}
            self.compiled = torch.compile(self.backbone.maps, dynamic=False, **how)

    @torch.inference_mode()
    def __call__(self, photographs: Tensor) -> Tensor:
        """Return the grids, on the encoder's device; values beyond float16's range are clamped to its limits."""
        pixels = photographs[0, 0].numel()
        compiled_size = self._compile_for and self._chunk_size(self._compile_for, pixels)
        chunks = torch.split(photographs, self._chunk_size(len(photographs), pixels))
        return torch.cat(
            [_encode(self.backbone, self.compiled if len(chunk) == compiled_size else None, chunk) for chunk in chunks]
        )

    def _chunk_size(self, count: int, pixels: int) -> int:
        """Return how many of `count` photographs of `pixels` each are encoded at once.

        All chunks get the same size if `count` allows it.
        """
        if self.device.type != "cpu":
            return count
        chunks = math.ceil(count / max(_CACHED_PIXELS // pixels, 1))
        return math.ceil(count / chunks)

    def check(self, size: int) -> None:
        """Raise ValueError if a photograph of `size` px does not give a grid of the declared shape."""
        pooled = self.backbone.grid
        sides = self.declared.sides(size) if pooled is None else (pooled, pooled)
        try:
            shape = self(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1:]
        except Exception as error:  # torch and its libraries reject sizes with various errors
            raise ValueError(f"takes no pictures of {size} px: {' '.join(str(error).split())[:160]}") from None
        if shape[0] != shape[1] or shape[0] not in sides or self.declared.channels not in (None, shape[2]):
            channels = self.declared.channels or shape[2]
            raise ValueError(
                f"turned {size} px into a grid of shape {tuple(shape)}, but declares {(sides[1], sides[1], channels)}"
            )


def _encode(backbone: Backbone, compiled: Callable[[Tensor], Tensor] | None, photographs: Tensor) -> Tensor:
    """Return the grids of one chunk; compiled: the compiled forward pass, None for the uncompiled one."""
    weight = next(backbone.features.parameters())
    inputs = backbone.normalised(photographs.to(weight.device, non_blocking=True)).to(weight.dtype)
    grid = backbone.to_grid((compiled or backbone.maps)(inputs).float())
    limit = torch.finfo(torch.float16).max
    return grid.clamp(-limit, limit).to(torch.float16)
