"""Backbone and decoder as one network, trained together from photographs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .backbones.base import Backbone
from .decoders.base import Decoder, State


class EndToEnd(nn.Module):
    """A backbone and a decoder in one module, trained like a decoder but on photographs instead of grids."""

    def __init__(self, backbone: Backbone, decoder: Decoder) -> None:
        super().__init__()
        self.backbone = backbone
        self.decoder = decoder

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the decoder alone; the backbone stays in evaluation mode.

        In training mode its batch norms would silently change their statistics.
        """
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, photographs: Tensor, words: Tensor, token_indices: Tensor) -> tuple[Tensor, State]:
        """Return logits and states as `Decoder.forward` does, for photographs (N, 3, S, S) uint8.

        words, token_indices: as in `Decoder.forward`.
        """
        autocast = photographs.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        with GroupedConvolutionsInFloat32() if autocast else nullcontext():
            grid = self.backbone(self.backbone.normalised(photographs)).float()
        logits_and_states: tuple[Tensor, State] = self.decoder(grid, words, token_indices)
        return logits_and_states

    def penalty(self, states: State, logits: Tensor, targets: Tensor, token_indices: Tensor) -> Tensor | None:
        """Return the decoder's penalty: see `Decoder.penalty`."""
        return self.decoder.penalty(states, logits, targets, token_indices)


class GroupedConvolutionsInFloat32(TorchFunctionMode):
    """A context in which autocast leaves convolutions of several groups in float32.

    Depthwise convolutions read more than they compute, so bfloat16 gains little, and their backward pass is slower on a
    CPU in bfloat16 than in float32: see docs/measured.md, "A fine-tuning step, and encoding".
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_convolve if func is torch.conv2d else func)(*args, **(kwargs or {}))


def _convolve(input: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:  # noqa: A002 -- torch.conv2d's names
    """Return `torch.conv2d` of its arguments, in float32 if it has several groups."""
    if input.shape[1] == weight.shape[1]:
        return torch.conv2d(input, weight, *rest, **options)
    with torch.autocast("cpu", enabled=False):
        return torch.conv2d(input.float(), weight, *rest, **options)
