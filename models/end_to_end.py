"""Backbone and decoder as one network, to be trained together from photographs."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from .backbones.base import Backbone
from .decoders.base import Decoder, State


class EndToEnd(nn.Module):
    """Photographs in, logits out; the same contract in training as a decoder's, over pixels instead of grids."""

    def __init__(self, backbone: Backbone, decoder: Decoder) -> None:
        super().__init__()
        self.backbone = backbone
        self.decoder = decoder

    def train(self, mode: bool = True) -> Self:
        """Training mode for the decoder alone: batch norm keeps its statistics, or it would drift unseen."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, photographs: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, State]:
        """photographs (N, 3, S, S) uint8; words, valid and what is returned as in Decoder.forward."""
        grid = self.backbone(self.backbone.normalised(photographs)).float()
        found: tuple[Tensor, State] = self.decoder(grid, words, valid)
        return found

    def penalty(self, read: State, logits: Tensor, targets: Tensor, valid: Tensor) -> Tensor | None:
        """The decoder's own."""
        return self.decoder.penalty(read, logits, targets, valid)
