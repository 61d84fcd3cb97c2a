"""An LSTM that attends to the projected grid with scaled dot products before each word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..attention import make_attention, mean, pooled
from ..options import AttentionLSTMOptions
from .recurrent import LSTMState, RecurrentDecoder


class AttentionLSTM(RecurrentDecoder):
    """An LSTM whose gates are W_x x + W_h h + W_attn x_attn + b.

    x_attn is the context that scaled dot-product attention (Vaswani et al. 2017, equation 1) computes from the grid,
    projected to the hidden size, with the previous hidden state as its query; h0 = c0, the mean of the projected grid.
    """

    def __init__(self, channels: int, vocabulary: int, options: AttentionLSTMOptions) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V."""
        hidden = options.hidden
        super().__init__(channels, vocabulary, options, context=hidden, attention_grid=options.attention_grid)
        self.project = nn.Linear(options.pca_dim or channels, hidden)
        # Over annotation vectors projected to the hidden state's size.
        self.attention = make_attention(options.attention, hidden, hidden, options.attention_size)

    def init_state(self, annotations: Tensor, pool: Tensor | None) -> LSTMState:
        projected = self.project(annotations)
        average = mean(projected.float(), pool)
        keys = pooled(self.attention.keys(projected), pool)
        alphas = average.new_zeros(average.shape[0], 1, keys.shape[1])
        return LSTMState(alphas, projected, keys, average, average, context=torch.zeros_like(average))

    def query_layers(self) -> dict[str, nn.Linear]:
        return {} if self.attention.query is None else {"query": self.attention.query}

    def attend(self, state: LSTMState, queries: Mapping[str, Tensor]) -> LSTMState:
        context, alphas = self.attention(state.annotations, state.keys, queries.get("query", state.hidden), state.pool)
        return replace(state, context=context.float(), alphas=alphas)
