"""A Transformer over the grid (Vaswani et al. 2017), its layer norms before the sublayers (Xiong et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .base import SAME_FOR_PICTURE, Decoder, State


@dataclass(frozen=True)
class KVCache(State):
    """What the L layers keep of the grid and of the words read so far: keys and values, never computed again.

    grid_keys, grid_values (N, L, P, H). word_keys, word_values (N, R, L, t, H), of t words.
    """

    grid_keys: Tensor = field(metadata=SAME_FOR_PICTURE)
    grid_values: Tensor = field(metadata=SAME_FOR_PICTURE)
    word_keys: Tensor
    word_values: Tensor


class Transformer(Decoder):
    """Layers of self-attention over the words read, attention over the grid, and a feed-forward network.

    Annotation vectors are projected to the hidden size, and a two-dimensional sinusoid of their position is added
    (Carion et al. 2020, section A.4); `encoder_layers` may go over them first. A word's position is a sinusoid too
    (Vaswani et al. 2017, section 3.5), so that neither grids nor captions have a largest size. The alphas are the last
    layer's attention over the grid, the mean of its heads.
    """

    def __init__(
        self,
        channels: int,
        vocabulary: int,
        embedding: int = 512,
        hidden: int = 512,
        layers: int = 3,
        heads: int = 8,
        encoder_layers: int = 0,
        feed_forward: int = 2048,
        dropout_layers: float = 0.1,
        dropout_output: float = 0.1,
        pca_dim: int | None = None,
        **shared: Any,
    ) -> None:
        """channels: C of the grid. hidden: H of all layers, a multiple of 4 and of `heads`; ValueError otherwise.

        feed_forward: inner size of those networks. dropout_layers: share of what a sublayer adds that is dropped.
        """
        if hidden % heads or hidden % 4:
            raise ValueError(f"hidden: {hidden} is no multiple of 4 and of decoder.heads={heads}")
        super().__init__(channels, vocabulary, hidden, embedding, pca_dim=pca_dim, **shared)
        self.hidden = hidden
        self.words, self.words_norm = nn.Linear(embedding, hidden), nn.LayerNorm(hidden)
        self.project, self.project_norm = nn.Linear(pca_dim or channels, hidden), nn.LayerNorm(hidden)
        self.encoder: Any = nn.ModuleList(
            EncoderLayer(hidden, heads, feed_forward, dropout_layers) for _ in range(encoder_layers)
        )
        self.layers: Any = nn.ModuleList(
            DecoderLayer(hidden, heads, feed_forward, dropout_layers) for _ in range(layers)
        )
        self.grid_norm, self.norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop_layers, self.drop_output = nn.Dropout(dropout_layers), nn.Dropout(dropout_output)

    @property
    def attends(self) -> bool:
        return True

    def start(self, grid: Tensor) -> KVCache:
        places = places_of_grid(grid.shape[1], grid.shape[2], self.hidden).to(grid.device)
        seen = self.project_norm(torch.relu(self.project(self.annotations_of(grid))))
        seen = self.drop_layers(seen + places)
        for layer in self.encoder:
            seen = layer(seen)
        seen = self.grid_norm(seen)
        keys, values = zip(*(layer.cross_attention.keys_and_values(seen) for layer in self.layers), strict=True)
        none = keys[0].new_zeros(len(grid), 1, len(self.layers), 0, self.hidden)
        alphas = seen.new_zeros(len(grid), 1, len(places), dtype=torch.float32)
        return KVCache(alphas, torch.stack(keys, dim=1), torch.stack(values, dim=1), none, none)

    def step(self, state: KVCache, tokens: Tensor) -> tuple[Tensor, KVCache]:
        features, alphas, keys, values = self._read(state, tokens.unsqueeze(2))
        logits: Tensor = self.head(features.squeeze(2))
        cache = KVCache(alphas.squeeze(2), state.grid_keys, state.grid_values, keys, values)
        return logits, cache

    def forward(self, grid: Tensor, words: Tensor, valid: Tensor) -> tuple[Tensor, State]:
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        features, alphas, _, _ = self._read(state, words)
        return self.head(features[valid]), State(alphas)

    def compile_step(self, pictures: int, rows: int) -> None:
        """From now on the layers are compiled, for any number of pictures, rows and words."""
        for layer in (*self.encoder, *self.layers):
            layer.compile(dynamic=True)

    def _read(self, state: KVCache, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """T words after the t of `state`: tokens (N, R, T) -> what the head reads (N, R, T, H), and the layers' past.

        With it alphas (N, R, T, P), float32, and keys and values (N, R, L, t + T, H) of all words read.
        """
        before = state.word_keys.shape[3]
        places = sinusoid(torch.arange(before, before + tokens.shape[2], device=tokens.device), self.hidden)
        read = self.drop_layers(self.words_norm(self.words(self.drop_words(self.embed(tokens)))) + places)
        alphas, keys, values = state.alphas.unsqueeze(2), [], []
        for number, layer in enumerate(self.layers):
            past = (state.word_keys[:, :, number], state.word_values[:, :, number])
            read, alphas, key, value = layer(read, *past, state.grid_keys[:, number], state.grid_values[:, number])
            keys.append(key)
            values.append(value)
        return self.drop_output(self.norm(read)), alphas, torch.stack(keys, dim=2), torch.stack(values, dim=2)


class MultiHead(nn.Module):
    """Scaled dot-product attention by several heads: Vaswani et al. 2017, section 3.2.2."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(hidden // heads)
        self.query, self.key_value = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def keys_and_values(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """(..., H) -> (..., H) each."""
        keys, values = self.key_value(read).chunk(2, dim=-1)
        return keys, values

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """queries (B, Q, H), keys and values (B, K, H), hidden (Q, K) bool: what may not be looked at.

        Returns what was drawn (B, Q, H), and the weights (B, Q, K), float32, the mean of the heads.
        """
        query, key, value = (self._split(each) for each in (self.query(queries), keys, values))
        scores = (query @ key.transpose(-2, -1)).float() * self.scale
        weights = torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -torch.inf), dim=-1)
        drawn: Tensor = self.out((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2))
        return drawn, weights.mean(dim=1)

    def _split(self, each: Tensor) -> Tensor:
        """(B, K, H) -> (B, heads, K, H / heads)."""
        return each.view(*each.shape[:2], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Vaswani et al. 2017, section 3.3."""

    def __init__(self, hidden: int, inner: int, dropout: float) -> None:
        super().__init__(nn.Linear(hidden, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, hidden))


class EncoderLayer(nn.Module):
    """Self-attention over the grid's positions, and a feed-forward network: (N, P, H) -> (N, P, H)."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.feed = MultiHead(hidden, heads), FeedForward(hidden, inner, dropout)
        self.attention_norm, self.feed_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, seen: Tensor) -> Tensor:
        normed = self.attention_norm(seen)
        drawn, _ = self.attention(normed, *self.attention.keys_and_values(normed), None)
        seen = seen + self.drop(drawn)
        added: Tensor = seen + self.drop(self.feed(self.feed_norm(seen)))
        return added


