"""Three decoders: an RNN and an LSTM that get the picture in their first state only, and an LSTM with attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from ..attention import make_attention, mean, pooled
from ..options import AttentionLSTMOptions, RecurrentOptions
from .recurrent import LSTMState, RecurrentDecoder


class CaptioningRNN(RecurrentDecoder):
    """A recurrent decoder of one of three cells, whose h0 is the mean annotation vector, projected to the hidden size.

    `rnn`: h = tanh(W_x x + W_h h + b) (Karpathy and Fei-Fei 2015, section 3.2, with the picture in h0).
    `lstm`: an LSTM, c0 = 0 (Vinyals et al. 2015, section 3.1, with the picture in h0).
    `attn`: gates = W_x x + W_h h + W_attn x_attn + b, with x_attn drawn from the grid projected to the hidden size by
    scaled dot-product attention (Vaswani et al. 2017, equation 1) with the previous hidden state as its query;
    c0 = h0, the mean of the projected grid.
    """

    def __init__(
        self, channels: int, vocabulary: int, options: RecurrentOptions, cell_type: Literal["rnn", "lstm", "attn"]
    ) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V. options: of `attn`, those of an attention LSTM."""
        hidden, width = options.hidden, options.pca_dim or channels
        if isinstance(options, AttentionLSTMOptions):
            super().__init__(channels, vocabulary, options, context=hidden, attention_grid=options.attention_grid)
        else:
            super().__init__(channels, vocabulary, options, cell="rnn" if cell_type == "rnn" else "lstm")
        self.project = nn.Linear(width, hidden)
        # Over annotation vectors projected to the hidden state's size.
        self.attention = (
            make_attention(options.attention, hidden, hidden, options.attention_size)
            if isinstance(options, AttentionLSTMOptions)
            else None
        )

    def init_state(self, annotations: Tensor, pool: Tensor | None) -> LSTMState:
        if self.attention is None:
            hidden = self.project(mean(annotations, pool)).float()
            empty = hidden.new_zeros(len(hidden), 1, 0)
            return LSTMState(empty, empty, empty, hidden, torch.zeros_like(hidden), context=empty)
        projected = self.project(annotations)
        average = mean(projected.float(), pool)
        keys = pooled(self.attention.keys(projected), pool)
        alphas = average.new_zeros(len(average), 1, keys.shape[1])
        return LSTMState(alphas, projected, keys, average, average, context=torch.zeros_like(average))

    def query_layers(self) -> dict[str, nn.Linear]:
        if self.attention is None or self.attention.query is None:
            return {}
        return {"query": self.attention.query}

    def attend(self, state: LSTMState, queries: Mapping[str, Tensor]) -> LSTMState:
        if self.attention is None:
            return state
        context, alphas = self.attention(state.annotations, state.keys, queries.get("query", state.hidden), state.pool)
        return replace(state, context=context.float(), alphas=alphas)
