"""The likelihood of given captions, by teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .decoders.base import valid_indices
from .vocabulary import NULL, START


def padded(captions: Sequence[Sequence[int]]) -> Tensor:
    """Return captions (C, T + 1) int64 from START, with NULL after the last token of each.

    captions: the token ids of each caption, with END if it has one.
    """
    words = torch.full((len(captions), max(map(len, captions)) + 1), NULL)
    words[:, 0] = START
    for row, tokens in enumerate(captions):
        words[row, 1 : len(tokens) + 1] = torch.tensor(tokens)
    return words


@torch.inference_mode()
def log_probabilities(decoder: Any, grid: Tensor, words: Tensor) -> Tensor:
    """Return the log-probability of each word of each caption.

    decoder: in evaluation mode. grid (N, h, w, C) float. words (N, R, T + 1) int64: as `padded` returns, on the same
    device. The log-probabilities are (N, R, T) float32, natural logarithm; 0 for NULL.
    """
    targets = words[:, :, 1:]
    token_indices = valid_indices(targets != NULL)
    logits, _ = decoder(grid, words[:, :, :-1].contiguous(), token_indices)
    chosen = targets.flatten()[token_indices].unsqueeze(1)
    values = torch.zeros(targets.shape, device=grid.device)
    values.view(-1)[token_indices] = torch.log_softmax(logits.float(), dim=1).gather(1, chosen).squeeze(1)
    return values
