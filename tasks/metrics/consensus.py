"""CIDEr and CIDEr-D (Vedantam et al. 2015) of many captions at once: all their n-grams are compared with each other.

Captions are rows of word ids, as in models/ngrams.py. Both the metric `cider` and the rewards of self-critical
training compute their scores here, each with different document frequencies.
"""

from __future__ import annotations

import numpy as np

from models.ngrams import ORDERS, SIGMA, Frequencies, Ids, Values, ngrams


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
