"""The contract of a decoder.

    start(grid) -> state                   one row a picture
    step(state, tokens) -> (logits, state) one word further: a decoder's definition
    forward(grid, words, valid)            the same maths over whole captions, arranged for speed, for training

Shapes throughout: N pictures, R rows of a picture (its captions, or its beams), P grid positions, V words.
A picture's rows share its annotation vectors and keys.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..heads import make_head
from ..options import Heads
from ..search import Steps
from ..vocabulary import NULL
from . import DECODERS

# Metadata of a state's fields that have no rows.
SAME_FOR_PICTURE = {"of": "picture"}  # (N, ...): the same for all rows of a picture, and all steps
SAME_FOR_ALL = {"of": "all"}  # the same for all pictures, or None


@dataclass(frozen=True)
class State:
    """What a decoder carries from word to word: tensors (N, R, ...), but for fields marked as above.

    alphas (N, R, P'), float32: where the last step looked; zeros before the first.
    """

    alphas: Tensor

    def expand(self, rows: int) -> Self:
        """The state of one row a picture, repeated for `rows` rows."""
        return self._rows(lambda tensor: tensor.expand(-1, rows, *(-1,) * (tensor.dim() - 2)))

    def select(self, rows: Tensor) -> Self:
        """Rows (N, R') of each picture, by index: how beams are taken over from their parents."""

        def taken(tensor: Tensor) -> Tensor:
            index = rows.view(*rows.shape, *(1,) * (tensor.dim() - 2))
            return tensor.gather(1, index.expand(-1, -1, *tensor.shape[2:]))

        return self._rows(taken)

    def keep(self, pictures: Tensor) -> Self:
        """Pictures (N',), by index."""
        kept = replace(self, **{name: getattr(self, name)[pictures] for name in self._names("picture")})
        return kept._rows(lambda tensor: tensor[pictures])

    @classmethod
    def stack(cls, states: Sequence[Self]) -> Self:
        """The states of T steps in one: what has rows becomes (N, R, T, ...)."""
        names = states[0]._names("row")
        stacked = {name: torch.stack([getattr(state, name) for state in states], dim=2) for name in names}
        return replace(states[0], **stacked)

    def _rows(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, **{name: change(getattr(self, name)) for name in self._names("row")})

    def _names(self, of: str) -> list[str]:
        return [item.name for item in fields(self) if item.metadata.get("of", "row") == of]


class ChannelDropout(nn.Module):
    """Dropout of whole channels of a grid (Tompson et al. 2015, section 3.2).

    What is dropped is gone at all positions: attention, which averages over them, cannot average it out.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, grid: Tensor) -> Tensor:
        """(N, h, w, C) -> the same, each picture without channels of its own; in training only."""
        return functional.dropout2d(grid.permute(0, 3, 1, 2), self.share, self.training).permute(0, 2, 3, 1)


class Decoder(nn.Module, ABC):
    """What all decoders have: word embeddings, dropout on words and grid, a head, and maybe a fixed basis.

    attention_grid: the side of the positions attended; None for the grid's own.
    """

    attention_grid: int | None = None

    def __init__(
        self,
        channels: int,
        vocabulary: int,
        features: int,
        embedding: int = 512,
        dropout_words: float = 0.0,
        dropout_grid: float = 0.0,
        dropout_channels: float = 0.0,
        head: Heads = "full",
        bottleneck: int = 256,
        tie_weights: bool = False,
        pca_dim: int | None = None,
    ) -> None:
        """channels: C of the grid. vocabulary: V. features: F, what the head reads. dropout: shares, in training only.

        bottleneck: of that head. pca_dim: the annotation vectors are first projected to so many channels by a fixed
        basis; see `fit_basis`. Raises ValueError where the sizes do not go together.
        """
        super().__init__()
        if pca_dim is not None and pca_dim > channels:
            raise ValueError(f"pca_dim: {pca_dim} channels cannot be left of a grid of {channels}")
        self.basis: Tensor | None
        self.register_buffer("basis", None if pca_dim is None else torch.eye(channels)[:pca_dim].clone())
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=NULL)
        self.drop_words = nn.Dropout(dropout_words)
        self.drop_grid = nn.Sequential(nn.Dropout(dropout_grid), ChannelDropout(dropout_channels))
        self.head = make_head(head, features, vocabulary, bottleneck, self.embed if tie_weights else None)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embed.weight[NULL] = 0.0

    @property
    @abstractmethod
    def attends(self) -> bool:
        """Whether it attends to the grid before each word; where not, its alphas have no positions."""

    @abstractmethod
    def start(self, grid: Tensor) -> State:
        """grid (N, h, w, C), float -> the state before the first word, R = 1."""

    @abstractmethod
    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, State]:
        """tokens (N, R), the words just read -> logits (N, R, V) of the next, and the state after them."""

    @abstractmethod
    def forward(self, grid: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, State]:
        """Teacher forcing: the logits after each true word.

        grid (N, h, w, C). words (N, R, T) int64: the captions read, from START. valid (N, R, T) bool: the places
        whose next word counts. Returns logits (M, V) of the M valid places in order, and what the steps read,
        stacked: alphas (N, R, T, P).
        """

    def for_inference(self) -> Steps[Any]:
        """`start` and `step`, arranged for speed with the weights as they are now; in evaluation mode only."""
        return self

    @abstractmethod
    def compile_step(self, pictures: int, rows: int) -> None:
        """From now on `forward` compiles its work for batches of N pictures by R rows."""

    def penalty(self, read: Any, logits: Tensor, targets: Tensor, valid: Tensor) -> Tensor | None:
        """What a family adds to the cross-entropy in training, in nats a token; None for nothing.

        logits (M, V) and read: what `forward` returned for valid (N, R, T). targets (M,): the true words.
        """
        return None

    def annotations_of(self, grid: Tensor) -> Tensor:
        """grid (N, h, w, C) -> annotation vectors (N, P, D), D = C unless they are reduced."""
        annotations = grid.flatten(1, 2)
        kind = grid.device.type
        if torch.is_autocast_enabled(kind):
            annotations = annotations.to(torch.get_autocast_dtype(kind))  # once, not at every step
        return annotations if self.basis is None else annotations @ self.basis.to(annotations.dtype).T

    def fit_basis(self, gram: Tensor) -> None:
        """Set the basis of `pca_dim` from the Gram matrix (C, C) of annotation vectors, the sum of a a^T of all.

        The basis is the leading right singular vectors of the matrix whose rows are those vectors: no projection
        to so few channels loses less of them in squares (Eckart and Young 1936). Signs are set so that each one's
        largest component is positive.
        """
        assert self.basis is not None
        _, vectors = torch.linalg.eigh(gram.double())
        leading = vectors.flip(1)[:, : len(self.basis)].T
        signs = leading.gather(1, leading.abs().argmax(dim=1, keepdim=True)).sign()
        self.basis.copy_(leading * signs)


def make(name: str, channels: int, vocabulary: int, options: dict[str, Any]) -> Decoder:
    """The decoder `name` for grids of `channels` channels and `vocabulary` words; ValueError for sizes that clash."""
    member = DECODERS[name]
    place = member.module if "." in member.module else f"{__package__}.{member.module}"
    decoder: Decoder = getattr(importlib.import_module(place), member.name)(
        channels, vocabulary, **member.fixed, **options
    )
    return decoder
