"""An LSTM whose gates take a third input: the context of scaled dot-product attention over the projected grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attention import ScaledDotAttention
from .base import Decoder, State


class AttentionLSTM(Decoder):
    """gates = W_x x + W_h h + W_attn x_attn + b, with x_attn drawn from the grid projected to the hidden size.

    h0 and c0 are the mean of the projected grid. The attention is Vaswani et al. 2017, equation 1, with the
    previous hidden state as its query.
    """

    def __init__(self, channels: int, vocabulary: int, hidden: int = 512, **sizes: float) -> None:
        """channels: C of the grid."""
        super().__init__(hidden, vocabulary, hidden=hidden, **sizes)  # type: ignore[arg-type]
        self.project = nn.Linear(channels, hidden)
        self.attention = ScaledDotAttention()

    def start(self, grid: Tensor) -> State:
        annotations = self.project(grid.flatten(1, 2))
        mean = annotations.float().mean(dim=1, keepdim=True)
        alphas = torch.zeros(len(grid), 1, annotations.shape[1], device=grid.device)
        return State(
            annotations=annotations,
            keys=annotations,
            hidden=mean,
            cell=mean,
            context=torch.zeros_like(mean),
            alphas=alphas,
        )

    def look(self, state: State) -> tuple[Tensor, Tensor]:
        context, alphas = self.attention(state.annotations, state.hidden)
        return context, alphas
