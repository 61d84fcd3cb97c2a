"""The contract of a decoder.

    start(grid) -> state                   one row a picture
    step(state, tokens) -> (logits, state) one word further
    forward(grid, words, valid)            the same maths over whole captions, for training

Shapes throughout: N pictures, R rows of a picture (its captions, or its beams), P grid positions, V words.
A picture's rows share its annotation vectors and keys.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..vocabulary import NULL
from . import DECODERS


@dataclass(frozen=True)
class State:
    """What a decoder carries from word to word.

    annotations (N, P, D) and keys (N, P, A): of the picture, the same for all its rows and steps.
    hidden, cell (N, R, H). context (N, R, D') and alphas (N, R, P), float32: what the last step drew from
    the grid, and where it looked; zeros before the first.
    """

    annotations: Tensor
    keys: Tensor
    hidden: Tensor
    cell: Tensor
    context: Tensor
    alphas: Tensor

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

    def _rows(self, change: Any) -> Self:
        names = ("hidden", "cell", "context", "alphas")
        return replace(self, **{name: change(getattr(self, name)) for name in names})


class Decoder(nn.Module, ABC):
    """An LSTM that looks at the grid before each word.

    What the families share: word embeddings, one LSTM cell over [word, context], dropout and an output layer. A
    family says how the grid becomes annotation vectors and first states, and what context a hidden state draws.

    The output layer reads the hidden state, or with `deep_output` the word read, the hidden state and the context
    (Xu et al. 2015, equation 7, with the tanh of the authors' code).

    The input weights of the cell are kept in two parts, for words and for context, so that the words' part is one
    product for a whole caption under teacher forcing.
    """

    def __init__(
        self,
        context: int,
        vocabulary: int,
        embedding: int = 512,
        hidden: int = 512,
        dropout_words: float = 0.0,
        dropout_grid: float = 0.0,
        dropout_output: float = 0.5,
        deep_output: bool = False,
    ) -> None:
        """context: size D' of the context vector. vocabulary: V. dropout: shares, in training only."""
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=NULL)
        self.word_gates = nn.Linear(embedding, 4 * hidden)
        self.context_gates = nn.Linear(context, 4 * hidden, bias=False)
        self.hidden_gates = nn.Linear(hidden, 4 * hidden, bias=False)
        self.drop_words = nn.Dropout(dropout_words)
        self.drop_grid = nn.Dropout(dropout_grid)
        self.drop_output = nn.Dropout(dropout_output)
        self.deep_output = deep_output
        if deep_output:
            self.hidden_output = nn.Linear(hidden, embedding, bias=False)
            self.context_output = nn.Linear(context, embedding, bias=False)
        self.output = nn.Linear(embedding if deep_output else hidden, vocabulary)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        with torch.no_grad():
            self.embed.weight[NULL] = 0.0
            # Remember by default: the forget gate starts open (Jozefowicz et al. 2015).
            self.word_gates.bias[hidden : 2 * hidden] = 1.0

    @abstractmethod
    def start(self, grid: Tensor) -> State:
        """grid (N, h, w, C), float -> the state before the first word, R = 1."""

    @abstractmethod
    def look(self, state: State) -> tuple[Tensor, Tensor]:
        """The context that the hidden state draws from the grid: (N, R, D'), and alphas (N, R, P)."""

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """tokens (N, R), the words just read -> logits (N, R, V) of the next, and the state after them."""
        words = self.drop_words(self.embed(tokens))
        state = self._read(state, self.word_gates(words))
        return self.logits(words, state.hidden, state.context), state

    def logits(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """words (..., E) just read, hidden (..., H) and context (..., D') after them -> logits (..., V)."""
        features = self.drop_output(hidden)
        if self.deep_output:
            mixed = words + self.hidden_output(features) + self.context_output(context)
            features = self.drop_output(torch.tanh(mixed))
        logits: Tensor = self.output(features)
        return logits

    def forward(self, grid: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher forcing: the logits after each true word.

        grid (N, h, w, C). words (N, R, T) int64: the captions read, from START. valid (N, R, T) bool: the places
        whose next word counts. Returns logits (M, V) of the M valid places in order, and alphas (N, R, T, P).
        """
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        embedded = self.drop_words(self.embed(words))
        gates = self.word_gates(embedded)  # the words' part, once for all steps
        states = []
        for time in range(words.shape[2]):
            state = self._read(state, gates[:, :, time])
            states.append(state)
        hidden, context, alphas = (
            torch.stack([getattr(state, name) for state in states], dim=2) for name in ("hidden", "context", "alphas")
        )
        return self.logits(embedded[valid], hidden[valid], context[valid]), alphas

    def _read(self, state: State, word_gates: Tensor) -> State:
        """One step of the LSTM (Xu et al. 2015, equations 1 to 3); word_gates (N, R, 4H)."""
        context, alphas = self.look(state)
        gates = word_gates + self.context_gates(context) + self.hidden_gates(state.hidden)
        # The cell adds up over time: kept in float32 under autocast.
        take, forget, give, candidate = gates.float().chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * state.cell + torch.sigmoid(take) * torch.tanh(candidate)
        hidden = torch.sigmoid(give) * torch.tanh(cell)
        return replace(state, hidden=hidden, cell=cell, context=context.float(), alphas=alphas)


def make(name: str, channels: int, vocabulary: int, options: dict[str, Any]) -> Decoder:
    """The decoder `name` for grids of `channels` channels and `vocabulary` words."""
    member = DECODERS[name]
    module = importlib.import_module(f".{member.module}", __package__)
    decoder: Decoder = getattr(module, member.name)(channels, vocabulary, **options)
    return decoder
