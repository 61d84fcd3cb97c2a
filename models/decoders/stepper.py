"""A recurrent decoder arranged for speaking: its `step`, with what depends on its weights alone computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from .teacher_forcing import asked_biases, one_step, reading_weights

if TYPE_CHECKING:
    from .recurrent import Recurrence, RecurrentDecoder


class Stepper:
    """`start` and `step` of a recurrent decoder in evaluation mode; the weights are those it had when this was made.

    The words' part of the gates is a table (V, G), a row a word; all that reads the hidden state is one product. For
    one picture the plain decoder is as good: the table costs as much as V steps of one hypothesis.
    """

    @torch.no_grad()
    def __init__(self, decoder: RecurrentDecoder) -> None:
        assert not decoder.training
        self._decoder = decoder
        self._word_gates = decoder.word_gates(decoder.embed.weight)
        self._reading, self._biases = reading_weights(decoder), asked_biases(decoder)
        self._looking = None if decoder.context_gates is None else decoder.context_gates.weight.detach()

    def start(self, grid: Tensor) -> Recurrence:
        """grid (N, h, w, C), float -> the state before the first word, R = 1."""
        return self._decoder.start(grid)

    @torch.no_grad()
    def step(self, state: Recurrence, tokens: Tensor) -> tuple[Tensor, Recurrence]:
        """tokens (N, R), the words just read -> logits (N, R, V) of the next, and the state after them."""
        gates = functional.embedding(tokens, self._word_gates)
        state = one_step(self._decoder, state, self._biases, gates, self._reading, self._looking)
        return self._decoder.logits(self._decoder.embed(tokens), state.hidden, state.context), state
