"""An ensemble of decoders: the next word's probability is the mean of theirs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..search import Steps
from .base import Decoder, State


@dataclass(frozen=True)
class EnsembleState:
    """The states of the members, each of its own weights."""

    states: tuple[State, ...]

    @property
    def alphas(self) -> Tensor:
        """(N, R, P'), float32: the mean of the members'."""
        return torch.stack([state.alphas for state in self.states]).mean(dim=0)

    def expand(self, rows: int) -> EnsembleState:
        return self._each(lambda state: state.expand(rows))

    def select(self, rows: Tensor) -> EnsembleState:
        return self._each(lambda state: state.select(rows))

    def keep(self, pictures: Tensor) -> EnsembleState:
        return self._each(lambda state: state.keep(pictures))

    def _each(self, change: Callable[[State], State]) -> EnsembleState:
        return EnsembleState(tuple(map(change, self.states)))


class Ensemble(nn.ModuleList):
    """Trained decoders of one shape, for inference alone; its logits are log-probabilities."""

    def __init__(self, members: Sequence[Decoder]) -> None:
        super().__init__(members)
        self._steps: list[Steps[Any]] = list(members)

    @property
    def attends(self) -> bool:
        return self._first.attends

    @property
    def attention_grid(self) -> int | None:
        return self._first.attention_grid

    @property
    def _first(self) -> Decoder:
        first = self[0]
        assert isinstance(first, Decoder)
        return first

    def start(self, grid: Tensor) -> EnsembleState:
        """grid (N, h, w, C), float -> the state before the first word, R = 1."""
        return EnsembleState(tuple(member.start(grid) for member in self._steps))

    def step(self, state: EnsembleState, tokens: Tensor) -> tuple[Tensor, EnsembleState]:
        """tokens (N, R), the words just read -> log-probabilities (N, R, V) of the next, and the state after them."""
        each = [member.step(of, tokens) for member, of in zip(self._steps, state.states, strict=True)]
        return _mean([logits for logits, _ in each]), EnsembleState(tuple(after for _, after in each))

    def forward(self, grid: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, State]:
        """As `Decoder.forward`; of what the members read, the mean of their alphas."""
        each = [member(grid, words, valid) for member in self]
        alphas = torch.stack([read.alphas for _, read in each]).mean(dim=0)
        return _mean([logits for logits, _ in each]), State(alphas)

    def for_inference(self) -> Ensemble:
        """`start` and `step` with each member arranged for speed, as its weights are now."""
        arranged = Ensemble([])
        arranged._steps = [member.for_inference() for member in self if isinstance(member, Decoder)]
        return arranged


def _mean(logits: list[Tensor]) -> Tensor:
    """The logarithm of the members' mean probability; of one member its own logits."""
    if len(logits) == 1:
        return logits[0]
    each = torch.stack([torch.log_softmax(one.float(), dim=-1) for one in logits])
    return torch.logsumexp(each, dim=0) - math.log(len(logits))
