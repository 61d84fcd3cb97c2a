"""The output head: the decoder's features (..., F) -> logits of the next word (..., V)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Head(nn.Module):
    """A linear layer; with `embedding`, its weights are tied to the word embeddings (Press and Wolf 2017)."""

    def __init__(self, features: int, vocabulary: int, embedding: nn.Embedding | None = None) -> None:
        """Create the layer. features: F. vocabulary: V. embedding: the word embeddings (V, F); None to tie nothing."""
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
        """Return the logits (..., V) of features (..., F)."""
        weight = self._tied[0].weight if self._tied else self.weight
        return functional.linear(features, weight, self.bias)
