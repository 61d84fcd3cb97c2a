"""CIDEr and CIDEr-D (Vedantam et al. 2015) of many captions at once: comparisons of all n-grams with all n-grams.

Captions are rows of word ids, none below 0, padded with -1. The metric `cider` and the rewards of self-critical
training are this, over document frequencies of their own.
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
SIGMA = 6.0  # of the length penalty
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Frequencies:
    """In how many of `pictures` pictures' references an n-gram comes.

    keys (K,), sorted: n-grams that come in more than one; the others count as if in one. counts (K,).
    """

    keys: Keys
    counts: Values
    pictures: int

    @staticmethod
    def of(references: Sequence[Ids]) -> Frequencies:
        """Of the references of each picture, (R, T)."""
        found = []
        for rows in references:
            every = [ngrams(rows, order) for order in ORDERS]
            found.append(np.unique(np.concatenate([keys[there] for keys, there in every])))
        known, counts = np.unique(np.concatenate(found), return_counts=True)
        return Frequencies(known[counts > 1], counts[counts > 1].astype(np.float64), len(references))

    @staticmethod
    def told(grams: Sequence[Sequence[int]], counts: npt.NDArray[Any], pictures: int) -> Frequencies:
        """Of n-grams of word ids, each once, and the number of pictures that each comes in."""
        keys = np.zeros(len(grams), dtype=np.uint64)
        lengths = np.array([len(gram) for gram in grams], dtype=np.int64)
        for order in ORDERS:
            chosen = np.flatnonzero(lengths == order)
            rows = np.array([grams[at] for at in chosen.tolist()], dtype=np.int64).reshape(-1, order)
            keys[chosen] = ngrams(rows, order)[0][:, 0]
        by_key = np.argsort(keys)
        return Frequencies(keys[by_key], counts[by_key].astype(np.float64), pictures)

    def weights(self, keys: Keys) -> Values:
        """Inverse document frequencies: log(pictures) - log(df), df at least 1."""
        place = np.searchsorted(self.keys, keys).clip(max=max(len(self.keys) - 1, 0))
        known = self.keys[place] == keys if len(self.keys) else np.zeros(keys.shape, bool)
        counts = np.where(known, self.counts[place] if len(self.keys) else 1.0, 1.0)
        return np.asarray(np.log(self.pictures) - np.log(counts), dtype=np.float64)


def ngrams(rows: Ids, order: int) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """rows (..., T) -> a number that stands for each n-gram, (..., T - n + 1), and where there is one.

    A polynomial in an odd factor modulo 2^64: two n-grams share a number about as often as two draws of 64 bits do.
    """
    places = max(rows.shape[-1] - order + 1, 0)
    keys = np.full((*rows.shape[:-1], places), order, dtype=np.uint64)
    for at in range(order):
        keys = keys * _FACTOR + (rows[..., at : at + places] + 1).astype(np.uint64)
        keys ^= keys >> np.uint64(29)
    return keys, rows[..., order - 1 :][..., :places] >= 0


def cider_d(candidates: Ids, references: Ids, frequencies: Frequencies) -> Values:
    """CIDEr-D, 10 at the most: candidates (N, R, T), references (N, R', T') of the same pictures -> (N, R).

    Equations 3 and 4 with the clipping and the Gaussian penalty of section 6, as the COCO caption toolkit computes what
    it calls CIDEr. References without a word count for nothing.
    """
    return _consensus(candidates, references, frequencies, clipped=True)


def cider(candidates: Ids, references: Ids, frequencies: Frequencies) -> Values:
    """The first form, equations 3 and 4 without clipping and penalty, and without stemming; else as `cider_d`."""
    return _consensus(candidates, references, frequencies, clipped=False)


def _consensus(candidates: Ids, references: Ids, frequencies: Frequencies, clipped: bool) -> Values:
    total = np.zeros((*candidates.shape[:2], references.shape[1]))
    for order in ORDERS:
        total += _similarity(
            _Vectors(candidates, order, frequencies), _Vectors(references, order, frequencies), clipped
        )
    lengths, true = (candidates >= 0).sum(axis=-1), (references >= 0).sum(axis=-1)
    if clipped:
        total *= np.exp(-((lengths[:, :, None] - true[:, None, :]) ** 2) / (2 * SIGMA**2))
    there = true > 0
    total = np.where(there[:, None, :], total, 0.0).sum(axis=-1)
    return np.asarray(10.0 * total / len(ORDERS) / np.maximum(there.sum(axis=-1), 1)[:, None], dtype=np.float64)


class _Vectors:
    """The tf-idf vectors of captions (N, R, T), as entries at the places of their n-grams.

    keys, there (N, R, K). weights: idf. first: whether an n-gram comes at this place for the first time. counts: how
    often it comes. norms (N, R).
    """

    def __init__(self, rows: Ids, order: int, frequencies: Frequencies) -> None:
        self.keys, self.there = ngrams(rows, order)
        self.weights = frequencies.weights(self.keys)
        same = (self.keys[..., :, None] == self.keys[..., None, :]) & self.there[..., None, :]
        self.counts = same.sum(axis=-1)
        self.first = self.there & ~np.tril(same, -1).any(axis=-1)
        self.norms = np.sqrt((np.where(self.first, self.counts * self.weights, 0.0) ** 2).sum(axis=-1))


def _similarity(ours: _Vectors, true: _Vectors, clipped: bool) -> Values:
    """Cosines of one order: (N, R, R')."""
    same = ours.keys[:, :, None, :, None] == true.keys[:, None, :, None, :]  # (N, R, R', K, K')
    shared = (same & true.there[:, None, :, None, :]).sum(axis=-1)  # how often the reference has our n-gram
    ours_tf = np.minimum(ours.counts[:, :, None, :], shared) if clipped else ours.counts[:, :, None, :]
    products = np.where(ours.first[:, :, None, :], ours_tf * shared * ours.weights[:, :, None, :] ** 2, 0.0)
    norms = ours.norms[:, :, None] * true.norms[:, None, :]
    return np.asarray(products.sum(axis=-1) / np.where(norms == 0, 1.0, norms), dtype=np.float64)
