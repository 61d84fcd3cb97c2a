"""The contract of a decoder.

    start(grid) -> state                   one row a picture
    step(state, tokens) -> (logits, state) one word further: a decoder's definition
    forward(grid, words, valid)            the same maths over whole captions, arranged for speed, for training

Shapes throughout: N pictures, R rows of a picture (its captions, or its beams), P grid positions, V words.
A picture's rows share its annotation vectors and keys.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ..attention import pooling
from ..heads import make_head
from ..output import make_output
from ..vocabulary import NULL
from . import DECODERS, FirstStates, Heads, Outputs, teacher_forcing

_OF_THE_PICTURE = ("annotations", "keys", "pool")


@dataclass(frozen=True)
class State:
    """What a decoder carries from word to word.

    annotations (N, P, D) and keys (N, P', A): of the picture, the same for all its rows and steps.
    hidden, cell (N, R, H). context (N, R, D') and alphas (N, R, P'), float32: what the last step drew from
    the grid, and where it looked; zeros before the first. pool (P', P): see attention.py; of all pictures.
    """

    annotations: Tensor
    keys: Tensor
    hidden: Tensor
    cell: Tensor
    context: Tensor
    alphas: Tensor
    pool: Tensor | None = field(default=None, kw_only=True)

    def expand(self, rows: int) -> Self:
        """The state of one row a picture, repeated for `rows` rows."""
        return self._rows(lambda tensor: tensor.expand(-1, rows, -1))

    def select(self, rows: Tensor) -> Self:
        """Rows (N, R') of each picture, by index: how beams are taken over from their parents."""
        return self._rows(lambda tensor: tensor.gather(1, rows.unsqueeze(-1).expand(-1, -1, tensor.shape[-1])))

    def keep(self, pictures: Tensor) -> Self:
        """Pictures (N',), by index."""
        kept = replace(self, annotations=self.annotations[pictures], keys=self.keys[pictures])
        return kept._rows(lambda tensor: tensor[pictures])

    @classmethod
    def stack(cls, states: Sequence[Self]) -> Self:
        """The states of T steps in one: what has rows becomes (N, R, T, ...)."""
        names = _row_fields(states[0])
        stacked = {name: torch.stack([getattr(state, name) for state in states], dim=2) for name in names}
        return replace(states[0], **stacked)

    def _rows(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, **{name: change(getattr(self, name)) for name in _row_fields(self)})


def _row_fields(state: State) -> list[str]:
    return [field.name for field in fields(state) if field.name not in _OF_THE_PICTURE]


class Decoder(nn.Module, ABC):
    """A recurrent cell that may look at the grid before each word.

    What the families share: word embeddings, one cell over [word, context], dropout, an output (output.py) and a
    head (heads.py). A family says how the grid becomes annotation vectors, keys and first states, what it asks of a
    hidden state, and what context that draws. A family without attention has a context of size 0.

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
        dropout_words: float = 0.0,
        dropout_grid: float = 0.0,
        dropout_output: float = 0.5,
        first_state: FirstStates = "grid",
        output: Outputs = "hidden",
        output_size: int = 512,
        head: Heads = "full",
        bottleneck: int = 256,
        tie_weights: bool = False,
        reduce: int | None = None,
        present: int | None = None,
    ) -> None:
        """channels: C of the grid. context: size D' of the context vector. vocabulary: V.

        dropout: shares, in training only. output_size: of the `mlp` output. bottleneck: of that head. reduce: the
        annotation vectors are first projected to so many channels by a fixed basis; see `fit_basis`. present: the
        side of the positions attended, each an average of the grid's by adaptive pooling; None for the grid's own.
        Raises ValueError where the sizes do not go together.
        """
        super().__init__()
        if reduce is not None and reduce > channels:
            raise ValueError(f"reduce: {reduce} channels cannot be left of a grid of {channels}")
        gates = {"rnn": 1, "lstm": 4}[cell]
        self.cell_type, self.present = cell, present
        self.first_state = first_state
        self.basis: Tensor | None
        self.register_buffer("basis", None if reduce is None else torch.eye(channels)[:reduce].clone())
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=NULL)
        self.word_gates = nn.Linear(embedding, gates * hidden)
        self.context_gates = nn.Linear(context, gates * hidden, bias=False) if context else None
        self.hidden_gates = nn.Linear(hidden, gates * hidden, bias=False)
        self.drop_words = nn.Dropout(dropout_words)
        self.drop_grid = nn.Dropout(dropout_grid)
        self.output = make_output(output, embedding, hidden, context, output_size, dropout_output)
        tied = self.embed if tie_weights else None
        self.head = make_head(head, self.output.width, vocabulary, bottleneck, tied)
        self._compiled: teacher_forcing.Step | None = None
        self._compiled_rows = (0, 0)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embed.weight[NULL] = 0.0
            if cell == "lstm":
                # Remember by default: the forget gate starts open (Jozefowicz et al. 2015).
                self.word_gates.bias[hidden : 2 * hidden] = 1.0

    @property
    def attends(self) -> bool:
        """Whether it looks at the grid while it speaks; where not, its alphas have no positions."""
        return self.context_gates is not None

    @abstractmethod
    def begin(self, annotations: Tensor, pool: Tensor | None) -> State:
        """Annotation vectors (N, P, D), float, and pool (P', P) -> the state before the first word, R = 1."""

    def asking(self) -> dict[str, nn.Linear]:
        """The layers besides the cell that read the hidden state of the word before, by names of the family's own."""
        return {}

    @abstractmethod
    def look(self, state: State, asked: Mapping[str, Tensor]) -> State:
        """The state with the context that its hidden state draws from the grid, and the alphas it looks by.

        asked: what the layers of `asking` make of the hidden state, (N, R, A) each.
        """

    def start(self, grid: Tensor) -> State:
        """grid (N, h, w, C), float -> the state before the first word, R = 1."""
        annotations = grid.flatten(1, 2)
        kind = grid.device.type
        if torch.is_autocast_enabled(kind):
            annotations = annotations.to(torch.get_autocast_dtype(kind))  # once, not at every step
        if self.basis is not None:
            annotations = annotations @ self.basis.to(annotations.dtype).T
        side = (grid.shape[1], grid.shape[2])
        own = self.present is None or side == (self.present, self.present)
        pool = None if own or self.present is None else pooling(side, self.present).to(grid.device)
        state = replace(self.begin(annotations, pool), pool=pool)
        if self.first_state == "zeros":
            return replace(state, hidden=torch.zeros_like(state.hidden), cell=torch.zeros_like(state.cell))
        return state

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """tokens (N, R), the words just read -> logits (N, R, V) of the next, and the state after them."""
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

    def forward(self, grid: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, State]:
        """Teacher forcing: the logits after each true word.

        grid (N, h, w, C). words (N, R, T) int64: the captions read, from START. valid (N, R, T) bool: the places
        whose next word counts. Returns logits (M, V) of the M valid places in order, and the states after each
        word, stacked: alphas (N, R, T, P).
        """
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        embedded = self.drop_words(self.embed(words))
        whole = self._compiled is not None and words.shape[:2] == self._compiled_rows
        step = self._compiled if whole and self._compiled is not None else teacher_forcing.one_step
        read = State.stack(teacher_forcing.read_captions(self, state, self.word_gates(embedded), step))
        return self.logits(embedded[valid], read.hidden[valid], read.context[valid]), read

    def compile_step(self, pictures: int, rows: int) -> None:
        """From now on `forward` compiles its step for batches of N pictures by R rows; others go uncompiled."""
        self._compiled = torch.compile(teacher_forcing.one_step, dynamic=False)
        self._compiled_rows = (pictures, rows)

    def penalty(self, read: State, logits: Tensor, targets: Tensor, valid: Tensor) -> Tensor | None:
        """What a family adds to the cross-entropy in training, in nats a token; None for nothing.

        logits (M, V) and read: what `forward` returned for valid (N, R, T). targets (M,): the true words.
        """
        return None

    def fit_basis(self, gram: Tensor) -> None:
        """Set `reduce`'s basis from the Gram matrix (C, C) of annotation vectors, the sum of a a^T over all of them.

        The basis is the leading right singular vectors of the matrix whose rows are those vectors: no projection
        to so few channels loses less of them in squares (Eckart and Young 1936). Signs are set so that each one's
        largest component is positive.
        """
        assert self.basis is not None
        _, vectors = torch.linalg.eigh(gram.double())
        leading = vectors.flip(1)[:, : len(self.basis)].T
        signs = leading.gather(1, leading.abs().argmax(dim=1, keepdim=True)).sign()
        self.basis.copy_(leading * signs)

    def turn(self, state: State, gates: Tensor) -> State:
        """One step of the cell; gates (N, R, 4H), or (N, R, H) for an RNN: W_x x + W_h h + W_z z + b.

        LSTM: Xu et al. 2015, equations 1 to 3. RNN: Elman 1990, h = tanh(W_x x + W_h h + b).
        """
        if self.cell_type == "rnn":
            return replace(state, hidden=torch.tanh(gates.float()))
        # The cell adds up over time: kept in float32 under autocast.
        take, forget, give, candidate = gates.float().chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * state.cell + torch.sigmoid(take) * torch.tanh(candidate)
        return replace(state, hidden=torch.sigmoid(give) * torch.tanh(cell), cell=cell)


def make(name: str, channels: int, vocabulary: int, options: dict[str, Any]) -> Decoder:
    """The decoder `name` for grids of `channels` channels and `vocabulary` words; ValueError for sizes that clash."""
    member = DECODERS[name]
    place = member.module if "." in member.module else f"{__package__}.{member.module}"
    decoder: Decoder = getattr(importlib.import_module(place), member.name)(
        channels, vocabulary, **member.fixed, **options
    )
    return decoder
