"""The interface of a decoder.

    start(grid) -> state                   the state before the first word, one row per picture
    step(state, tokens) -> (logits, state) one word further: this defines the decoder
    forward(grid, words, token_indices)    the same computation over whole captions, arranged for speed, for training

Shapes throughout: N pictures, R rows of a picture (its captions, or its hypotheses in search), P grid positions, V
words. A picture's rows share its annotation vectors and keys.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..options import DecoderOptions
from ..torch_steps import Stepper
from ..vocabulary import NULL
from . import DECODERS

# Metadata of those fields of a state that have no dimension R. All other fields have an entry for each row.
SAME_FOR_PICTURE = {"one_per": "picture"}  # (N, ...): the same for all rows of a picture, and all steps
SAME_FOR_ALL = {"one_per": "state"}  # the same for all pictures, or None
OF_LAST_STEP = {"is_read": False}  # (N, R, ...): what the last step computed and no later step reads


@dataclass(frozen=True)
class State:
    """The state of a decoder between words: tensors (N, R, ...), except for fields with the metadata above.

    Each has `alphas` (N, R, P'), float32: the last step's attention weights of the positions, undefined before the
    first step.
    """

    if TYPE_CHECKING:  # a field of some subclasses, a property of others

        @property
        def alphas(self) -> Tensor: ...

    def expand(self, rows: int) -> Self:
        """Return this state, which has one row per picture, repeated for `rows` rows."""
        return self._map_rows(lambda tensor: tensor.expand(-1, rows, *(-1,) * (tensor.dim() - 2)))

    def select(self, rows: Tensor) -> Self:
        """Return the state of the rows with indices `rows` (N, R') within each picture.

        Search calls it with the parents of the new hypotheses.
        """

        pictures, own_rows = getattr(self, self.names_of("row")[0]).shape[:2]
        first_rows = torch.arange(pictures, device=rows.device).unsqueeze(1) * own_rows
        index = (rows + first_rows).flatten()  # into all N * R rows: copying whole rows is several times faster
        return self._map_rows(lambda tensor: tensor.flatten(0, 1).index_select(0, index).unflatten(0, rows.shape))

    def first(self, rows: int) -> Self:
        """Return the state of the first `rows` rows of each picture."""
        return self._map_rows(lambda tensor: tensor[:, :rows])

    def padded(self, rows: int) -> Self:
        """Return this state with rows of zeros after its own, `rows` in all."""
        return self._map_rows(lambda tensor: padded_rows(tensor, rows))

    def keep(self, pictures: Tensor) -> Self:
        """Return the state of the pictures with indices `pictures` (N',)."""
        state = replace(self, **{name: getattr(self, name)[pictures] for name in self.names_of("picture")})
        return state._map_rows(lambda tensor: tensor[pictures])

    @classmethod
    def stack(cls, states: Sequence[Self]) -> Self:
        """Return the states of T steps as one, in which fields with rows are (N, R, T, ...)."""
        names = states[0].names_of("row")
        stacked = {name: torch.stack([getattr(state, name) for state in states], dim=2) for name in names}
        return replace(states[0], **stacked)

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return this state with `change` applied to each field that has rows."""
        return replace(self, **{name: change(getattr(self, name)) for name in self.names_of("row")})

    def names_of(self, one_per: str) -> list[str]:
        """Return the names of the fields that have one tensor per `row`, `picture` or `state`."""
        return [field.name for field in fields(self) if field.metadata.get("one_per", "row") == one_per]


@dataclass(frozen=True)
class AttentionState(State):
    """A state whose alphas are computed with each step."""

    alphas: Tensor = field(metadata=OF_LAST_STEP)


def padded_rows(values: Tensor, rows: int) -> Tensor:
    """Return values (N, R, ...) with rows of zeros after their own, `rows` in all."""
    missing = rows - values.shape[1]
    return values if not missing else torch.cat([values, values.new_zeros(len(values), missing, *values.shape[2:])], 1)


def select_tokens(values: Tensor, token_indices: Tensor) -> Tensor:
    """Return the values (M, X) at token_indices (M,) of values (N, R, T, X): see `Decoder.forward`."""
    return values.flatten(0, 2).index_select(0, token_indices)


def valid_indices(valid: Tensor) -> Tensor:
    """Return the token_indices (M,) where valid (N, R, T) is true, in order. On a GPU, this waits for its work."""
    return valid.flatten().nonzero().squeeze(1)


class Head(nn.Module):
    """The output head: features (..., F) -> logits of the next word (..., V), by a linear layer.

    With `embedding`, its weights are tied to the word embeddings (Press and Wolf 2017).
    """

    def __init__(self, features: int, vocabulary: int, embedding: nn.Embedding | None = None) -> None:
        """Create the layer. features: F. vocabulary: V. embedding: the word embeddings (V, F); None to tie nothing."""
        super().__init__()
        if embedding is None:
            layer = nn.Linear(features, vocabulary)
            self.weight, self.bias = layer.weight, nn.Parameter(layer.bias.new_zeros(vocabulary))
            self._tied: tuple[nn.Embedding, ...] = ()
            return
        self.bias = nn.Parameter(embedding.weight.new_zeros(vocabulary))
        # Hidden from torch in a tuple, so that the weights are saved and trained once, as the embedding's.
        self._tied = (embedding,)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (..., V) of features (..., F)."""
        weight = self._tied[0].weight if self._tied else self.weight
        return functional.linear(features, weight, self.bias)


class Decoder(nn.Module, ABC):
    """The base class of decoders: word embeddings, dropout on words and grid, a head, and an optional fixed basis.

    attends: whether it attends to the grid before each word; if not, its alphas have no positions. attention_grid: the
    side of the attended positions; None for the grid's own.
    """

    attends = True
    attention_grid: int | None = None

    def __init__(self, channels: int, vocabulary: int, options: DecoderOptions) -> None:
        """Create the layers that all decoders share; channels: C of the grid. vocabulary: V.

        Raises ValueError for sizes that do not fit together.
        """
        super().__init__()
        pca_dim = options.pca_dim
        if pca_dim is not None and pca_dim > channels:
            raise ValueError(f"pca_dim: a grid of {channels} channels cannot be reduced to {pca_dim}")
        self.basis: Tensor | None
        self.register_buffer("basis", None if pca_dim is None else torch.eye(channels)[:pca_dim].clone())
        self.embed = nn.Embedding(vocabulary, options.embedding, padding_idx=NULL)
        self.drop_words = nn.Dropout(options.dropout_words)
        self.drop_grid = nn.Dropout(options.dropout_grid)
        self.head = Head(options.features, vocabulary, self.embed if options.tie_weights else None)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embed.weight[NULL] = 0.0

    @abstractmethod
    def start(self, grid: Tensor) -> State:
        """Return the state before the first word, R = 1, for grid (N, h, w, C), float."""

    @abstractmethod
    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, State]:
        """Return the logits (N, R, V) of the next word, and the state after the words just read, tokens (N, R)."""

    @abstractmethod
    def forward(self, grid: Tensor, words: Tensor, token_indices: Tensor) -> tuple[Tensor, State]:
        """Return the logits of the next word after each true word (teacher forcing), and the states of the steps.

        grid (N, h, w, C). words (N, R, T) int64: the captions, from START. token_indices (M,) int64: of the words whose
        next word is predicted, among the N * R * T words; the logits (M, V) have a row for each. The states are
        stacked: alphas (N, R, T, P'). They are undefined after a caption's last index.
        """

    def for_inference(self) -> Stepper:
        """Return an object whose `start` and `step` are optimised for speed, with the current weights.

        Call it in evaluation mode only.
        """
        return self

    @abstractmethod
    def compile_step(self, pictures: int, rows: int) -> None:
        """Make `forward` run compiled code from now on, for batches of N pictures by R rows."""

    @property
    def compile_mode(self) -> str | None:
        """Return torch.compile's mode: on a GPU, kernels are replayed as CUDA graphs."""
        return "reduce-overhead" if self.embed.weight.is_cuda else None

    def penalty(self, states: Any, logits: Tensor, targets: Tensor, token_indices: Tensor) -> Tensor | None:
        """Return the loss that is added to the cross-entropy in training, in nats per token; None if there is none.

        logits (M, V), states: what `forward` returned for token_indices (M,). targets (M,): the true next words.
        """
        return None

    def annotations_of(self, grid: Tensor) -> Tensor:
        """Return the annotation vectors (N, P, D) of grid (N, h, w, C); D is `pca_dim` if that is set, else C."""
        annotations = grid.flatten(1, 2)
        device_type = grid.device.type
        if torch.is_autocast_enabled(device_type):
            annotations = annotations.to(torch.get_autocast_dtype(device_type))  # cast once, not at every step
        return annotations if self.basis is None else annotations @ self.basis.to(annotations.dtype).T

    def fit_basis(self, gram: Tensor) -> None:
        """Set the basis of `pca_dim` vectors from the Gram matrix (C, C) of annotation vectors, the sum of all a a^T.

        The basis consists of the leading right singular vectors of the matrix whose rows are the annotation vectors: no
        other projection to as few channels has a smaller squared error (Eckart and Young 1936). Signs are chosen so
        that the largest component of each basis vector, by magnitude, is positive.
        """
        assert self.basis is not None
        _, vectors = torch.linalg.eigh(gram.double())
        leading = vectors.flip(1)[:, : len(self.basis)].T
        signs = leading.gather(1, leading.abs().argmax(dim=1, keepdim=True)).sign()
        self.basis.copy_(leading * signs)


def make(name: str, channels: int, vocabulary: int, options: Mapping[str, Any]) -> Decoder:
    """Return a new decoder `name` for grids of `channels` channels and a vocabulary of `vocabulary` words.

    Raises ValueError for sizes that do not fit together.
    """
    member = DECODERS[name]
    module = member.module if "." in member.module else f"{__package__}.{member.module}"
    decoder_class = getattr(importlib.import_module(module), member.name)
    decoder: Decoder = decoder_class(channels, vocabulary, member.options(**options), **member.fixed)
    return decoder