class DecoderLayer(nn.Module):
    """Self-attention over the words read, attention over the grid, and a feed-forward network."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.cross_attention = MultiHead(hidden, heads), MultiHead(hidden, heads)
        self.feed = FeedForward(hidden, inner, dropout)
        self.attention_norm, self.cross_attention_norm, self.feed_norm = (nn.LayerNorm(hidden) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def forward(
        self, read: Tensor, past_keys: Tensor, past_values: Tensor, grid_keys: Tensor, grid_values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """read (N, R, T, H), past (N, R, t, H), grid (N, P, H) -> (N, R, T, H), alphas (N, R, T, P), past of t + T."""
        pictures, rows, words = read.shape[:3]
        before = past_keys.shape[2]
        normed = self.attention_norm(read)
        new_keys, new_values = self.attention.keys_and_values(normed)
        keys, values = torch.cat([past_keys, new_keys], dim=2), torch.cat([past_values, new_values], dim=2)
        later = torch.ones(words, before + words, dtype=torch.bool, device=read.device).triu(before + 1)
        drawn, _ = self.attention(normed.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), later)
        read = read + self.drop(drawn.unflatten(0, (pictures, rows)))
        attended, alphas = self.cross_attention(
            self.cross_attention_norm(read).flatten(1, 2), grid_keys, grid_values, None
        )
        read = read + self.drop(attended.unflatten(1, (rows, words)))
        read = read + self.drop(self.feed(self.feed_norm(read)))
        return read, alphas.unflatten(1, (rows, words)), keys, values


def sinusoid(places: Tensor, size: int) -> Tensor:
    """places (K,) -> (K, size), float32: sines, then cosines, of wavelengths from 2 pi to 10,000 times that."""
    rates = torch.exp(torch.arange(size // 2, device=places.device) * (-math.log(10_000.0) * 2 / size))
    angles = places.unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def places_of_grid(height: int, width: int, size: int) -> Tensor:
    """(height * width, size): half of it tells the row, half the column, as shares of the grid's sides."""
    # Shares of 32, so that the same part of a photograph has the same place whatever the grid's size.
    rows = sinusoid((torch.arange(height) + 0.5) * 32 / height, size // 2)
    columns = sinusoid((torch.arange(width) + 0.5) * 32 / width, size // 2)
    return torch.cat([rows.repeat_interleave(width, dim=0), columns.repeat(height, 1)], dim=1)
