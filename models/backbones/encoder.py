"""A frozen backbone arranged for speed: what turns photographs into the grids that are kept."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from .base import Backbone

Precision = Literal["float32", "bfloat16"]
# As many at once on a CPU as its caches hold the maps of: twice as many made MobileNetV2 a quarter slower.
_CACHED_PIXELS = 16 * 224**2


class Encoder:
    """Photographs, uint8 (N, 3, S, S) -> grids, float16 (N, h, w, C): extraction and the captioner see the same.

    Computes what the backbone does, which is left as it is: batch norms are folded into the convolutions before them,
    weights are kept in the precision asked for, pictures lie channels-last. Pooling and what follows is float32.
    """

    def __init__(
        self,
        backbone: Backbone,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
        compile_for: int | None = None,
    ) -> None:
        """compile_for: a number of photographs that batches mostly have, whose forward pass is compiled; None for none.

        Others go uncompiled: what is compiled is right for one size alone.
        """
        self.device = torch.device(device)
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.declared = backbone.declared
        self._backbone = copy.deepcopy(backbone).requires_grad_(False).eval()
        self._backbone.fold()
        self._backbone.to(self.device, self.dtype).to(memory_format=torch.channels_last)
        self._compile_for = compile_for
        self._compiled: Callable[[Tensor], Tensor] | None = None
        if compile_for is not None:  # not otherwise: the compiler alone takes a second to load
            self._compiled = torch.compile(self._backbone.maps, dynamic=False, options={"freezing": True})

    @torch.inference_mode()
    def __call__(self, photographs: Tensor) -> Tensor:
        """The grids, on the encoder's device. Values beyond float16 are clamped to its largest."""
        pixels = photographs[0, 0].numel()
        usual = self._compile_for and self._part(self._compile_for, pixels)
        size = self._part(len(photographs), pixels)
        parts = torch.split(photographs, size)
        return torch.cat([self._encoded(part, self._compiled if len(part) == usual else None) for part in parts])

    def _part(self, photographs: int, pixels: int) -> int:
        """How many of so many photographs are encoded at once, the same in all parts if it can be."""
        if self.device.type != "cpu":
            return photographs
        parts = math.ceil(photographs / max(_CACHED_PIXELS // pixels, 1))
        return math.ceil(photographs / parts)

    @torch.inference_mode()
    def _encoded(self, photographs: Tensor, compiled: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        inputs = self._backbone.normalised(photographs.to(self.device, non_blocking=True)).to(self.dtype)
        grid = self._backbone.laid_out((compiled or self._backbone.maps)(inputs).float())
        limit = torch.finfo(torch.float16).max
        return grid.clamp(-limit, limit).to(torch.float16)

    def check(self, size: int) -> None:
        """ValueError where a photograph of `size` px does not become the grid declared."""
        pooled = self._backbone.grid
        sides = self.declared.sides(size) if pooled is None else (pooled, pooled)
        try:
            shape = self._encoded(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1:]
        except Exception as error:  # torch and its libraries assert sizes in ways of their own
            raise ValueError(f"takes no pictures of {size} px: {' '.join(str(error).split())[:160]}") from None
        if shape[0] != shape[1] or shape[0] not in sides or self.declared.channels not in (None, shape[2]):
            channels = self.declared.channels or shape[2]
            raise ValueError(
                f"made a grid of {tuple(shape)} of {size} px, {(sides[1], sides[1], channels)} is declared"
            )
