"""A recurrent cell that may look at the grid before each word."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention import pooling
from ..output import make_output
from . import FirstStates, Outputs, teacher_forcing
from .base import OF_ALL, OF_THE_PICTURE, Decoder, State
from .stepper import Stepper


@dataclass(frozen=True)
class Recurrence(State):
    """A cell's state.

    annotations (N, P, D) and keys (N, P', A). hidden, cell (N, R, H). context (N, R, D'), float32: what the last step
    drew from the grid; zeros before the first. pool (P', P): see attention.py.
    """

    annotations: Tensor = field(metadata=OF_THE_PICTURE)
    keys: Tensor = field(metadata=OF_THE_PICTURE)
    hidden: Tensor
    cell: Tensor
    context: Tensor
    pool: Tensor | None = field(default=None, kw_only=True, metadata=OF_ALL)


class RecurrentDecoder(Decoder):
    """A recurrent cell that may look at the grid before each word.

    What the families share: one cell over [word, context] and an output (output.py). A family says how the grid becomes
    annotation vectors, keys and first states, what it asks of a hidden state, and what context that draws. A family
    without attention has a context of size 0.

    The input weights of the cell are kept in two parts, for words and for context, so that the words' part is one
    product for a whole caption under teacher forcing.
    """

    def __init__(
        self,
        channels: int,
        context: int,
        vocabulary: int,
        embedding: int = 512,
        hidden: int = 512,
        cell: Literal["rnn", "lstm"] = "lstm",
        dropout_output: float = 0.5,
        first_state: FirstStates = "grid",
        output: Outputs = "hidden",
        output_size: int = 512,
        present: int | None = None,
        **shared: Any,
    ) -> None:
        """channels: C of the grid. context: size D' of the context vector. vocabulary: V. shared: of every decoder.

        output_size: of the `mlp` output. present: the side of the positions attended, each an average of the grid's by
        adaptive pooling; None for the grid's own. Raises ValueError where the sizes do not go together.
        """
        read = make_output(output, embedding, hidden, context, output_size, dropout_output)
        super().__init__(channels, vocabulary, read.width, embedding, **shared)
        gates = {"rnn": 1, "lstm": 4}[cell]
        self.cell_type, self.present = cell, present
        self.first_state = first_state
        self.word_gates = nn.Linear(embedding, gates * hidden)
        self.context_gates = nn.Linear(context, gates * hidden, bias=False) if context else None
        self.hidden_gates = nn.Linear(hidden, gates * hidden, bias=False)
        self.output = read
        self._compiled: teacher_forcing.Step | None = None
        self._compiled_rows = (0, 0)
        if cell == "lstm":
            # Remember by default: the forget gate starts open (Jozefowicz et al. 2015).
            with torch.no_grad():
                self.word_gates.bias[hidden : 2 * hidden] = 1.0

    @property
    def attends(self) -> bool:
        return self.context_gates is not None

    @abstractmethod
    def begin(self, annotations: Tensor, pool: Tensor | None) -> Recurrence:
        """Annotation vectors (N, P, D), float, and pool (P', P) -> the state before the first word, R = 1."""

    def asking(self) -> dict[str, nn.Linear]:
        """The layers besides the cell that read the hidden state of the word before, by names of the family's own."""
        return {}

    @abstractmethod
    def look(self, state: Recurrence, asked: Mapping[str, Tensor]) -> Recurrence:
        """The state with the context that its hidden state draws from the grid, and the alphas it looks by.

        asked: what the layers of `asking` make of the hidden state, (N, R, A) each.
        """

    def start(self, grid: Tensor) -> Recurrence:
        side = (grid.shape[1], grid.shape[2])
        own = self.present is None or side == (self.present, self.present)
        pool = None if own or self.present is None else pooling(side, self.present).to(grid.device)
        state = replace(self.begin(self.annotations_of(grid), pool), pool=pool)
        if self.first_state == "zeros":
            return replace(state, hidden=torch.zeros_like(state.hidden), cell=torch.zeros_like(state.cell))
        return state

    def step(self, state: Recurrence, tokens: Tensor) -> tuple[Tensor, Recurrence]:
        words = self.drop_words(self.embed(tokens))
        gates = self.word_gates(words) + self.hidden_gates(state.hidden)
        state = self.look(state, {name: layer(state.hidden) for name, layer in self.asking().items()})
        if self.context_gates is not None:
            gates = gates + self.context_gates(state.context)
        state = self.turn(state, gates)
        return self.logits(words, state.hidden, state.context), state

    def logits(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """words (..., E) just read, hidden (..., H) and context (..., D') after them -> logits (..., V)."""
        logits: Tensor = self.head(self.output(words, hidden, context))
        return logits

    def forward(self, grid: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, Recurrence]:
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        embedded = self.drop_words(self.embed(words))
        whole = self._compiled is not None and words.shape[:2] == self._compiled_rows
        step = self._compiled if whole and self._compiled is not None else teacher_forcing.one_step
        read = Recurrence.stack(teacher_forcing.read_captions(self, state, self.word_gates(embedded), step))
        return self.logits(embedded[valid], read.hidden[valid], read.context[valid]), read

    def speaking(self) -> Stepper:
        return Stepper(self)

    def compile_step(self, pictures: int, rows: int) -> None:
        """From now on `forward` compiles its step for batches of N pictures by R rows; others go uncompiled."""
        self._compiled = torch.compile(teacher_forcing.one_step, dynamic=False)
        self._compiled_rows = (pictures, rows)

    def turn(self, state: Recurrence, gates: Tensor) -> Recurrence:
        """One step of the cell; gates (N, R, 4H), or (N, R, H) for an RNN: W_x x + W_h h + W_z z + b.

        LSTM: see `lstm`. RNN: Elman 1990, h = tanh(W_x x + W_h h + b).
        """
        if self.cell_type == "rnn":
            return replace(state, hidden=torch.tanh(gates.float()))
        hidden, cell = lstm(gates, state.cell)
        return replace(state, hidden=hidden, cell=cell)


def lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """gates (..., 4H), cell (..., H) -> hidden state and cell, float32: Xu et al. 2015, equations 1 to 3."""
    # The cell adds up over time: kept in float32 under autocast.
    take, forget, give, candidate = gates.float().chunk(4, dim=-1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(candidate)
    return torch.sigmoid(give) * torch.tanh(cell), cell
