"""What of word, hidden state and context the output head reads: (..., E), (..., H), (..., D) -> (..., F)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from .options import Outputs


class Output(nn.Module, ABC):
    """width: F, the size of what it returns."""

    width: int

    @abstractmethod
    def forward(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """words (..., E) just read, hidden (..., H) and context (..., D) after them -> (..., F)."""


class HiddenOutput(Output):
    """The hidden state alone."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.width = hidden
        self.drop = nn.Dropout(dropout)

    def forward(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        dropped: Tensor = self.drop(hidden)
        return dropped


class DeepOutput(Output):
    """tanh(E y + L_h h + L_z z): Xu et al. 2015, equation 7, with the tanh of the authors' code."""

    def __init__(self, embedding: int, hidden: int, context: int, dropout: float) -> None:
        super().__init__()
        self.width = embedding
        self.drop = nn.Dropout(dropout)
        self.hidden = nn.Linear(hidden, embedding, bias=False)
        self.context = nn.Linear(context, embedding, bias=False) if context else None

    def forward(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        mixed = words + self.hidden(self.drop(hidden))
        if self.context is not None:
            mixed = mixed + self.context(context)
        dropped: Tensor = self.drop(torch.tanh(mixed))
        return dropped


class MLPOutput(Output):
    """relu(W [h, z, y] + b), one hidden layer of `size` over hidden state, context and word."""

    def __init__(self, embedding: int, hidden: int, context: int, size: int, dropout: float) -> None:
        super().__init__()
        self.width = size
        self.drop = nn.Dropout(dropout)
        self.layer = nn.Linear(hidden + context + embedding, size)

    def forward(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        dtype = torch.promote_types(words.dtype, hidden.dtype)
        joined = torch.cat([hidden.to(dtype), context.to(dtype), words.to(dtype)], dim=-1)
        dropped: Tensor = self.drop(torch.relu(self.layer(joined)))
        return dropped


def make_output(kind: Outputs, embedding: int, hidden: int, context: int, size: int, dropout: float) -> Output:
    """embedding, hidden, context: E, H, D. size: of the MLP's layer. ValueError for an unknown kind."""
    if kind == "hidden":
        return HiddenOutput(hidden, dropout)
    if kind == "deep":
        return DeepOutput(embedding, hidden, context, dropout)
    if kind != "mlp":
        raise ValueError(f"unknown output {kind!r}; known: hidden, deep, mlp")
    return MLPOutput(embedding, hidden, context, size, dropout)
