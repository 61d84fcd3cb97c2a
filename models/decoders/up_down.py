"""Up-Down's two LSTMs (Anderson et al. 2018, section 3.2), over the grid instead of detected regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..attention import AdditiveAttention
from ..options import UpDownOptions
from .base import SAME_FOR_PICTURE, AttentionState, Decoder, select_tokens
from .recurrent import lstm_cell


@dataclass(frozen=True)
class TwoLSTMState(AttentionState):
    """The state of two LSTMs.

    annotations (N, P, D), keys (N, P, A). mean_gates (N, 1, 4H): the mean annotation vector's part of the attention
    LSTM's gates. attention_hidden, attention_cell (N, R, H): of the attention LSTM, whose hidden state is the query.
    language_hidden, language_cell (N, R, H): of the language LSTM, which reads the context.
    """

    annotations: Tensor = field(metadata=SAME_FOR_PICTURE)
    keys: Tensor = field(metadata=SAME_FOR_PICTURE)
    mean_gates: Tensor = field(metadata=SAME_FOR_PICTURE)
    attention_hidden: Tensor
    attention_cell: Tensor
    language_hidden: Tensor
    language_cell: Tensor


class UpDown(Decoder):
    """A decoder of two LSTMs with attention between them.

    The attention LSTM reads the word, the mean annotation vector and the language LSTM's hidden state; the language
    LSTM reads the context and the attention LSTM's hidden state. Annotation vectors are projected to `hidden` channels
    by a layer with a ReLU. The states of both LSTMs begin at zero.
    """

    def __init__(self, channels: int, vocabulary: int, options: UpDownOptions) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V."""
        super().__init__(channels, vocabulary, options)
        embedding, hidden = options.embedding, options.hidden
        self.project = nn.Linear(options.pca_dim or channels, hidden)
        self.attention = AdditiveAttention(hidden, hidden, options.attention_size)
        self.word_gates = nn.Linear(embedding, 4 * hidden)
        self.mean_gates = nn.Linear(hidden, 4 * hidden, bias=False)
        self.attention_gates = nn.Linear(2 * hidden, 4 * hidden, bias=False)
        self.language_gates = nn.Linear(3 * hidden, 4 * hidden)
        self.drop_output = nn.Dropout(options.dropout_output)
        self._compiled: Callable[[TwoLSTMState, Tensor], TwoLSTMState] | None = None
        with torch.no_grad():
            # The forget gates start open, so that the cells remember by default (Jozefowicz et al. 2015).
            self.word_gates.bias[hidden : 2 * hidden] = 1.0
            self.language_gates.bias[hidden : 2 * hidden] = 1.0

    def start(self, grid: Tensor) -> TwoLSTMState:
        annotations = torch.relu(self.project(self.annotations_of(grid)))
        mean = annotations.mean(dim=1, keepdim=True)
        zeros = torch.zeros_like(mean, dtype=torch.float32)
        alphas = zeros.new_zeros(grid.shape[0], 1, annotations.shape[1])
        return TwoLSTMState(
            alphas, annotations, self.attention.keys(annotations), self.mean_gates(mean), zeros, zeros, zeros, zeros
        )

    def step(self, state: TwoLSTMState, tokens: Tensor) -> tuple[Tensor, TwoLSTMState]:
        state = self._cell_step(state, self.word_gates(self.drop_words(self.embed(tokens))))
        logits: Tensor = self.head(self.drop_output(state.language_hidden))
        return logits, state

    def forward(self, grid: Tensor, words: Tensor, token_indices: Tensor) -> tuple[Tensor, AttentionState]:
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        cell_step = self._cell_step if self._compiled is None else self._compiled
        language_hiddens, alphas = [], []
        for gates in self.word_gates(self.drop_words(self.embed(words))).unbind(dim=2):
            state = cell_step(state, gates)
            language_hiddens.append(state.language_hidden)
            alphas.append(state.alphas)
        features = select_tokens(torch.stack(language_hiddens, dim=2), token_indices)
        return self.head(self.drop_output(features)), AttentionState(torch.stack(alphas, dim=2))

    def compile_step(self, pictures: int, rows: int) -> None:
        """Make `forward` run a compiled step from now on, for any number of pictures and rows."""
        self._compiled = torch.compile(self._cell_step, dynamic=True, mode=self.compile_mode)

    def _cell_step(self, state: TwoLSTMState, word_gates: Tensor) -> TwoLSTMState:
        """Return the state after a word; word_gates (N, R, 4H): the word's part of the attention LSTM's gates."""
        gates = (
            word_gates
            + state.mean_gates
            + self.attention_gates(torch.cat([state.language_hidden, state.attention_hidden], dim=-1))
        )
        attention_hidden, attention_cell = lstm_cell(gates, state.attention_cell)
        context, alphas = self.attention(state.annotations, state.keys, self.attention.query(attention_hidden))
        gates = self.language_gates(torch.cat([context.float(), attention_hidden, state.language_hidden], dim=-1))
        language_hidden, language_cell = lstm_cell(gates, state.language_cell)
        return replace(
            state,
            alphas=alphas,
            attention_hidden=attention_hidden,
            attention_cell=attention_cell,
            language_hidden=language_hidden,
            language_cell=language_cell,
        )
