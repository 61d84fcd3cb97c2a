"""A Transformer over the grid (Vaswani et al. 2017) with layer norms before the sublayers (Xiong et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ..options import TransformerOptions
from .base import OF_LAST_STEP, SAME_FOR_PICTURE, Decoder, State, select_tokens
from .teacher_forcing import Layout, words_read


@dataclass(frozen=True)
class KVCache(State):
    """A KV cache: the keys and values that the L layers computed from the grid and from the words read so far.

    grid_keys, grid_values (N, L, heads, P, H / heads). word_keys, word_values (N, R, L, t, H), of t words. queries
    (N, R, H): of the last layer's attention over the grid, for the word just read; (N, R, T, H) under teacher forcing.
    """

    grid_keys: Tensor = field(metadata=SAME_FOR_PICTURE)
    grid_values: Tensor = field(metadata=SAME_FOR_PICTURE)
    word_keys: Tensor
    word_values: Tensor
    queries: Tensor = field(metadata=OF_LAST_STEP)

    @property
    def alphas(self) -> Tensor:
        """Return the weights of the last layer's attention over the grid, averaged over its heads, (N, R, ..., P).

        They are computed on access, because decoding needs none.
        """
        keys = self.grid_keys[:, -1]
        queries = split_heads(self.queries.flatten(1, -2), keys.shape[1])
        scores = (queries @ keys.transpose(-2, -1)).float() / math.sqrt(keys.shape[-1])
        weights: Tensor = torch.softmax(scores, dim=-1).mean(dim=1)
        return weights.view(*self.queries.shape[:-1], -1)


class Transformer(Decoder):
    """A decoder of layers with self-attention over the words read, attention over the grid, and a feed-forward network.

    Annotation vectors are projected to the hidden size, and a two-dimensional sinusoid of their position is added
    (Carion et al. 2020, section A.4); `encoder_layers` may process them before the decoder's layers. A word's position
    is encoded by a sinusoid too (Vaswani et al. 2017, section 3.5), so that neither grids nor captions have a maximum
    size. The alphas are the weights of the last layer's attention over the grid, averaged over its heads.
    """

    def __init__(self, channels: int, vocabulary: int, options: TransformerOptions) -> None:
        """Create the layers; channels: C of the grid. vocabulary: V."""
        super().__init__(channels, vocabulary, options)
        hidden, embedding, heads = options.hidden, options.embedding, options.heads
        feed_forward, dropout_layers = options.feed_forward, options.dropout_layers
        self.hidden = hidden
        self.words, self.words_norm = nn.Linear(embedding, hidden), nn.LayerNorm(hidden)
        self.project, self.project_norm = nn.Linear(options.pca_dim or channels, hidden), nn.LayerNorm(hidden)
        self.encoder: Any = nn.ModuleList(
            EncoderLayer(hidden, heads, feed_forward, dropout_layers) for _ in range(options.encoder_layers)
        )
        self.layers: Any = nn.ModuleList(
            DecoderLayer(hidden, heads, feed_forward, dropout_layers) for _ in range(options.layers)
        )
        self.grid_norm, self.norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop_layers, self.drop_output = nn.Dropout(dropout_layers), nn.Dropout(options.dropout_output)

    def start(self, grid: Tensor) -> KVCache:
        positions = grid_position_encoding(grid.shape[1], grid.shape[2], self.hidden, grid.device)
        annotations = self.project_norm(torch.relu(self.project(self.annotations_of(grid))))
        return self.start_from(self.drop_layers(annotations + positions))

    def start_from(self, annotations: Tensor) -> KVCache:
        """Return the state before the first word, given the annotation vectors (N, P, H) that the encoder reads."""
        for layer in self.encoder:
            annotations = layer(annotations)
        annotations = self.grid_norm(annotations)
        keys, values = [], []
        for layer in self.layers:
            # Heads are split once, not at every word.
            layer_keys, layer_values = layer.cross_attention.keys_and_values(annotations)
            keys.append(layer_keys)
            values.append(layer_values)
        no_words = annotations.new_zeros(annotations.shape[0], 1, len(self.layers), 0, self.hidden)
        queries = annotations.new_zeros(annotations.shape[0], 1, self.hidden)
        return KVCache(torch.stack(keys, dim=1), torch.stack(values, dim=1), no_words, no_words, queries)

    def step(self, state: KVCache, tokens: Tensor) -> tuple[Tensor, KVCache]:
        features, after = self._run_layers(state, tokens.unsqueeze(2), Layout((*tokens.shape, 1)))
        logits: Tensor = self.head(features.unflatten(0, tokens.shape))
        return logits, replace(after, queries=after.queries.squeeze(2))

    def forward(self, grid: Tensor, words: Tensor, token_indices: Tensor) -> tuple[Tensor, KVCache]:
        state = self.start(self.drop_grid(grid)).expand(words.shape[1])
        # On a GPU the host does not know how many words are read.
        read = words_read(token_indices, words.shape) if words.device.type == "cpu" else None
        layout = Layout(words.shape, read)
        features, after = self._run_layers(state, words, layout)
        return self.head(select_tokens(layout.spread(features), token_indices)), after

    def compile_step(self, pictures: int, rows: int) -> None:
        """Compile the layers from now on, for any number of pictures, rows and words."""
        for layer in (*self.encoder, *self.layers):
            layer.compile(dynamic=True, mode=self.compile_mode)

    def _run_layers(self, state: KVCache, tokens: Tensor, layout: Layout) -> tuple[Tensor, KVCache]:
        """Read T words, tokens (N, R, T), after the words of `state`. T may be over 1 only if `state` has none yet.

        layout: the words that are computed, (M,). Returns the features (M, H) that the head reads, and the state after
        the words.
        """
        past = state.word_keys.shape[3]
        positions = torch.arange(past, past + tokens.shape[2], device=tokens.device)
        encoded = sinusoid(positions, self.hidden).expand(*tokens.shape, -1)
        embedded = self.words_norm(self.words(self.drop_words(self.embed(layout.pack(tokens)))))
        features = self.drop_layers(embedded + layout.pack(encoded))
        queries, keys, values = state.queries, [], []
        for index, layer in enumerate(self.layers):
            features, queries, layer_keys, layer_values = layer(
                features,
                state.word_keys[:, :, index],
                state.word_values[:, :, index],
                state.grid_keys[:, index],
                state.grid_values[:, index],
                layout,
            )
            keys.append(layer_keys)
            values.append(layer_values)
        after = replace(
            state, word_keys=torch.stack(keys, dim=2), word_values=torch.stack(values, dim=2), queries=queries
        )
        return self.drop_output(self.norm(features)), after


class MultiHead(nn.Module):
    """The layers of multi-head scaled dot-product attention: Vaswani et al. 2017, section 3.2.2."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def keys_and_values(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of features (B, K, H), (B, heads, K, H / heads) each."""
        keys, values = self.key_value(features).chunk(2, dim=-1)
        return split_heads(keys, self.heads), split_heads(values, self.heads)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, causal: bool = False) -> Tensor:
        """Return the heads' contexts (B, Q, H), which `out` reads.

        queries (B, Q, H): what `query` computes. keys, values (B, heads, K, H / heads). causal: whether a query attends
        to no later key than its own.
        """
        split_queries = split_heads(queries, self.heads)
        attention = plain_attention if is_slow_when_fused(split_queries) else scaled_dot_product_attention
        contexts: Tensor = attention(split_queries, keys, values, is_causal=causal)
        return contexts.transpose(1, 2).flatten(2)


