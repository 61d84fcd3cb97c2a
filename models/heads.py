"""Output heads: the decoder's features (..., F) -> logits of the next word (..., V)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn import functional

from .options import Heads


class Head(nn.Module, ABC):
    """A layer that gives logits: unnormalised log-probabilities, of which only the softmax has a meaning."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (..., V) of features (..., F)."""


class FullHead(Head):
    """A linear layer; with `embedding`, its weights are tied to the word embeddings (Press and Wolf 2017)."""

    def __init__(self, features: int, vocabulary: int, embedding: nn.Embedding | None = None) -> None:
        super().__init__()
        if embedding is None:
            layer = nn.Linear(features, vocabulary)
            self.weight, self.bias = layer.weight, nn.Parameter(layer.bias.new_zeros(vocabulary))
            self._tied: tuple[nn.Embedding, ...] = ()
            return
        self.bias = nn.Parameter(embedding.weight.new_zeros(vocabulary))
        # Hidden from torch in a tuple, so that the weights are saved and trained once, as those of the embedding.
        self._tied = (embedding,)

    def forward(self, features: Tensor) -> Tensor:
        weight = self._tied[0].weight if self._tied else self.weight
        return functional.linear(features, weight, self.bias)


class BottleneckHead(Head):
    """A low-rank output layer, F -> `size` -> V without a nonlinearity between (Sainath et al. 2013)."""

    def __init__(self, features: int, vocabulary: int, size: int, embedding: nn.Embedding | None = None) -> None:
        super().__init__()
        self.narrow = nn.Linear(features, size, bias=False)
        self.words = FullHead(size, vocabulary, embedding)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.words(self.narrow(features))
        return logits


class AdaptiveHead(Head):
    """PyTorch's adaptive softmax (Grave et al. 2017), in which rarer words share narrower layers.

    It needs a vocabulary ordered by falling count, as ours is. The logits it returns are log-probabilities.
    """

    def __init__(self, features: int, vocabulary: int) -> None:
        super().__init__()
        # The most frequent fifth of a caption vocabulary makes up nearly all of the text.
        cutoffs = sorted({max(vocabulary // 5, 1), max(vocabulary // 2, 2)})
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(features, vocabulary, cutoffs, div_value=2.0)

    def forward(self, features: Tensor) -> Tensor:
        flat = features.reshape(-1, features.shape[-1])
        return self.softmax.log_prob(flat).view(*features.shape[:-1], self.softmax.n_classes)


def make_head(
    kind: Heads, features: int, vocabulary: int, bottleneck: int = 256, embedding: nn.Embedding | None = None
) -> Head:
    """Build the output head of a kind.

    features: F. vocabulary: V. bottleneck: the size between the layers of that kind. embedding: the word embeddings to
    tie the last layer to, see `DecoderOptions`; None to tie nothing. Raises ValueError for an unknown kind.
    """
    if kind == "full":
        return FullHead(features, vocabulary, embedding)
    if kind == "bottleneck":
        return BottleneckHead(features, vocabulary, bottleneck, embedding)
    if kind != "adaptive":
        raise ValueError(f"unknown head {kind!r}; known: full, bottleneck, adaptive")
    return AdaptiveHead(features, vocabulary)
