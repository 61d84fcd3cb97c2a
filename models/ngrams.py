"""The n-grams of captions as integers, their document frequencies, and CIDEr-D between captions.

Captions are rows of word ids, none below 0, padded with -1. This file needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float64]

ORDERS = range(1, 5)
SIGMA = 6.0  # standard deviation of the length penalty, in words
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD1B54A32D192ED03)  # another odd factor, so that keys differ
_EPSILON = 1e-12  # replaces the zero norm of a caption whose n-grams all occur in every picture


@dataclass(frozen=True)
class Frequencies:
    """The document frequencies of n-grams: the number of pictures whose references contain each.

    keys (K,), uint64, sorted: the n-grams of more than one picture; any other n-gram has a frequency of one.
    counts (K,), float64: the number of pictures of each. pictures: the number of all pictures.
    """

    keys: Keys
    counts: Values
    pictures: int

    @staticmethod
    def from_references(references: Sequence[Ids]) -> Frequencies:
        """Return the document frequencies in the references of pictures, an array (R, T) per picture."""
        per_picture = []
        for rows in references:
            per_order = [ngrams(rows, order) for order in ORDERS]
            per_picture.append(np.unique(np.concatenate([keys[valid] for keys, valid in per_order])))
        keys, counts = np.unique(np.concatenate(per_picture), return_counts=True)
        return Frequencies(keys[counts > 1], counts[counts > 1].astype(np.float64), len(references))

    @staticmethod
    def from_counts(grams: Sequence[Sequence[int]], counts: npt.NDArray[Any], pictures: int) -> Frequencies:
        """Return document frequencies from given counts.

        grams: different n-grams of word ids. counts: the number of pictures that contain each. pictures: the number of
        all pictures.
        """
        keys = np.zeros(len(grams), dtype=np.uint64)
        lengths = np.array([len(gram) for gram in grams], dtype=np.int64)
        for order in ORDERS:
            indices = np.flatnonzero(lengths == order)
            rows = np.array([grams[index] for index in indices.tolist()], dtype=np.int64).reshape(-1, order)
            keys[indices] = ngrams(rows, order)[0][:, 0]
        by_key = np.argsort(keys)
        return Frequencies(keys[by_key], counts[by_key].astype(np.float64), pictures)

    def weights(self, keys: Keys) -> Values:
        """Return inverse document frequencies of n-grams: log(pictures) - log(df), where df is at least 1."""
        order = np.argsort(keys, axis=None)  # searching for sorted keys is twice as fast
        index = np.empty(keys.size, dtype=np.int64)
        index[order] = np.searchsorted(self.keys, keys.ravel()[order])
        index = index.reshape(keys.shape).clip(max=max(len(self.keys) - 1, 0))
        is_known = self.keys[index] == keys if len(self.keys) else np.zeros(keys.shape, bool)
        counts = np.where(is_known, self.counts[index] if len(self.keys) else 1.0, 1.0)
        return np.asarray(np.log(self.pictures) - np.log(counts), dtype=np.float64)


def padded(rows: Sequence[Sequence[int]]) -> Ids:
    """Return R rows of word ids as an array, (R, T), padded with -1."""
    array = np.full((len(rows), max(max(map(len, rows), default=0), 1)), -1, dtype=np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return array


def ngrams(rows: Ids, order: int) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """Return a key for each n-gram of rows (..., T), and whether it lies within its text: both (..., T - order + 1).

    A key is a polynomial in an odd factor modulo 2^64: two n-grams share a key about as often as two random 64-bit
    numbers are equal.
    """
    positions = max(rows.shape[-1] - order + 1, 0)
    keys = np.full((*rows.shape[:-1], positions), order, dtype=np.uint64)
    for offset in range(order):
        keys = keys * _FACTOR + (rows[..., offset : offset + positions] + 1).astype(np.uint64)
        keys ^= keys >> np.uint64(29)
    return keys, rows[..., order - 1 :][..., :positions] >= 0


class NGrams(NamedTuple):
    """The n-grams of R captions: one entry for each of the E places where an n-gram of 1 to 4 words begins.

    keys (E,): the n-gram's key. rows (E,): its caption. orders (E,): the number of its words, less one. counts (E,):
    how often the caption contains it. numbers (E,): 0 at its first occurrence in the caption, 1 at the second, and so
    on. lengths (R,): the captions' lengths in words.
    """

    keys: Keys
    rows: Ids
    orders: Ids
    counts: Ids
    numbers: Ids
    lengths: Ids

    @classmethod
    def of(cls, captions: Ids, among: Keys | None = None) -> Self:
        """Return the n-grams of captions (R, T), padded with -1; if given, only those in the sorted keys `among`."""
        parts = []
        for order in ORDERS:
            keys, valid = ngrams(captions, order)
            if among is not None:
                valid = valid & _is_in(keys, among)
            rows = np.nonzero(valid)[0]
            parts.append((keys[valid], rows, np.full(len(rows), order - 1)))
        keys, rows, orders = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(keys, rows, orders, *_count(keys + rows.astype(np.uint64) * _ODD), (captions >= 0).sum(axis=1))

    @property
    def occurrences(self) -> Keys:
        """Return a key for each n-gram together with its number, (E,)."""
        return self.keys + self.numbers.astype(np.uint64) * _ODD

    def norms(self, weights: Values) -> Values:
        """Return the norms of the captions' tf-idf vectors for n-grams of 1 to 4 words, (R, 4).

        weights (E,): the squared inverse document frequencies.
        """
        cells = self.rows * len(ORDERS) + self.orders
        squared = np.bincount(cells, self.counts * weights, len(self.lengths) * len(ORDERS))
        norms: Values = np.sqrt(squared).reshape(-1, len(ORDERS))
        return norms


def _is_in(keys: Keys, among: Keys) -> npt.NDArray[np.bool_]:
    """Return which keys are in the sorted keys `among`."""
    if not len(among):
        return np.zeros(keys.shape, np.bool_)
    is_member: npt.NDArray[np.bool_] = among[np.searchsorted(among, keys).clip(max=len(among) - 1)] == keys
    return is_member


def _count(keys: Keys) -> tuple[Ids, Ids]:
    """Return how often each of the keys (E,) occurs, and how often before its place: both (E,)."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(keys)])
    sizes = np.diff(np.append(starts, len(keys)))
    counts, numbers = np.empty((2, len(keys)), np.int64)
    counts[order] = np.repeat(sizes, sizes)
    numbers[order] = np.arange(len(keys)) - np.repeat(starts, sizes)
    return counts, numbers