def is_slow_when_fused(tensor: Tensor) -> bool:
    """Return whether the backward pass of torch's fused attention is slow: in bfloat16 on a CPU.

    It takes 7 to 21 times as long there as that of `plain_attention` (torch 2.15; docs/measured.md).
    """
    return tensor.device.type == "cpu" and tensor.dtype == torch.bfloat16 and tensor.requires_grad


def plain_attention(queries: Tensor, keys: Tensor, values: Tensor, is_causal: bool = False) -> Tensor:
    """Return the contexts of `scaled_dot_product_attention`, computed with two matrix products.

    queries (B, heads, Q, D), keys and values (B, heads, K, D). is_causal: whether query i attends to the keys 0 to i.
    """
    scores = (queries @ keys.transpose(-2, -1)).float() / math.sqrt(queries.shape[-1])
    if is_causal:
        scores = scores + scores.new_full(scores.shape[-2:], -torch.inf).triu(diagonal=1)
    contexts: Tensor = torch.softmax(scores, dim=-1).to(values.dtype) @ values
    return contexts


def split_heads(tensor: Tensor, heads: int) -> Tensor:
    """Return a tensor (B, K, H) as (B, heads, K, H / heads)."""
    split: Tensor = tensor.unflatten(-1, (heads, -1)).transpose(1, 2)
    return split


