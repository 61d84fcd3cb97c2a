"""An ensemble of decoders, trained together: the next word's probability is the mean of its members'."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..torch_steps import Stepper
from . import base
from .base import Decoder, State


@dataclass(frozen=True)
class EnsembleState:
    """The states of an ensemble's members, in their order."""

    states: tuple[Any, ...]

    @property
    def alphas(self) -> Tensor:
        """Return the mean of the members' alphas, (N, R, P') float32."""
        return torch.stack([state.alphas for state in self.states]).mean(dim=0)

    def expand(self, rows: int) -> EnsembleState:
        """Return these states as `State.expand` does."""
        return self._map_states(lambda state: state.expand(rows))

    def select(self, rows: Tensor) -> EnsembleState:
        """Return these states as `State.select` does."""
        return self._map_states(lambda state: state.select(rows))

    def keep(self, pictures: Tensor) -> EnsembleState:
        """Return these states as `State.keep` does."""
        return self._map_states(lambda state: state.keep(pictures))

    def _map_states(self, change: Callable[[State], State]) -> EnsembleState:
        return EnsembleState(tuple(map(change, self.states)))


class Ensemble(nn.ModuleList):
    """Decoders of one shape with different weights; the ensemble's logits are log-probabilities."""

    def __init__(self, members: Sequence[Decoder]) -> None:
        super().__init__(members)
        self._steppers: list[Stepper] = list(members)
        self.attends, self.attention_grid = members[0].attends, members[0].attention_grid

    def start(self, grid: Tensor) -> EnsembleState:
        """Return the state before the first word, R = 1, for grid (N, h, w, C), float."""
        return EnsembleState(tuple(stepper.start(grid) for stepper in self._steppers))

    def step(self, state: EnsembleState, tokens: Tensor) -> tuple[Tensor, EnsembleState]:
        """Return the log-probabilities (N, R, V) of the next word, and the state after the words just read.

        tokens (N, R): the words just read.
        """
        steps = [stepper.step(member, tokens) for stepper, member in zip(self._steppers, state.states, strict=True)]
        return _log_mean([logits for logits, _ in steps]), EnsembleState(tuple(after for _, after in steps))

    def forward(self, grid: Tensor, words: Tensor, token_indices: Tensor) -> tuple[Tensor, EnsembleState]:
        """Return log-probabilities and states as `Decoder.forward` does."""
        outputs = [member(grid, words, token_indices) for member in self]
        return _log_mean([logits for logits, _ in outputs]), EnsembleState(tuple(states for _, states in outputs))

    def for_inference(self) -> Ensemble:
        """Return an ensemble whose `start` and `step` are optimised for speed, with the members' current weights."""
        ensemble = Ensemble(members_of(self))
        ensemble._steppers = [member.for_inference() for member in members_of(self)]
        return ensemble


def make(name: str, channels: int, vocabulary: int, options: Mapping[str, Any], members: int = 1) -> Decoder | Ensemble:
    """Return a new decoder, or an ensemble of `members` such decoders if that is more than one.

    name, channels, vocabulary, options: as for `base.make`. Raises ValueError for sizes that do not fit together.
    """
    decoders = [base.make(name, channels, vocabulary, options) for _ in range(members)]
    return decoders[0] if members == 1 else Ensemble(decoders)


def members_of(decoder: Decoder | Ensemble) -> list[Decoder]:
    """Return the members of an ensemble, or the decoder alone if it is not an ensemble."""
    members: list[Any] = list(decoder) if isinstance(decoder, Ensemble) else [decoder]
    return members


def _log_mean(logits: list[Tensor]) -> Tensor:
    """Return the logarithm of the members' mean probability; for a single member, its logits."""
    if len(logits) == 1:
        return logits[0]
    log_probabilities = torch.stack([torch.log_softmax(member.float(), dim=-1) for member in logits])
    return torch.logsumexp(log_probabilities, dim=0) - math.log(len(logits))
