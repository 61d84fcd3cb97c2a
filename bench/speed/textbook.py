"""Show, Attend and Tell as tutorials write it: the baseline of the speed benchmarks.

Each caption is a row with a copy of its picture's grid. Every step projects the grid for the attention again, computes
the cell over [word, context] in one product, and runs the output layer, padding included. Beam search takes one picture
at a time. It uses the weights of the project's decoder, so both compute the same thing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.decoders.show_attend_tell import ShowAttendTell
from models.vocabulary import END, NULL, START, UNK


class Textbook(nn.Module):
    """Soft attention with a gate. The weights are shared with `decoder`, which must be a plain one."""

    def __init__(self, decoder: ShowAttendTell) -> None:
        super().__init__()
        self.shared = decoder
        assert decoder.context_gates is not None and decoder.gate is not None
        assert decoder.first_hidden is not None and decoder.first_cell is not None
        self.first_hidden, self.first_cell = decoder.first_hidden, decoder.first_cell

    def _first(self, grid: Tensor) -> tuple[Tensor, Tensor]:
        mean = grid.mean(dim=1)
        return torch.tanh(self.first_hidden(mean)), torch.tanh(self.first_cell(mean))

    def _cell_weight(self) -> Tensor:
        """Return the cell's weights over [word, context, hidden] as one matrix, as a textbook cell stores them."""
        shared = self.shared
        assert shared.context_gates is not None
        return torch.cat([shared.word_gates.weight, shared.context_gates.weight, shared.hidden_gates.weight], dim=1)

    def _step(
        self, grid: Tensor, weight: Tensor, word: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """grid (B, P, D), word (B, E) -> logits (B, V), hidden and cell (B, H)."""
        shared = self.shared
        attention: Any = shared.attention
        assert shared.gate is not None
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

    @torch.no_grad()
    def beam_search(self, grid: Tensor, beam: int, max_length: int) -> list[int]:
        """Return the most likely caption of one picture, grid (P, D). Each word has `beam` rows, one per hypothesis."""
        rows = grid.unsqueeze(0).expand(beam, -1, -1)
        hidden, cell = self._first(rows)
        weight = self._cell_weight()
        words = torch.full((beam, 1), START)
        scores = torch.zeros(beam, 1)
        ended: list[tuple[float, list[int]]] = []
        for step in range(max_length):
            embedded = self.shared.embed(words[:, -1])
            logits, hidden, cell = self._step(rows, weight, embedded, hidden, cell)
            logits[:, [NULL, START, UNK]] = -torch.inf
            totals = scores + functional.log_softmax(logits, dim=1)
            vocabulary = totals.shape[1]
            best, index = (totals[0] if step == 0 else totals.view(-1)).topk(2 * beam)
            parents, last = index // vocabulary, index % vocabulary
            for row in (last[:beam] == END).nonzero().flatten().tolist():
                ended.append((float(best[row]), words[parents[row], 1:].tolist()))
            going = (last != END).nonzero().flatten()[:beam]
            live_parents = parents[going]
            words = torch.cat([words[live_parents], last[going].unsqueeze(1)], dim=1)
            scores, hidden, cell = best[going].unsqueeze(1), hidden[live_parents], cell[live_parents]
            if ended and max(ended)[0] >= float(scores.max()):
                break
        return max(ended)[1] if ended else words[0, 1:].tolist()