def similarities_to(captions: Ids, references: Ids, norms: Values, weights: Values, frequencies: Frequencies) -> Values:
    """Return the weighted sum of each of K captions' CIDEr-D, from 0 to 1, against R references: (K,).

    captions (K, T), references (R, T'): padded with -1. norms (R, 4): of the references' tf-idf vectors. weights (R,).
    """
    candidates = NGrams.of(captions)
    shared = NGrams.of(references, among=np.unique(candidates.keys))
    return weighted_similarities(candidates, shared, norms, weights, frequencies)


def weighted_similarities(
    candidates: NGrams, references: NGrams, norms: Values, weights: Values, frequencies: Frequencies
) -> Values:
    """Return the weighted sum of each of K candidates' CIDEr-D, from 0 to 1, against R references: (K,).

    norms (R, 4): of the references' tf-idf vectors. weights (R,). CIDEr-D is a sum over the n-gram occurrences that two
    captions share, so references of equal length, which have the same length penalty, are summed before they are
    compared.
    """
    keys, inverse = np.unique(candidates.occurrences, return_inverse=True)
    if not len(keys):
        return np.zeros(len(candidates.lengths))
    occurrences = references.occurrences
    indices = np.searchsorted(keys, occurrences).clip(max=len(keys) - 1)
    shared = keys[indices] == occurrences
    lengths, groups = np.unique(references.lengths, return_inverse=True)
    rows, orders = references.rows[shared], references.orders[shared]
    cells = indices[shared] * len(lengths) + groups[rows]
    shares = references.counts[shared] * weights[rows] / np.maximum(norms[rows, orders], _EPSILON)
    table = np.bincount(cells, shares, len(keys) * len(lengths)).reshape(len(keys), -1)
    penalty = np.exp(-((candidates.lengths[:, None] - lengths) ** 2) / (2 * SIGMA**2))
    squared = frequencies.weights(candidates.keys) ** 2
    candidate_norms = np.maximum(candidates.norms(squared), _EPSILON)[candidates.rows, candidates.orders]
    summed = (table[inverse] * penalty[candidates.rows]).sum(axis=1) * squared / candidate_norms
    values: Values = np.bincount(candidates.rows, summed, len(candidates.lengths)) / len(ORDERS)
    return values
