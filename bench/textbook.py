"""Show, Attend and Tell as tutorials write it: the yardstick of the speed benches.

One caption a row, the picture's grid copied for each; the attention's projection of the grid anew at every step; the
cell over [word, context] in one product; the output layer at every step, padding included; beam search one picture at
a time. It takes the weights of the project's decoder, so that both compute the same thing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.decoders.show_attend_tell import ShowAttendTell


class Textbook(nn.Module):
    """Soft attention with a gate; weights shared with `decoder`, which has to be a plain one."""

    def __init__(self, decoder: ShowAttendTell) -> None:
        super().__init__()
        self.shared = decoder
        assert decoder.context_gates is not None and decoder.gate is not None

    def _first(self, grid: Tensor) -> tuple[Tensor, Tensor]:
        mean = grid.mean(dim=1)
        return torch.tanh(self.shared.first_hidden(mean)), torch.tanh(self.shared.first_cell(mean))

    def _cell_weight(self) -> Tensor:
        """The cell's weights over [word, context, hidden] as one, as its own code would keep them."""
        shared = self.shared
        return torch.cat([shared.word_gates.weight, shared.context_gates.weight, shared.hidden_gates.weight], dim=1)

    def _step(
        self, grid: Tensor, weight: Tensor, word: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """grid (B, P, D), word (B, E) -> logits (B, V), hidden and cell (B, H)."""
        shared = self.shared
        attention = shared.attention
        projected = attention.key(grid)  # at every step
        scores = attention.score(torch.tanh(projected + attention.query(hidden).unsqueeze(1))).squeeze(2)
        alphas = torch.softmax(scores, dim=1)
        context = torch.sigmoid(shared.gate(hidden)) * (grid * alphas.unsqueeze(2)).sum(dim=1)
        gates = functional.linear(torch.cat([word, context, hidden], dim=1), weight, shared.word_gates.bias)
        take, forget, give, candidate = gates.chunk(4, dim=1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(candidate)
        hidden = torch.sigmoid(give) * torch.tanh(cell)
        return shared.head(shared.output(word, hidden, context)), hidden, cell

    def forward(self, grid: Tensor, words: Tensor) -> Tensor:
        """grid (B, P, D), words (B, T) -> logits (B, T, V)."""
        hidden, cell = self._first(grid)
        weight = self._cell_weight()
        embedded = self.shared.embed(words)
        logits = []
        for time in range(words.shape[1]):
            step, hidden, cell = self._step(grid, weight, embedded[:, time], hidden, cell)
            logits.append(step)
        return torch.stack(logits, dim=1)
