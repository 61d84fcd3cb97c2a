"""Two decoders without attention, an RNN and an LSTM: they see the picture in their first state only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ..attention import mean
from ..options import RecurrentOptions
from .recurrent import LSTMState, RecurrentDecoder


class FirstStateDecoder(RecurrentDecoder):
    """A recurrent decoder whose h0 is the mean annotation vector, projected to the hidden size.

    `rnn`: h = tanh(W_x x + W_h h + b) (Karpathy and Fei-Fei 2015, section 3.2, with the picture in h0).
    `lstm`: an LSTM, c0 = 0 (Vinyals et al. 2015, section 3.1, with the picture in h0).
    """

    attends = False

    def __init__(self, channels: int, vocabulary: int, options: RecurrentOptions, cell: Literal["rnn", "lstm"]) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V."""
        super().__init__(channels, vocabulary, options, cell=cell)
        self.project = nn.Linear(options.pca_dim or channels, options.hidden)

    def init_state(self, annotations: Tensor, pool: Tensor | None) -> LSTMState:
        hidden = self.project(mean(annotations, pool)).float()
        empty = hidden.new_zeros(hidden.shape[0], 1, 0)
        return LSTMState(empty, empty, empty, hidden, torch.zeros_like(hidden), context=empty)

    def attend(self, state: LSTMState, queries: Mapping[str, Tensor]) -> LSTMState:
        return state
