"""Which words may come next in a search, and their log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from .options import Decoding
from .vocabulary import END, FORBIDDEN, NULL


def log_probabilities_of(logits: Tensor) -> Tensor:
    """Return the log-softmax of logits in float32, with the tokens that no caption may contain at -inf."""
    scores = torch.log_softmax(logits.float(), dim=-1)
    for token in FORBIDDEN:  # one by one: a list of indices would be copied to a GPU, which waits for it
        scores[..., token] = -torch.inf
    return scores


def rule_out(scores: Tensor, words: Tensor, decoding: Decoding) -> Tensor:
    """Return scores (N, k, V) of the words after words (N, k, t), with those that `decoding` forbids at -inf.

    Where no word would be left, END remains allowed.
    """
    length = words.shape[-1]
    size, echoes = decoding.no_repeat, decoding.no_echo and length > 0
    if length >= decoding.min_length and not 0 < size <= length and not echoes:
        return scores
    allowed = scores.clone()
    if echoes:
        allowed.scatter_(-1, words[..., -1:], -torch.inf)
    if length < decoding.min_length:
        allowed[..., END] = -torch.inf
    if 0 < size <= length:
        ngrams = words.unfold(-1, size, 1)  # (N, k, t - size + 1, size)
        prefix = words[..., length - size + 1 :].unsqueeze(-2)  # the words that the next one would make an n-gram
        repeated = (ngrams[..., :-1] == prefix).all(dim=-1)
        forbidden = torch.where(repeated, ngrams[..., -1], NULL)  # NULL is forbidden anyway
        allowed.scatter_(-1, forbidden, -torch.inf)
    none_left = allowed.max(dim=-1).values == -torch.inf
    allowed[..., END] = torch.where(none_left, scores[..., END], allowed[..., END])
    return allowed


def truncate(scores: Tensor, decoding: Decoding) -> Tensor:
    """Return scores (N, k, V) divided by the temperature, with the words that top_k and top_p cut off at -inf."""
    scores = scores / decoding.temperature
    if decoding.top_k:
        lowest = scores.topk(min(decoding.top_k, scores.shape[-1]), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    if decoding.top_p < 1:
        ranked, order = scores.sort(dim=-1, descending=True)
        probability_above = ranked.softmax(dim=-1).cumsum(dim=-1) - ranked.softmax(dim=-1)
        cut_off = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, probability_above >= decoding.top_p)
        scores = scores.masked_fill(cut_off, -torch.inf)
    return scores
