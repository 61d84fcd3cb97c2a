"""The interface of a backbone, and how its weights are loaded."""

from __future__ import annotations

import importlib
import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ..photographs import IMAGENET, Statistics, normalise
from ..picture_formats import Interpolation
from . import BACKBONES, LIBRARIES


@dataclass(frozen=True)
class BackboneProperties:
    """The declared properties of a backbone.

    channels: C; None if it is known only after the network has run. stride: pixels per grid position: a photograph
    of S px becomes S / stride positions a side, rounded up or down depending on the network's padding. statistics,
    interpolation: how the photographs that the published weights were trained on were normalised and resized.
    """

    channels: int | None
    stride: int = 32
    statistics: Statistics = IMAGENET
    interpolation: Interpolation = "bilinear"

    def sides(self, size: int) -> tuple[int, int]:
        """Return the fewest and the most grid positions a side for a photograph of `size` px."""
        return size // self.stride, -(-size // self.stride)


class Backbone(nn.Module):
    """A frozen network: photographs, normalised float32 (N, 3, H, W) -> grid of annotation vectors (N, h, w, C).

    features: the network up to its last spatial map (N, C, h, w). head: name prefixes of the classifier's weights,
    which a weight file may contain and which are not used. prefix: the prefix of all weight names in such a file.
    published: name of torchvision's weight enum, or `timm:MODEL`; None if no weights are published. blocks: for each
    block, in order, its weights' names or their prefixes; the stem belongs to no block. grid: the side that the map is
    average-pooled to (adaptive); None for no pooling.
    """

    def __init__(
        self,
        features: nn.Module,
        declared: BackboneProperties,
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
        self.projection: Tensor | None = None
        self.eval()
        self.requires_grad_(False)

    def forward(self, photographs: Tensor) -> Tensor:
        """Return the grids (N, h, w, C) of normalised photographs (N, 3, H, W)."""
        return self.to_grid(self.maps(photographs))

    def maps(self, photographs: Tensor) -> Tensor:
        """Return the network's last spatial map (N, C, h, w), not pooled, of normalised photographs (N, 3, H, W)."""
        maps: Tensor = self.features(photographs)
        return maps

    def to_grid(self, maps: Tensor) -> Tensor:
        """Return the grid (N, h, w, C) of a map (N, C, h, w), pooled to `grid` x `grid` positions if that is set.

        If a projection is set, C is its number of channels.
        """
        if self.grid is not None:
            maps = functional.adaptive_avg_pool2d(maps, self.grid)
        grid = maps.permute(0, 2, 3, 1)
        return grid if self.projection is None else grid @ self.projection.T

    def project(self, matrix: Tensor) -> None:
        """Project the channels of all later grids by a matrix (C', C)."""
        del self.projection
        self.register_buffer("projection", matrix)

    def normalised(self, photographs: Tensor) -> Tensor:
        """Return uint8 photographs (N, 3, S, S) as float32, normalised as the published weights expect."""
        return normalise(photographs, self.declared.statistics)

    def fold(self) -> None:
        """Fold each batch norm into the convolution before it; the outputs stay the same.

        This cannot be undone, and the network can no longer be trained.
        """
        self.features = fold_norms(self.features)

    def fix_size(self, size: int) -> None:
        """Precompute what depends on the photographs' size, for `size` px, because a graph is exported for one size.

        The map stays the same. Afterwards the network may reject other sizes.
        """

    def grid_shape(self, size: int) -> tuple[int, int, int]:
        """Return the grid shape (h, w, C) for photographs of size x size px; ValueError if the network rejects them."""
        try:
            with torch.inference_mode():
                _, height, width, channels = self(torch.zeros(1, 3, size, size)).shape
        except Exception as error:  # timm and torchvision raise various errors
            raise ValueError(f"takes no pictures of {size} px: {' '.join(str(error).split())[:160]}") from None
        return height, width, channels

    def tunable(self, first_block: int, size: int) -> list[list[nn.Parameter]]:
        """Return the weights that a grid depends on, for each block from `first_block` (counted from 1) to the last.

        A weight shared by blocks is listed in the first of them. size: side of the photographs in pixels. Raises
        ValueError if the backbone has no such block.
        """
        if not 1 <= first_block <= len(self.blocks):
            has = f"has {len(self.blocks)} blocks" if self.blocks else "does not say which blocks it has"
            raise ValueError(f"{has}: block {first_block} cannot be tuned")
        used = self._used_weights(size)
        blocks: list[list[nn.Parameter]] = []
        for block in self.blocks[first_block - 1 :]:
            blocks.append([used.pop(name) for name in list(used) if name.startswith(block)])
        return blocks

    def _used_weights(self, size: int) -> dict[str, nn.Parameter]:
        """Return the weights of `features`, by name, that have a gradient from the grid of a photograph."""
        weights = dict(self.features.named_parameters())
        frozen = [weight for weight in weights.values() if not weight.requires_grad]
        for weight in frozen:
            weight.requires_grad_(True)
        gradients = torch.autograd.grad(
            self(torch.zeros(1, 3, size, size)).sum(), list(weights.values()), allow_unused=True
        )
        for weight in frozen:
            weight.requires_grad_(False)
        return {
            name: weight
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            if gradient is not None
        }

    def unfreeze(self, first_block: int, size: int) -> list[list[nn.Parameter]]:
        """Make the weights of `tunable` trainable, and return them, block by block; ValueError if there are none.

        Batch norm stays in evaluation mode, with the published statistics.
        """
        blocks = self.tunable(first_block, size)
        for weight in itertools.chain.from_iterable(blocks):
            weight.requires_grad_(True)
        return blocks

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a state dict in the layout of the backbone's library, with or without the classifier's weights.

        Raises ValueError that names the first weight that is missing, unknown or of another shape.
        """
        expected = self.features.state_dict()
        loaded = {
            name.removeprefix(self.prefix): value
            for name, value in state.items()
            # Some networks use weights whose names begin like those of other networks' classifiers.
            if not self.head or not name.startswith(self.head) or name.removeprefix(self.prefix) in expected
        }
        for name, value in expected.items():
            if name not in loaded:
                if name.endswith("num_batches_tracked"):  # files from before torch 0.4.1 lack it
                    loaded[name] = value
                    continue
                raise ValueError(f"{self.prefix}{name} is missing: these are weights of another architecture")
            if loaded[name].shape != value.shape:
                raise ValueError(
                    f"{self.prefix}{name} has shape {tuple(loaded[name].shape)}, not {tuple(value.shape)}: "
                    "these are weights of another architecture"
                )
        for name in loaded:
            if name not in expected:
                raise ValueError(f"the backbone has no weight {name}: these are weights of another architecture")
        self.features.load_state_dict(loaded)


def make(name: str, grid: int | None = None, seed: int | None = None, layer: int | None = None) -> Backbone:
    """Return the backbone `name` with random weights drawn from `seed` (0 if None), ready for `load`.

    grid: the side that its maps are pooled to; None for no pooling. layer: the layer of a timm model whose output is
    the map; None for the last. Raises ValueError for an unknown name or layer.
    """
    library, colon, model = name.partition(":")
    member = LIBRARIES.get(library) if colon else BACKBONES.get(name)
    if member is None:
        raise ValueError(
            f"unknown backbone {name!r}; known: {', '.join(sorted(BACKBONES))}, `timm:NAME` and `torchvision:NAME`"
        )
    if layer is not None and library != "timm":
        raise ValueError(f"{name} gives the output of its last layer alone: leave layer out, or take a timm model")
    module = member.module if "." in member.module else f"{__package__}.{member.module}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if seed is None else seed)
        build = getattr(importlib.import_module(module), member.builder)
        arguments = [model, *([layer] if library == "timm" else [])] if colon else []
        backbone: Backbone = build(*arguments)
    backbone.grid = grid
    return backbone.eval()


class _Tracer(fx.Tracer):
    """A tracer that treats convolutions as leaves, because some of timm's compute padding from the picture's size.

    While it traces, fx replaces `nn.Module.__call__` for all threads: a server may be captioning in another. Modules
    called there run as usual, and only one network is traced at a time.
    """

    _lock = threading.Lock()

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        with self._lock:
            self._thread = threading.get_ident()
            return super().trace(*args, **kwargs)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


def fold_norms(network: nn.Module) -> fx.GraphModule:
    """Return the network with each batch norm folded into the convolution before it, if nothing else reads that."""
    graph, modules = _Tracer().trace(network), dict(network.named_modules())
    for node in list(graph.nodes):
        norm = modules[node.target] if node.op == "call_module" else None
        before: Any = node.args[0] if isinstance(norm, nn.BatchNorm2d) else None
        convolution = modules[before.target] if before is not None and before.op == "call_module" else None
        if norm is None or not isinstance(convolution, nn.Conv2d) or len(before.users) > 1:
            continue
        weight, bias, mean, variance = norm.weight, norm.bias, norm.running_mean, norm.running_var
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, mean, variance, norm.eps, weight, bias
        )
        node.replace_all_uses_with(before)
        graph.erase_node(node)
    return fx.GraphModule(network, graph)
