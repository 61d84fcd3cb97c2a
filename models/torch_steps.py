"""A decoder's steps in torch for search: at each step, only a shortlist of the likeliest words is copied to NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from . import search
from .decoding_rules import Floats, Words
from .options import Decoding
from .search import Caption, StepOutput
from .vocabulary import FORBIDDEN


class Stepper(Protocol):
    """The methods of a decoder that search uses; see decoders.base.Decoder."""

    def start(self, grid: Tensor) -> Any: ...
    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any]: ...


@torch.no_grad()
def decode(
    decoder: Stepper, grid: Tensor, decoding: Decoding, keys: Sequence[int] | None = None
) -> list[list[Caption]]:
    """Return the `n_best` captions of each picture of grid (N, h, w, C), best first: see `search.decode`."""
    steps = TorchSteps(decoder, grid.device)
    return search.decode(steps, steps.start(grid), len(grid), decoding, keys)


class _State:
    """A decoder's state, indexed by NumPy's arrays."""

    def __init__(self, state: Any, device: torch.device) -> None:
        self.state, self._device = state, device

    @property
    def alphas(self) -> Floats:
        """Return the attention weights of the word just read, (N, R, P)."""
        alphas: Floats = self.state.alphas.float().cpu().numpy()
        return alphas

    def select(self, rows: Words) -> _State:
        """Return the state of the rows with indices `rows` (N, R') within each picture."""
        return _State(self.state.select(torch.from_numpy(rows).to(self._device)), self._device)

    def keep(self, pictures: Words) -> _State:
        """Return the state of the pictures with indices `pictures` (N',)."""
        return _State(self.state.keep(torch.from_numpy(pictures).to(self._device)), self._device)


class TorchSteps:
    """The steps of a decoder on a device."""

    def __init__(self, decoder: Stepper, device: torch.device) -> None:
        self._decoder, self._device = decoder, device

    @torch.no_grad()
    def start(self, grid: Tensor | Floats) -> _State:
        """Return the state before the first word, R = 1, for grid (N, h, w, C)."""
        values = torch.as_tensor(grid, device=self._device).float()
        return _State(self._decoder.start(values), self._device)

    @torch.no_grad()
    def step(self, state: _State, tokens: Words, shortlist: int) -> StepOutput:
        """Return the `shortlist` likeliest words after tokens (N, R), or all words in order for a shortlist of 0."""
        logits, after = self._decoder.step(state.state, torch.from_numpy(tokens).to(self._device))
        scores = torch.log_softmax(logits.float(), dim=-1)
        scores[..., list(FORBIDDEN)] = -torch.inf
        if not shortlist:
            values = scores.cpu().numpy()
            words = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
            return StepOutput(values, words, _State(after, self._device))
        best = scores.topk(min(shortlist, scores.shape[-1]), dim=-1)
        return StepOutput(best.values.cpu().numpy(), best.indices.cpu().numpy(), _State(after, self._device))
