"""Show, Attend and Tell with soft attention (Xu et al. 2015, sections 3.1.2 and 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..attention import make_attention, mean, pooled
from ..options import ShowAttendTellOptions
from .recurrent import LSTMState, RecurrentDecoder


class ShowAttendTell(RecurrentDecoder):
    """An LSTM with attention over the unprojected annotation vectors, its context scaled by a sigmoid gate beta.

    h0 and c0 are perceptrons of the mean annotation vector (section 3.1.2), with the tanh of the authors' code, or
    `linear` without it. The gate is from section 4.2.1.
    """

    def __init__(self, channels: int, vocabulary: int, options: ShowAttendTellOptions) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V."""
        width, hidden = options.pca_dim or channels, options.hidden
        super().__init__(channels, vocabulary, options, context=width, attention_grid=options.attention_grid)
        self.attention = make_attention(options.attention, width, hidden, options.attention_size)
        self.gate = nn.Linear(hidden, width) if options.gate else None
        has_layers = options.first_state != "zeros"
        self.first_hidden = nn.Linear(width, hidden) if has_layers else None
        self.first_cell = nn.Linear(width, hidden) if has_layers else None

    def init_state(self, annotations: Tensor, pool: Tensor | None) -> LSTMState:
        average = mean(annotations, pool)
        keys = pooled(self.attention.keys(annotations), pool)
        return LSTMState(
            annotations=annotations,
            keys=keys,
            hidden=self._first(self.first_hidden, average),
            cell=self._first(self.first_cell, average),
            context=torch.zeros_like(average, dtype=torch.float32),
            alphas=keys.new_zeros(keys.shape[0], 1, keys.shape[1], dtype=torch.float32),
        )

    def _first(self, layer: nn.Linear | None, average: Tensor) -> Tensor:
        """Return a first state, float32, from the mean annotation vector; zeros without a layer."""
        if layer is None:
            return average.new_zeros(*average.shape[:-1], self.hidden_gates.in_features, dtype=torch.float32)
        projected: Tensor = layer(average)
        return (projected if self.first_state == "linear" else torch.tanh(projected)).float()

    def query_layers(self) -> dict[str, nn.Linear]:
        layers = {"query": self.attention.query, "gate": self.gate}
        return {name: layer for name, layer in layers.items() if layer is not None}

    def attend(self, state: LSTMState, queries: Mapping[str, Tensor]) -> LSTMState:
        context, alphas = self.attention(state.annotations, state.keys, queries.get("query", state.hidden), state.pool)
        return replace(state, context=self.gated(context, queries), alphas=alphas)

    def gated(self, context: Tensor, queries: Mapping[str, Tensor]) -> Tensor:
        """Return beta * context, float32, with beta = sigmoid(f_beta(h)); the context itself if there is no gate."""
        return (torch.sigmoid(queries["gate"]) * context if "gate" in queries else context).float()
