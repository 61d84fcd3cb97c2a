"""CIDEr and CIDEr-D (Vedantam et al. 2015) of many captions at once: all their n-grams are compared with each other.

Captions are rows of word ids, none below 0, padded with -1. Both the metric `cider` and the rewards of self-critical
training compute their scores here, each with different document frequencies.
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
        index = np.searchsorted(self.keys, keys).clip(max=max(len(self.keys) - 1, 0))
        known = self.keys[index] == keys if len(self.keys) else np.zeros(keys.shape, bool)
        counts = np.where(known, self.counts[index] if len(self.keys) else 1.0, 1.0)
        return np.asarray(np.log(self.pictures) - np.log(counts), dtype=np.float64)


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


def cider_d(candidates: Ids, references: Ids, frequencies: Frequencies) -> Values:
    """Return CIDEr-D, at most 10, of candidates (N, R, T) against references (N, R', T') of the same pictures: (N, R).

    It is equations 3 and 4 with the clipping and the Gaussian penalty of section 6, as the COCO caption toolkit
    computes what it calls CIDEr. References without a word are left out.
    """
    return _consensus(candidates, references, frequencies, clipped=True)


def cider(candidates: Ids, references: Ids, frequencies: Frequencies) -> Values:
    """Return CIDEr in its first form: equations 3 and 4 without clipping, length penalty and stemming.

    Shapes are those of `cider_d`.
    """
    return _consensus(candidates, references, frequencies, clipped=False)


def _consensus(candidates: Ids, references: Ids, frequencies: Frequencies, clipped: bool) -> Values:
    """Return the mean similarity to the references over the orders, times 10; clipped: CIDEr-D's."""
    total = np.zeros((*candidates.shape[:2], references.shape[1]))
    for order in ORDERS:
        total += _similarity(
            _Vectors(candidates, order, frequencies), _Vectors(references, order, frequencies), clipped
        )
    lengths, reference_lengths = (candidates >= 0).sum(axis=-1), (references >= 0).sum(axis=-1)
    if clipped:
        total *= np.exp(-((lengths[:, :, None] - reference_lengths[:, None, :]) ** 2) / (2 * SIGMA**2))
    present = reference_lengths > 0
    total = np.where(present[:, None, :], total, 0.0).sum(axis=-1)
    return np.asarray(10.0 * total / len(ORDERS) / np.maximum(present.sum(axis=-1), 1)[:, None], dtype=np.float64)


class _Vectors:
    """The tf-idf vectors of captions (N, R, T) for n-grams of one order, with an entry at each of the K positions.

    keys (N, R, K): the n-gram at each position. valid: whether the n-gram there lies within its caption. weights: its
    inverse document frequency. first: whether this is its first position in the caption. counts: how often the caption
    has it. All are (N, R, K). norms (N, R): the vectors' lengths.
    """

    def __init__(self, rows: Ids, order: int, frequencies: Frequencies) -> None:
        self.keys, self.valid = ngrams(rows, order)
        self.weights = frequencies.weights(self.keys)
        same = (self.keys[..., :, None] == self.keys[..., None, :]) & self.valid[..., None, :]
        self.counts = same.sum(axis=-1)
        self.first = self.valid & ~np.tril(same, -1).any(axis=-1)
        self.norms = np.sqrt((np.where(self.first, self.counts * self.weights, 0.0) ** 2).sum(axis=-1))


def _similarity(candidates: _Vectors, references: _Vectors, clipped: bool) -> Values:
    """Return the cosine similarities of each candidate with each reference for one order, (N, R, R')."""
    same = candidates.keys[:, :, None, :, None] == references.keys[:, None, :, None, :]  # (N, R, R', K, K')
    # How often the reference has the candidate's n-gram: (N, R, R', K).
    reference_tf = (same & references.valid[:, None, :, None, :]).sum(axis=-1)
    tf = candidates.counts[:, :, None, :]
    if clipped:
        tf = np.minimum(tf, reference_tf)
    products = np.where(
        candidates.first[:, :, None, :], tf * reference_tf * candidates.weights[:, :, None, :] ** 2, 0.0
    )
    norms = candidates.norms[:, :, None] * references.norms[:, None, :]
    return np.asarray(products.sum(axis=-1) / np.where(norms == 0, 1.0, norms), dtype=np.float64)
