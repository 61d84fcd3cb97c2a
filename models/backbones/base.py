"""The contract of a backbone, and how its weights get into it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..photographs import normalise
from . import BACKBONES


class Backbone(nn.Module):
    """A frozen CNN: photographs, normalised float32 (N, 3, H, W) -> grid of annotation vectors (N, h, w, C).

    features: the CNN up to its last spatial map (N, C, h, w). channels: C. head: prefixes of weights that
    belong to the classifier behind it, which a weight file may hold and we do not use.
    torchvision_weights: name of torchvision's weight enum, where it has one. grid: side the map is
    average-pooled to (adaptive); None keeps the backbone's own.
    """

    def __init__(
        self,
        features: nn.Module,
        channels: int,
        head: tuple[str, ...] = (),
        prefix: str = "",
        torchvision_weights: str | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.channels = channels
        self.head = head
        self.prefix = prefix
        self.torchvision_weights = torchvision_weights
        self.grid: int | None = None
        self.eval()
        self.requires_grad_(False)

    def forward(self, photographs: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, h, w, C)."""
        maps: Tensor = self.features(photographs)
        if self.grid is not None:
            maps = functional.adaptive_avg_pool2d(maps, self.grid)
        return maps.permute(0, 2, 3, 1)

    @torch.inference_mode()
    def encode(self, photographs: Tensor, precision: str = "float32") -> Tensor:
        """uint8 (N, 3, S, S) -> the grid as it is kept: float16 (N, h, w, C), on the backbone's device.

        precision: `float32`, or `bfloat16` for autocast. Values beyond float16 are clamped to its largest.
        """
        device = next(self.parameters()).device
        inputs = normalise(photographs.to(device)).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            grid: Tensor = self(inputs)
        limit = torch.finfo(torch.float16).max
        return grid.float().clamp(-limit, limit).to(torch.float16)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a state dict in torchvision's layout; the classifier's weights may be there or not.

        Raises ValueError that names the first weight that is missing, unknown or of another shape.
        """
        own = self.features.state_dict()
        given = {
            name.removeprefix(self.prefix): value
            for name, value in state.items()
            if not name.startswith(self.head) or not self.head
        }
        for name, value in own.items():
            if name not in given:
                if name.endswith("num_batches_tracked"):  # not in files from before torch 0.4.1
                    given[name] = value
                    continue
                raise ValueError(f"{self.prefix}{name} is missing: these are weights of another architecture")
            if given[name].shape != value.shape:
                raise ValueError(
                    f"{self.prefix}{name} is {tuple(given[name].shape)}, {tuple(value.shape)} is needed: "
                    "these are weights of another architecture"
                )
        for name in given:
            if name not in own:
                raise ValueError(f"{name} is no weight of it: these are weights of another architecture")
        self.features.load_state_dict(given)


def make(name: str, grid: int | None = None, seed: int | None = None) -> Backbone:
    """The backbone `name` with random weights (by `seed`), ready for `load`; ValueError for an unknown name."""
    if name not in BACKBONES:
        raise ValueError(f"unknown backbone {name!r}; known: {', '.join(sorted(BACKBONES))}")
    module, builder = BACKBONES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if seed is None else seed)
        backbone: Backbone = getattr(importlib.import_module(f".{module}", __package__), builder)()
    backbone.grid = grid
    return backbone.eval()
