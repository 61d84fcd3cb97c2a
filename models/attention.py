"""Attention functions: (annotation vectors, hidden state) -> (context, alphas).

Shapes: N pictures, R rows that share a picture's grid (captions in training, beams in search), P positions,
D channels of an annotation vector, H of the hidden state. What depends on the picture alone (the keys) is
computed once by `keys` and shared by all rows and steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """Bahdanau et al. 2015; the f_att of Xu et al. 2015, equations 4 to 6."""

    def __init__(self, channels: int, hidden: int, size: int) -> None:
        super().__init__()
        self.key = nn.Linear(channels, size)
        self.query = nn.Linear(hidden, size, bias=False)
        self.score = nn.Linear(size, 1, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        """(N, P, D) -> (N, P, A)."""
        projected: Tensor = self.key(annotations)
        return projected

    def forward(self, annotations: Tensor, keys: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """annotations (N, P, D), keys (N, P, A), hidden (N, R, H) -> context (N, R, D), alphas (N, R, P)."""
        mixed = torch.tanh(keys.unsqueeze(1) + self.query(hidden).unsqueeze(2))  # (N, R, P, A)
        return _attend(self.score(mixed).squeeze(-1), annotations)


class ScaledDotAttention(nn.Module):
    """Scaled dot-product (Vaswani et al. 2017, equation 1) of the hidden state with the annotation vectors.

    The annotation vectors are as wide as the hidden state: they are their own keys.
    """

    def forward(self, annotations: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """annotations (N, P, H), hidden (N, R, H) -> context (N, R, H), alphas (N, R, P)."""
        scores = hidden.to(annotations.dtype) @ annotations.transpose(1, 2) / math.sqrt(annotations.shape[-1])
        return _attend(scores, annotations)


def _attend(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """scores (N, R, P) and values (N, P, D) -> context (N, R, D) and alphas (N, R, P), float32."""
    alphas = torch.softmax(scores.float(), dim=-1)
    return alphas.to(values.dtype) @ values, alphas
