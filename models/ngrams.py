"""The n-grams of captions as integers, and their document frequencies, with which CIDEr weights them.

Captions are rows of word ids, none below 0, padded with -1. This file needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float64]

ORDERS = range(1, 5)
SIGMA = 6.0  # standard deviation of the length penalty, in words
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Frequencies:
    """The document frequencies of n-grams: the number of pictures whose references contain each.

    keys (K,), uint64, sorted: the n-grams of more than one picture; any other n-gram counts as if in one picture.
    counts (K,), float64: the number of pictures of each. pictures: the number of all pictures.
    """

    keys: Keys
    counts: Values
    pictures: int

    @staticmethod
    def from_references(references: Sequence[Ids]) -> Frequencies:
        """Return the document frequencies in the references of pictures; those of a picture have shape (R, T)."""
        per_picture = []
        for rows in references:
            per_order = [ngrams(rows, order) for order in ORDERS]
            per_picture.append(np.unique(np.concatenate([keys[valid] for keys, valid in per_order])))
        keys, counts = np.unique(np.concatenate(per_picture), return_counts=True)
        return Frequencies(keys[counts > 1], counts[counts > 1].astype(np.float64), len(references))

    @staticmethod
    def from_counts(grams: Sequence[Sequence[int]], counts: npt.NDArray[Any], pictures: int) -> Frequencies:
        """Return document frequencies that were counted before.

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
        order = np.argsort(keys, axis=None)  # a table is searched twice as fast for sorted keys
        index = np.empty(keys.size, dtype=np.int64)
        index[order] = np.searchsorted(self.keys, keys.ravel()[order])
        index = index.reshape(keys.shape).clip(max=max(len(self.keys) - 1, 0))
        known = self.keys[index] == keys if len(self.keys) else np.zeros(keys.shape, bool)
        counts = np.where(known, self.counts[index] if len(self.keys) else 1.0, 1.0)
        return np.asarray(np.log(self.pictures) - np.log(counts), dtype=np.float64)


def padded(rows: Sequence[Sequence[int]]) -> Ids:
    """Return R rows of word ids as an array, (R, T), padded with -1."""
    found = np.full((len(rows), max(max(map(len, rows), default=0), 1)), -1, dtype=np.int64)
    for index, row in enumerate(rows):
        found[index, : len(row)] = row
    return found


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
