"""Output heads: what the decoder has to say (..., F) -> logits of the next word (..., V)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn import functional

from .options import Heads


class Head(nn.Module, ABC):
    """Logits are unnormalised log-probabilities: only their softmax has a meaning."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """(..., F) -> (..., V)."""


class FullHead(Head):
    """One linear layer; with `embedding`, its weights are the word embeddings' own (Press and Wolf 2017)."""

    def __init__(self, features: int, vocabulary: int, embedding: nn.Embedding | None = None) -> None:
        super().__init__()
        if embedding is None:
            own = nn.Linear(features, vocabulary)
            self.weight, self.bias = own.weight, nn.Parameter(own.bias.new_zeros(vocabulary))
            self._tied: tuple[nn.Embedding, ...] = ()
            return
        if embedding.embedding_dim != features:
            raise ValueError(
                f"tied weights: the word embeddings are {embedding.embedding_dim} wide and the output layer reads "
                f"{features}: set decoder.embedding={features}"
            )
        self.bias = nn.Parameter(embedding.weight.new_zeros(vocabulary))
        self._tied = (embedding,)  # in a tuple: its weights are saved and trained once, as the embedding's

    def forward(self, features: Tensor) -> Tensor:
        weight = self._tied[0].weight if self._tied else self.weight
        return functional.linear(features, weight, self.bias)


class BottleneckHead(Head):
    """F -> `size` -> V without a bend between: a low-rank output layer (Sainath et al. 2013)."""

    def __init__(self, features: int, vocabulary: int, size: int, embedding: nn.Embedding | None = None) -> None:
        super().__init__()
        self.narrow = nn.Linear(features, size, bias=False)
        self.words = FullHead(size, vocabulary, embedding)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.words(self.narrow(features))
        return logits


class AdaptiveHead(Head):
    """PyTorch's adaptive softmax (Grave et al. 2017): rarer words share narrower layers.

    The vocabulary is ordered by falling count, as it needs. What it returns are its log-probabilities.
    """

    def __init__(self, features: int, vocabulary: int) -> None:
        super().__init__()
        # A fifth of a caption vocabulary makes nearly all of its text.
        cutoffs = sorted({max(vocabulary // 5, 1), max(vocabulary // 2, 2)})
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(features, vocabulary, cutoffs, div_value=2.0)

    def forward(self, features: Tensor) -> Tensor:
        flat = features.reshape(-1, features.shape[-1])
        return self.softmax.log_prob(flat).view(*features.shape[:-1], self.softmax.n_classes)


def make_head(
    kind: Heads, features: int, vocabulary: int, bottleneck: int = 256, embedding: nn.Embedding | None = None
) -> Head:
    """features: F. vocabulary: V. embedding: the word embeddings to tie the last layer to.

    Raises ValueError for an unknown kind and for weights that cannot be tied.
    """
    if kind == "full":
        return FullHead(features, vocabulary, embedding)
    if kind == "bottleneck":
        return BottleneckHead(features, vocabulary, bottleneck, embedding)
    if kind != "adaptive":
        raise ValueError(f"unknown head {kind!r}; known: full, bottleneck, adaptive")
    if embedding is not None:
        raise ValueError("tied weights: an adaptive softmax has no one layer to tie: take head full or bottleneck")
    return AdaptiveHead(features, vocabulary)
