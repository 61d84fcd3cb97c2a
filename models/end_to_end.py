"""Backbone and decoder as one network, to be trained together from photographs."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from .backbones.base import Backbone
from .decoders.base import Decoder, State


class EndToEnd(nn.Module):
    """A backbone and a decoder in one module, trained as a decoder is but on photographs instead of grids."""

    def __init__(self, backbone: Backbone, decoder: Decoder) -> None:
        super().__init__()
        self.backbone = backbone
        self.decoder = decoder

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the decoder alone; the backbone stays in evaluation mode.

        In training mode its batch norms would change their statistics, unnoticed.
        """
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, photographs: Tensor, words: Tensor, places: Tensor) -> tuple[Tensor, State]:
        """Return logits and states as `Decoder.forward` does, for photographs (N, 3, S, S) uint8.

        words, places: as in `Decoder.forward`.
        """
        grid = self.backbone(self.backbone.normalised(photographs)).float()
        logits_and_states: tuple[Tensor, State] = self.decoder(grid, words, places)
        return logits_and_states

    def penalty(self, states: State, logits: Tensor, targets: Tensor, places: Tensor) -> Tensor | None:
        """Return the decoder's penalty: see `Decoder.penalty`."""
        return self.decoder.penalty(states, logits, targets, places)
