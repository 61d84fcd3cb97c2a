"""Decoders of other projects, as in their repositories, with this project's interface so that its search works.

`Att2in` and `AnnotatedTransformer` are those of ruotianluo's ImageCaptioning.pytorch. The tutorial's soft attention
needs no separate class: the project's `show_attend_tell` computes it with the options of the preset of the same name
(bench/speed/training_step.py compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from models.attention import AdditiveAttention
from models.decoders.base import SAME_FOR_PICTURE, AttentionState, Decoder, State, select_tokens
from models.decoders.transformer import KVCache, Transformer
from models.options import DecoderOptions


@dataclass(frozen=True)
class Att2inState(AttentionState):
    """The state of `Att2in`: annotations (N, P, H), keys (N, P, A), hidden and cell (N, R, H)."""

    annotations: Tensor = field(metadata=SAME_FOR_PICTURE)
    keys: Tensor = field(metadata=SAME_FOR_PICTURE)
    hidden: Tensor
    cell: Tensor


class Att2in(Decoder):
    """Attention that enters only an LSTM's candidate, through a maxout of two (Rennie et al. 2017, section 2.2).

    Annotation vectors and word embeddings pass through a ReLU and a dropout of 0.5. The first state is zero.
    """

    def __init__(self, channels: int, vocabulary: int, options: DecoderOptions) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V."""
        super().__init__(channels, vocabulary, options)
        hidden = options.hidden
        drop = nn.Dropout(options.dropout_output)
        self.project = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), drop)
        self.word = nn.Sequential(nn.ReLU(), drop)
        self.attention = AdditiveAttention(hidden, hidden, 512)
        self.word_gates = nn.Linear(options.embedding, 5 * hidden)
        self.hidden_gates = nn.Linear(hidden, 5 * hidden)
        self.context_candidates = nn.Linear(hidden, 2 * hidden)
        self.drop_output = drop

    def start(self, grid: Tensor) -> Att2inState:
        annotations = self.project(grid.flatten(1, 2))
        zeros = annotations.new_zeros(len(grid), 1, annotations.shape[2], dtype=torch.float32)
        alphas = zeros.new_zeros(len(grid), 1, annotations.shape[1])
        return Att2inState(alphas, annotations, self.attention.keys(annotations), zeros, zeros)

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, State]:
        state = self._cell_step(state, self.word_gates(self.word(self.embed(tokens))))
        logits: Tensor = self.head(self.drop_output(state.hidden))
        return logits, state

    def forward(self, grid: Tensor, words: Tensor, token_indices: Tensor) -> tuple[Tensor, State]:
        state = self.start(grid).expand(words.shape[1])
        states = []
        for gates in self.word_gates(self.word(self.embed(words))).unbind(dim=2):
            state = self._cell_step(state, gates)
            states.append(state)
        read = select_tokens(torch.stack([state.hidden for state in states], dim=2), token_indices)
        return self.head(self.drop_output(read)), AttentionState(torch.stack([state.alphas for state in states], dim=2))

    def compile_step(self, pictures: int, rows: int) -> None:
        self.compile(dynamic=True)

    def _cell_step(self, state: Att2inState, word_gates: Tensor) -> Att2inState:
        """Return the state after a word; word_gates (N, R, 5H): the word's part of the gates and the candidates."""
        size = state.hidden.shape[-1]
        context, alphas = self.attention(state.annotations, state.keys, self.attention.query(state.hidden))
        sums = (word_gates + self.hidden_gates(state.hidden)).float()
        take, forget, give = torch.sigmoid(sums[..., : 3 * size]).chunk(3, dim=-1)
        candidates = sums[..., 3 * size :] + self.context_candidates(context).float()
        candidate = torch.maximum(*candidates.chunk(2, dim=-1))
        cell = forget * state.cell + take * candidate
        return replace(state, alphas=alphas, hidden=give * torch.tanh(cell), cell=cell)


class AnnotatedTransformer(Transformer):
    """The Transformer of the "annotated" kind: six layers over the grid and six over words.

    The grid has no positions: its annotation vectors pass through a linear layer, a ReLU and a dropout.
    """

    def start(self, grid: Tensor) -> KVCache:
        return self.start_from(self.drop_layers(torch.relu(self.project(grid.flatten(1, 2)))))
