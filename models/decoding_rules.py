"""The rules of decoding: which words may come next, and which of them sampling draws from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .options import Decoding
from .vocabulary import END, NULL

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.int64]


def rule_out(values: Floats, words: Words, before: Words, decoding: Decoding) -> Floats:
    """Return log-probabilities (N, R, K) of words (N, R, K), set to -inf where `decoding` forbids the word.

    before (N, R, t): the words so far. If no word would be left, END stays allowed.
    """
    length, size = before.shape[2], decoding.no_repeat
    forbids_echo = decoding.no_echo and length > 0
    if length >= decoding.min_length and not 0 < size <= length and not forbids_echo:
        return values
    ruled_out = words == END if length < decoding.min_length else np.zeros(words.shape, np.bool_)
    if forbids_echo:
        ruled_out |= words == before[:, :, -1:]
    if 0 < size <= length:
        # Compare the first words of each n-gram so far with the last words, which the next word would complete.
        repeated = np.ones((*before.shape[:2], length - size + 1), np.bool_)
        for offset in range(size - 1):
            first = before[:, :, offset : offset + length - size + 1]
            repeated &= first == before[:, :, length - size + 1 + offset, None]
        if repeated.any():
            forbidden = np.where(repeated, before[:, :, size - 1 :], NULL)
            ruled_out |= (words[..., None] == forbidden[..., None, :]).any(axis=-1)
    none_left = (ruled_out | np.isneginf(values)).all(axis=-1, keepdims=True)
    return np.where(ruled_out & ~(none_left & (words == END)), -np.inf, values).astype(np.float32)


def truncate(scores: Floats, decoding: Decoding) -> Floats:
    """Return scores (N, R, V) divided by the temperature, and -inf for words cut off by top_k or top_p."""
    if decoding.temperature != 1:
        scores = scores / np.float32(decoding.temperature)
    if decoding.top_k:
        top_k = min(decoding.top_k, scores.shape[-1])
        lowest = np.partition(scores, -top_k, axis=-1)[..., -top_k, None]
        scores = np.where(scores < lowest, np.float32(-np.inf), scores)
    if decoding.top_p < 1:
        order = np.argsort(-scores, axis=-1, kind="stable")
        probabilities = softmax(np.take_along_axis(scores, order, axis=-1))
        above = probabilities.cumsum(axis=-1, dtype=np.float64).astype(np.float32) - probabilities
        cut_off = np.zeros(scores.shape, np.bool_)
        np.put_along_axis(cut_off, order, above >= np.float32(decoding.top_p), axis=-1)
        scores = np.where(cut_off, np.float32(-np.inf), scores)
    return scores.astype(np.float32)


def softmax(scores: Floats) -> Floats:
    """Return the softmax of scores (..., V)."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Floats = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def uniform_draws(decoding: Decoding, key: int) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1), (n_best, max_length), that depend on the seed and the key alone."""
    # The legacy generator's numbers are the same in every version of NumPy.
    state = np.random.RandomState((decoding.seed * 1_000_003 + key) % 2**32)
    return state.random_sample((decoding.n_best, decoding.max_length))  # float32 would round some of them up to 1
