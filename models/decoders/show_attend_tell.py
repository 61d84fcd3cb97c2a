"""Show, Attend and Tell with soft attention (Xu et al. 2015, sections 3.1.2 and 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attention import AdditiveAttention
from .base import Decoder, State


class ShowAttendTell(Decoder):
    """Additive attention over the raw annotation vectors, its context scaled by a sigmoid gate beta.

    h0 and c0 are perceptrons of the mean annotation vector (section 3.1.2); the gate is section 4.2.1.
    """

    def __init__(self, channels: int, vocabulary: int, attention: int = 512, hidden: int = 512, **sizes: float) -> None:
        """channels: C of the grid. attention: size of the additive attention's layer."""
        super().__init__(channels, vocabulary, hidden=hidden, **sizes)  # type: ignore[arg-type]
        self.attention = AdditiveAttention(channels, hidden, attention)
        self.gate = nn.Linear(hidden, channels)
        self.first_hidden = nn.Linear(channels, hidden)
        self.first_cell = nn.Linear(channels, hidden)

    def start(self, grid: Tensor) -> State:
        annotations = grid.flatten(1, 2)
        mean = annotations.mean(dim=1, keepdim=True)
        return State(
            annotations=annotations,
            keys=self.attention.keys(annotations),
            hidden=torch.tanh(self.first_hidden(mean)).float(),
            cell=torch.tanh(self.first_cell(mean)).float(),
            context=torch.zeros_like(mean, dtype=torch.float32),
            alphas=torch.zeros(len(grid), 1, annotations.shape[1], device=grid.device),
        )

    def look(self, state: State) -> tuple[Tensor, Tensor]:
        context, alphas = self.attention(state.annotations, state.keys, state.hidden)
        return torch.sigmoid(self.gate(state.hidden)) * context, alphas
