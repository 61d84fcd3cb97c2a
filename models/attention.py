"""Attention functions: (annotation vectors, query) -> (context, alphas).

Shapes: N pictures, R rows that share a picture's grid (captions in training, beams in search), P positions of the
grid, P' positions attended, D channels of an annotation vector, H of the hidden state, A of keys and queries. What
depends on the picture alone (the keys) is computed once by `keys` and shared by all rows and steps.

P' is P, or other positions that are weighted means of the grid's: `pool` (P', P), whose rows sum to one. Then keys are
pooled, because an affine projection may be, and alphas are spread over the grid's own positions before the context is
drawn: what an attention over pooled annotation vectors computes, without these.
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
    """Scores every position against the query; alphas are their softmax over positions.

    query: the layer that makes the query of the hidden state; None where the hidden state is the query itself.
    """

    query: nn.Linear | None

    @abstractmethod
    def keys(self, annotations: Tensor) -> Tensor:
        """(N, P, D) -> (N, P, A), affine: what of the annotation vectors is compared."""

    @abstractmethod
    def scores(self, keys: Tensor, query: Tensor) -> Tensor:
        """keys (N, P', A), query (N, R, A) -> (N, R, P')."""

    def forward(
        self, annotations: Tensor, keys: Tensor, query: Tensor, pool: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw a context, and tell where from.

        annotations (N, P, D), keys (N, P', A), query (N, R, A), pool (P', P) -> context (N, R, D), alphas (N, R, P')
        float32.
        """
        alphas = torch.softmax(self.scores(keys, query).float(), dim=-1)
        return spread(alphas, pool).to(annotations.dtype) @ annotations, alphas


def pooling(side: tuple[int, int], presented: int) -> Tensor:
    """The matrix (presented ** 2, h * w) of adaptive average pooling from a grid of h x w to presented x presented."""
    cells = torch.eye(side[0] * side[1]).view(-1, *side)
    return functional.adaptive_avg_pool2d(cells, presented).flatten(1).T.contiguous()


def pooled(values: Tensor, pool: Tensor | None) -> Tensor:
    """values (N, P, X) of the grid's positions -> (N, P', X) of those attended; pool (P', P) or None for the same."""
    return values if pool is None else pool.to(values.dtype) @ values


def spread(alphas: Tensor, pool: Tensor | None) -> Tensor:
    """Weights (N, R, P') of the positions attended -> (N, R, P) of the grid's."""
    return alphas if pool is None else alphas @ pool.to(alphas.dtype)


def mean(annotations: Tensor, pool: Tensor | None) -> Tensor:
    """(N, P, D) -> (N, 1, D): the mean annotation vector of the positions attended."""
    if pool is None:
        return annotations.mean(dim=1, keepdim=True)
    return pool.mean(dim=0, keepdim=True).to(annotations.dtype) @ annotations


class AdditiveAttention(Attention):
    """score = v . tanh(W_a a + W_h h): Bahdanau et al. 2015; the f_att of Xu et al. 2015, equations 4 to 6."""

    query: nn.Linear

    def __init__(self, channels: int, hidden: int, size: int) -> None:
        super().__init__()
        self.key = nn.Linear(channels, size)
        self.query = nn.Linear(hidden, size, bias=False)
        self.score = nn.Linear(size, 1, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        projected: Tensor = self.key(annotations)
        return projected

    def scores(self, keys: Tensor, query: Tensor) -> Tensor:
        mixed = (keys.unsqueeze(1) + query.unsqueeze(2)).tanh_()  # (N, R, P, A)
        score: Tensor = self.score(mixed)
        return score.squeeze(-1)


class DotAttention(Attention):
    """score = h . k, over sqrt(H) where `scaled` (Vaswani et al. 2017, equation 1).

    projected: the keys are k = W a + b, the `general` score of Luong et al. 2015, equation 8, with a bias.
    Otherwise an annotation vector is its own key, the `dot` of the same equation, and has to be H wide.
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
    """channels: D. hidden: H. size: of the additive attention's layer. ValueError where the sizes cannot meet."""
    if kind not in get_args(Attentions):
        raise ValueError(f"unknown attention {kind!r}; known: {', '.join(get_args(Attentions))}")
    if kind == "additive":
        return AdditiveAttention(channels, hidden, size)
    return DotAttention(channels, hidden, scaled="scaled" in kind, projected="general" in kind)