class FeedForward(nn.Sequential):
    """A position-wise feed-forward network: Vaswani et al. 2017, section 3.3."""

    def __init__(self, hidden: int, inner: int, dropout: float) -> None:
        super().__init__(nn.Linear(hidden, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, hidden))


class EncoderLayer(nn.Module):
    """A layer of self-attention over the grid's positions, and a feed-forward network: (N, P, H) -> (N, P, H)."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.feed = MultiHead(hidden, heads), FeedForward(hidden, inner, dropout)
        self.attention_norm, self.feed_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, annotations: Tensor) -> Tensor:
        """Return the annotation vectors (N, P, H) after this layer."""
        normed = self.attention_norm(annotations)
        contexts = self.attention(self.attention.query(normed), *self.attention.keys_and_values(normed))
        annotations = annotations + self.drop(self.attention.out(contexts))
        output: Tensor = annotations + self.drop(self.feed(self.feed_norm(annotations)))
        return output


class DecoderLayer(nn.Module):
    """A layer of self-attention over the words read, attention over the grid, and a feed-forward network."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.cross_attention = MultiHead(hidden, heads), MultiHead(hidden, heads)
        self.feed = FeedForward(hidden, inner, dropout)
        self.attention_norm, self.cross_attention_norm, self.feed_norm = (nn.LayerNorm(hidden) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        features: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        grid_keys: Tensor,
        grid_values: Tensor,
        layout: Layout,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return features (M, H) after this layer, its queries to the grid (N, R, T, H), and all keys and values.

        features (M, H): of the new words in `layout`. past_keys, past_values (N, R, t, H): of the words before; the
        returned ones are (N, R, t + T, H). grid_keys, grid_values (N, heads, P, H / heads).
        """
        attention, (rows, words) = self.attention, layout.shape[1:]
        normed = self.attention_norm(features)
        new_keys, new_values = (layout.spread(own) for own in attention.key_value(normed).chunk(2, dim=-1))
        keys, values = torch.cat([past_keys, new_keys], dim=2), torch.cat([past_values, new_values], dim=2)
        split = (split_heads(own.flatten(0, 1), attention.heads) for own in (keys, values))
        # A single word attends to all words so far; several words are the first ones, and need a causal mask.
        contexts = attention(layout.spread(attention.query(normed)).flatten(0, 1), *split, causal=words > 1)
        features = features + self.drop(attention.out(layout.pack(contexts.unflatten(0, (-1, rows)))))
        queries = layout.spread(self.cross_attention.query(self.cross_attention_norm(features)))
        contexts = self.cross_attention(queries.flatten(1, 2), grid_keys, grid_values)
        contexts = layout.pack(contexts.unflatten(1, (rows, words)))
        features = features + self.drop(self.cross_attention.out(contexts))
        features = features + self.drop(self.feed(self.feed_norm(features)))
        return features, queries, keys, values


def sinusoid(positions: Tensor, size: int) -> Tensor:
    """Return the sinusoidal encoding (K, size), float32, of positions (K,).

    It consists of sines, then cosines, of wavelengths from 2 pi to 10,000 times that.
    """
    frequencies = torch.exp(torch.arange(size // 2, device=positions.device) * (-math.log(10_000.0) * 2 / size))
    angles = positions.unsqueeze(1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def grid_position_encoding(height: int, width: int, size: int, device: torch.device) -> Tensor:
    """Return the encoding (height * width, size) of a grid's positions: one half encodes the row, one the column."""
    # Positions are shares of the grid's sides, times 32, so that the same part of a photograph has the same encoding
    # in grids of any size.
    rows = sinusoid((torch.arange(height, device=device) + 0.5) * 32 / height, size // 2)
    columns = sinusoid((torch.arange(width, device=device) + 0.5) * 32 / width, size // 2)
    return torch.cat([rows.repeat_interleave(width, dim=0), columns.repeat(height, 1)], dim=1)
