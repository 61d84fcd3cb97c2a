"""Up-Down's two LSTMs (Anderson et al. 2018, section 3.2), over the grid instead of detected regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import AdditiveAttention
from .base import OF_THE_PICTURE, Decoder, State
from .recurrent import lstm


@dataclass(frozen=True)
class TwoCells(State):
    """annotations (N, P, D), keys (N, P, A), and what the first cell reads of the mean annotation vector (N, 1, 4H).

    looking, looking_cell: of the LSTM that says where to look, (N, R, H). speaking, speaking_cell: of the other.
    """

    annotations: Tensor = field(metadata=OF_THE_PICTURE)
    keys: Tensor = field(metadata=OF_THE_PICTURE)
    mean_gates: Tensor = field(metadata=OF_THE_PICTURE)
    looking: Tensor
    looking_cell: Tensor
    speaking: Tensor
    speaking_cell: Tensor


class UpDown(Decoder):
    """One LSTM reads word, mean annotation vector and the other's state, and asks; the other reads what it drew.

    Annotation vectors are projected to `hidden` channels by a layer with a ReLU. Both states begin at zero.
    """

    def __init__(
        self,
        channels: int,
        vocabulary: int,
        embedding: int = 512,
        hidden: int = 512,
        attention_size: int = 512,
        dropout_output: float = 0.5,
        reduce: int | None = None,
        **shared: Any,
    ) -> None:
        """channels: C of the grid. hidden: H of both LSTMs and D. attention_size: A, of the additive attention."""
        super().__init__(channels, vocabulary, hidden, embedding, reduce=reduce, **shared)
        self.project = nn.Linear(reduce or channels, hidden)
        self.attention = AdditiveAttention(hidden, hidden, attention_size)
        self.word_gates = nn.Linear(embedding, 4 * hidden)
        self.mean_gates = nn.Linear(hidden, 4 * hidden, bias=False)
        self.looking_gates = nn.Linear(2 * hidden, 4 * hidden, bias=False)
        self.speaking_gates = nn.Linear(3 * hidden, 4 * hidden)
        self.drop_output = nn.Dropout(dropout_output)
        self._compiled: Callable[[TwoCells, Tensor], TwoCells] | None = None
        with torch.no_grad():
            # Remember by default: the forget gates start open (Jozefowicz et al. 2015).
            self.word_gates.bias[hidden : 2 * hidden] = 1.0
            self.speaking_gates.bias[hidden : 2 * hidden] = 1.0

    @property
    def attends(self) -> bool:
        return True

    def start(self, grid: Tensor) -> TwoCells:
        annotations = torch.relu(self.project(self.annotations_of(grid)))
        mean = annotations.mean(dim=1, keepdim=True)
        nothing = torch.zeros_like(mean, dtype=torch.float32)
        alphas = nothing.new_zeros(len(grid), 1, annotations.shape[1])
        return TwoCells(
            alphas, annotations, self.attention.keys(annotations), self.mean_gates(mean), *(nothing for _ in range(4))
        )

    def step(self, state: TwoCells, tokens: Tensor) -> tuple[Tensor, TwoCells]:
        state = self._turn(state, self.word_gates(self.drop_words(self.embed(tokens))))
        logits: Tensor = self.head(self.drop_output(state.speaking))
        return logits, state

    def forward(self, grid: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, State]:
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        turn = self._turn if self._compiled is None else self._compiled
        spoken, alphas = [], []
        for gates in self.word_gates(self.drop_words(self.embed(words))).unbind(dim=2):
            state = turn(state, gates)
            spoken.append(state.speaking)
            alphas.append(state.alphas)
        features = torch.stack(spoken, dim=2)[valid]
        return self.head(self.drop_output(features)), State(torch.stack(alphas, dim=2))

    def compile_step(self, pictures: int, rows: int) -> None:
        """From now on `forward` compiles its step, for any number of pictures and rows."""
        self._compiled = torch.compile(self._turn, dynamic=True)

    def _turn(self, state: TwoCells, word_gates: Tensor) -> TwoCells:
        """One word further; word_gates (N, R, 4H): what the first cell reads of the word."""
        gates = word_gates + state.mean_gates + self.looking_gates(torch.cat([state.speaking, state.looking], dim=-1))
        looking, looking_cell = lstm(gates, state.looking_cell)
        context, alphas = self.attention(state.annotations, state.keys, self.attention.query(looking))
        gates = self.speaking_gates(torch.cat([context.float(), looking, state.speaking], dim=-1))
        speaking, speaking_cell = lstm(gates, state.speaking_cell)
        return replace(
            state,
            alphas=alphas,
            looking=looking,
            looking_cell=looking_cell,
            speaking=speaking,
            speaking_cell=speaking_cell,
        )
