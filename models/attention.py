"""Attention functions: (annotation vectors, query) -> (context, alphas).

Shapes: N pictures, R rows that share a picture's grid (captions in training, beams in search), P positions of the
grid, P' positions attended, D channels of an annotation vector, H of the hidden state, A of keys and queries. The keys
depend on the picture alone: they are computed once, by `keys`, and shared by all rows and steps.

The attended positions are the grid's (P' = P), or weighted means of them by `pool` (P', P), whose rows sum to one. In
the second case the keys are pooled, which is exact because their projection is affine, and the alphas are spread over
the grid's positions before the context is computed. The result equals attention over pooled annotation vectors, which
are never computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from .options import Attentions


class Attention(nn.Module, ABC):
    """An attention function, which scores each position against a query; the alphas are the softmax of the scores.

    query: the layer that computes the query from the hidden state; None if the hidden state itself is the query.
    """

    query: nn.Linear | None

    @abstractmethod
    def keys(self, annotations: Tensor) -> Tensor:
        """Return the keys (N, P, A) of annotation vectors (N, P, D), by an affine projection."""

    @abstractmethod
    def scores(self, keys: Tensor, query: Tensor) -> Tensor:
        """Return the scores (N, R, P') of keys (N, P', A) against queries (N, R, A)."""

    def forward(
        self, annotations: Tensor, keys: Tensor, query: Tensor, pool: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the context (N, R, D) and the alphas (N, R, P'), float32, with which it weights the positions.

        annotations (N, P, D), keys (N, P', A), query (N, R, A), pool (P', P) or None.
        """
        alphas = torch.softmax(self.scores(keys, query).float(), dim=-1)
        return spread(alphas, pool).to(annotations.dtype) @ annotations, alphas


def pooling(sides: tuple[int, int], attended_side: int, device: torch.device) -> Tensor:
    """Return the matrix of adaptive average pooling from h x w to attended_side x attended_side positions.

    sides: (h, w). The matrix is (attended_side ** 2, h * w), float32, on the device; its rows sum to one.
    """
    cells = torch.eye(sides[0] * sides[1], device=device).view(-1, *sides)
    return functional.adaptive_avg_pool2d(cells, attended_side).flatten(1).T.contiguous()


def pooled(values: Tensor, pool: Tensor | None) -> Tensor:
    """Return the values (N, P', X) of the attended positions, from the values (N, P, X) of the grid's positions.

    pool (P', P), or None if the positions are the same.
    """
    return values if pool is None else pool.to(values.dtype) @ values


def spread(alphas: Tensor, pool: Tensor | None) -> Tensor:
    """Return the alphas (N, R, P) of the grid's positions, from the alphas (N, R, P') of the attended positions.

    pool (P', P), or None if the positions are the same.
    """
    return alphas if pool is None else alphas @ pool.to(alphas.dtype)


def mean(annotations: Tensor, pool: Tensor | None) -> Tensor:
    """Return the mean annotation vector (N, 1, D) of the attended positions, from the grid's vectors (N, P, D)."""
    if pool is None:
        return annotations.mean(dim=1, keepdim=True)
    return pool.mean(dim=0, keepdim=True).to(annotations.dtype) @ annotations


class AdditiveAttention(Attention):
    """Additive attention, score = v . tanh(W_a a + W_h h) (Bahdanau et al. 2015).

    It is the f_att of Xu et al. 2015, equations 4 to 6. relu: max(0, .) in place of tanh, as in most PyTorch
    implementations. Their biases of W_h and v are redundant: the first adds to the bias of W_a, the softmax cancels the
    second.
    """

    query: nn.Linear

    def __init__(self, channels: int, hidden: int, size: int, relu: bool = False) -> None:
        super().__init__()
        self.relu = relu
        self.key = nn.Linear(channels, size)
        self.query = nn.Linear(hidden, size, bias=False)
        self.score = nn.Linear(size, 1, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        projected: Tensor = self.key(annotations)
        return projected

    def scores(self, keys: Tensor, query: Tensor) -> Tensor:
        sums = keys.unsqueeze(1) + query.unsqueeze(2)  # (N, R, P', A)
        activations = sums.relu_() if self.relu else sums.tanh_()
        scores: Tensor = self.score(activations)
        return scores.squeeze(-1)


class DotAttention(Attention):
    """Dot-product attention, score = h . k, divided by sqrt(H) if `scaled` (Vaswani et al. 2017, equation 1).

    projected: the keys are k = W a + b, the `general` score of Luong et al. 2015, equation 8, with a bias. Otherwise
    the annotation vectors are the keys, the `dot` score of the same equation, and must have H channels.
    """

    def __init__(self, channels: int, hidden: int, scaled: bool, projected: bool) -> None:
        super().__init__()
        if not projected and channels != hidden:
            raise ValueError(
                f"dot-product attention compares annotation vectors of {channels} channels with a hidden state of "
                f"{hidden}: set decoder.hidden={channels}, or decoder.attention=general, which projects them"
            )
        self.key = nn.Linear(channels, hidden) if projected else None
        self.query = None
        self.scale = 1 / math.sqrt(hidden) if scaled else 1.0

    def keys(self, annotations: Tensor) -> Tensor:
        return annotations if self.key is None else self.key(annotations)

    def scores(self, keys: Tensor, query: Tensor) -> Tensor:
        return query.to(keys.dtype) @ keys.transpose(1, 2) * self.scale


def make_attention(kind: Attentions, channels: int, hidden: int, size: int = 512) -> Attention:
    """Build the attention function of a kind.

    channels: D. hidden: H. size: A, for additive attention. Raises ValueError for an unknown kind and for sizes that
    do not fit together.
    """
    if kind not in get_args(Attentions):
        raise ValueError(f"unknown attention {kind!r}; known: {', '.join(get_args(Attentions))}")
    if kind in ("additive", "additive_relu"):
        return AdditiveAttention(channels, hidden, size, relu=kind == "additive_relu")
    return DotAttention(channels, hidden, scaled="scaled" in kind, projected="general" in kind)
