"""Outputs: word (..., E), hidden state (..., H), context (..., D) -> features (..., F) that the output head reads."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from .options import Outputs


class Output(nn.Module, ABC):
    """A layer between the recurrent cell and the output head; F: see `RecurrentOptions.features`."""

    @abstractmethod
    def forward(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return the features (..., F) after a word.

        words (..., E): embeddings of the words just read. hidden (..., H), context (..., D): the cell's hidden state
        and context vector after them.
        """


class HiddenOutput(Output):
    """An output that is the hidden state alone."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)

    def forward(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        dropped: Tensor = self.drop(hidden)
        return dropped


class DeepOutput(Output):
    """A deep output, tanh(E y + L_h h + L_z z): Xu et al. 2015, equation 7, with the tanh of the authors' code."""

    def __init__(self, embedding: int, hidden: int, context: int, dropout: float) -> None:
        super().__init__()
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
    """An MLP output, relu(W [h, z, y] + b): one layer of `size` units over hidden state, context and word."""

    def __init__(self, embedding: int, hidden: int, context: int, size: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.layer = nn.Linear(hidden + context + embedding, size)

    def forward(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        dtype = torch.promote_types(words.dtype, hidden.dtype)
        joined = torch.cat([hidden.to(dtype), context.to(dtype), words.to(dtype)], dim=-1)
        dropped: Tensor = self.drop(torch.relu(self.layer(joined)))
        return dropped


def make_output(kind: Outputs, embedding: int, hidden: int, context: int, size: int, dropout: float) -> Output:
    """Build the output of a kind.

    embedding, hidden, context: E, H, D. size: units of the MLP's layer.
    """
    if kind == "hidden":
        return HiddenOutput(hidden, dropout)
    if kind == "deep":
        return DeepOutput(embedding, hidden, context, dropout)
    return MLPOutput(embedding, hidden, context, size, dropout)
