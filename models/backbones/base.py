"""The contract of a backbone, and how its weights get into it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental import optimization
from torch.nn import functional

from ..photographs import IMAGENET, Interpolation, Statistics, normalise
from . import BACKBONES, LIBRARIES


@dataclass(frozen=True)
class Declared:
    """What a backbone promises.

    channels: C; None where only the network itself tells. stride: pixels a grid position stands for: a photograph of
    S px becomes S / stride positions a side, rounded up or down as its padding has it. statistics, interpolation: of
    the photographs that its published weights were trained on.
    """

    channels: int | None
    stride: int = 32
    statistics: Statistics = IMAGENET
    interpolation: Interpolation = "bilinear"

    def sides(self, size: int) -> tuple[int, int]:
        """The fewest and the most grid positions a side for a photograph of `size` px."""
        return size // self.stride, -(-size // self.stride)


class Backbone(nn.Module):
    """A frozen network: photographs, normalised float32 (N, 3, H, W) -> grid of annotation vectors (N, h, w, C).

    features: the network up to its last spatial map (N, C, h, w). head: prefixes of weights that belong to the
    classifier behind it, which a weight file may hold and we do not use. prefix: what names of weights in such a
    file begin with. published: name of torchvision's weight enum, or `timm:MODEL`, where it has any. blocks: what the
    names of each block's weights begin with, in order; the stem belongs to none. grid: side the
    map is average-pooled to (adaptive); None keeps the backbone's own.
    """

    def __init__(
        self,
        features: nn.Module,
        declared: Declared,
        head: tuple[str, ...] = (),
        prefix: str = "",
        published: str | None = None,
        blocks: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        super().__init__()
        self.features = features
        self.declared = declared
        self.head = head
        self.prefix = prefix
        self.published = published
        self.blocks = blocks
        self.grid: int | None = None
        self.eval()
        self.requires_grad_(False)

    def forward(self, photographs: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, h, w, C)."""
        return self.laid_out(self.maps(photographs))

    def maps(self, photographs: Tensor) -> Tensor:
        """(N, 3, H, W) -> the network's own map (N, C, h, w)."""
        found: Tensor = self.features(photographs)
        return found

    def laid_out(self, maps: Tensor) -> Tensor:
        """A map (N, C, h, w) -> the grid (N, h, w, C), pooled where `grid` says so."""
        if self.grid is not None:
            maps = functional.adaptive_avg_pool2d(maps, self.grid)
        return maps.permute(0, 2, 3, 1)

    def normalised(self, photographs: Tensor) -> Tensor:
        """uint8 (N, 3, S, S) -> what `forward` takes, as the published weights expect it."""
        return normalise(photographs, self.declared.statistics)

    def fold(self) -> None:
        """Fold each batch norm into the convolution before it, for good: the same network, no longer to be trained."""
        traced = fx.symbolic_trace(self.features).eval()
        self.features = optimization.fuse(traced, inplace=True, no_trace=True)

    def unfreeze(self, first_block: int) -> list[nn.Parameter]:
        """Let blocks `first_block` (from 1) to the last be trained; returns their weights.

        Batch norm stays in evaluation mode all the same: its statistics are the published ones. ValueError where
        the backbone has no such block.
        """
        if not 1 <= first_block <= len(self.blocks):
            has = f"has {len(self.blocks)} blocks" if self.blocks else "does not say which blocks it has"
            raise ValueError(f"{has}: block {first_block} cannot be tuned")
        tuned = tuple(prefix for block in self.blocks[first_block - 1 :] for prefix in block)
        weights = [weight for name, weight in self.features.named_parameters() if name.startswith(tuned)]
        for weight in weights:
            weight.requires_grad_(True)
        return weights

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a state dict in the layout of its library; the classifier's weights may be there or not.

        Raises ValueError that names the first weight that is missing, unknown or of another shape.
        """
        own = self.features.state_dict()
        given = {
            name.removeprefix(self.prefix): value
            for name, value in state.items()
            # Some networks keep a part of what others have in their heads.
            if not self.head or not name.startswith(self.head) or name.removeprefix(self.prefix) in own
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
    library, colon, model = name.partition(":")
    member = LIBRARIES.get(library) if colon else BACKBONES.get(name)
    if member is None:
        raise ValueError(f"unknown backbone {name!r}; known: {', '.join(sorted(BACKBONES))}")
    place = member.module if "." in member.module else f"{__package__}.{member.module}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if seed is None else seed)
        build = getattr(importlib.import_module(place), member.builder)
        backbone: Backbone = build(model) if colon else build()
    backbone.grid = grid
    return backbone.eval()
