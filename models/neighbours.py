"""Captions that are ranked by how much they share with the captions of similar training pictures.

A captioner's memory has a vector of each training picture, and its captions. The captions of the nearest pictures are
a second opinion on what a picture shows: captions that a search found are ranked by their log-probability and by their
CIDEr-D (Vedantam et al. 2015) to these (Devlin et al. 2015, "Exploring Nearest Neighbor Approaches for Image
Captioning" and "Language Models for Image Captioning: The Quirks and What Works").

This file needs no torch: captioners of every runtime share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .ngrams import ORDERS, SIGMA, Frequencies, Ids, Keys, Values, ngrams, padded
from .options import Neighbours
from .search import Caption, State, Steps, read
from .vocabulary import END, UNK
from .word_rules import Floats

_FILE = "memory.npz"
_COMPARED = 64  # pictures that are compared with the memory at once
_NEAREST = 5  # pictures that a distance is taken to
_OCCURRENCE = np.uint64(0xD1B54A32D192ED03)  # an odd factor, so that the keys of occurrences differ


@dataclass(frozen=True)
class KeptCaptions:
    """The captions of M pictures, as token ids without START, with END unless they were cut.

    tokens (T,) uint16 or int32: of all captions, one after the other. lengths (K,): the number of tokens of each
    caption. counts (M,): the number of captions of each picture. frequencies: of their n-grams.
    """

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    frequencies: Frequencies

    @cached_property
    def _token_ends(self) -> Ids:
        return np.cumsum(self.lengths, dtype=np.int64)

    @cached_property
    def _caption_ends(self) -> Ids:
        return np.cumsum(self.counts, dtype=np.int64)

    def of(self, pictures: Ids) -> tuple[Ids, Ids]:
        """Return the captions of P pictures, (R, T) padded with -1, and the place in `pictures` of each, (R,)."""
        counts = self.counts[pictures].astype(np.int64)
        owners = np.repeat(np.arange(len(pictures)), counts)
        before = np.repeat(np.cumsum(counts), counts) - np.arange(len(owners))  # the end of the picture's captions
        captions = self._caption_ends[pictures][owners] - before
        lengths = self.lengths[captions].astype(np.int64)
        places = np.arange(lengths.max(initial=1))
        inside = places < lengths[:, None]
        index = np.where(inside, (self._token_ends[captions] - lengths)[:, None] + places, 0)
        return np.where(inside, self.tokens[index].astype(np.int64), -1), owners


@dataclass(frozen=True)
class Memory:
    """What a captioner keeps of M training pictures.

    grid (h, w, C) float32: the mean of their grids. mean (C,), basis (C, D) float32: the projection of grids that were
    averaged over their positions. vectors (M, D) float16: of each picture, of length 1. captions: theirs; None where
    they are not kept.
    """

    grid: Floats
    mean: Floats
    basis: Floats
    vectors: npt.NDArray[np.float16]
    captions: KeptCaptions | None = None

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("grid", "mean", "basis", "vectors")}
        if self.captions is not None:
            frequencies = self.captions.frequencies
            arrays |= {name: getattr(self.captions, name) for name in ("tokens", "lengths", "counts")}
            arrays |= {"ngrams": frequencies.keys, "document_frequencies": frequencies.counts.astype(np.int32)}
            arrays["documents"] = np.int64(frequencies.pictures)
        np.savez(folder / _FILE, **arrays)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the memory that was saved in a folder."""
        with np.load(folder / _FILE, allow_pickle=False) as saved:
            arrays = dict(saved)
        captions = None
        if "tokens" in arrays:
            counts = arrays["document_frequencies"].astype(np.float64)
            frequencies = Frequencies(arrays["ngrams"], counts, int(arrays["documents"]))
            captions = KeptCaptions(arrays["tokens"], arrays["lengths"], arrays["counts"], frequencies)
        return cls(arrays["grid"], arrays["mean"], arrays["basis"], arrays["vectors"], captions)

    @cached_property
    def _vectors(self) -> Floats:
        return self.vectors.astype(np.float32)  # NumPy multiplies matrices of float16 one number at a time

    def embed(self, grids: npt.NDArray[Any]) -> Floats:
        """Return the vectors of grids (N, h, w, C), (N, D), of length 1."""
        return embed(grids.mean(axis=(1, 2), dtype=np.float32), self.mean, self.basis)

    def nearest(self, vectors: Floats, number: int) -> tuple[Ids, Floats]:
        """Return the nearest pictures to vectors (N, D), the nearest first, and their cosines: both (N, P).

        P is `number`, or M where there are fewer.
        """
        number, known = min(number, len(self.vectors)), self._vectors.T
        pictures, cosines = [], []
        for start in range(0, len(vectors), _COMPARED):
            values = vectors[start : start + _COMPARED] @ known
            found = np.argpartition(-values, number - 1, axis=1)[:, :number]
            values = np.take_along_axis(values, found, axis=1)
            order = np.argsort(-values, axis=1, kind="stable")
            pictures.append(np.take_along_axis(found, order, axis=1))
            cosines.append(np.take_along_axis(values, order, axis=1))
        return np.concatenate(pictures), np.concatenate(cosines)

    def distances(self, vectors: Floats) -> Floats:
        """Return the mean distance of vectors (N, D) to the nearest of these, from 0 to 2: (N,)."""
        _, cosines = self.nearest(vectors, _NEAREST)
        distances: Floats = np.sqrt(2 - 2 * cosines.clip(-1, 1)).mean(axis=1)
        return distances


class Copy(NamedTuple):
    """A caption of a similar training picture: its token ids, END included, and its similarity (see `Consulted`)."""

    tokens: list[int]
    similarity: float


@dataclass(frozen=True)
class Ranked:
    """The captions of a picture, best first, and what its neighbours say of them.

    similarity: of the best to their captions, 0 where none are consulted. copied: whether the best is a caption of
    theirs. consulted: None where none are.
    """

    captions: list[Caption]
    similarity: float = 0.0
    copied: bool = False
    consulted: Consulted | None = None


class Consulted(NamedTuple):
    """What the P most similar training pictures say of the K captions that a search found for a picture.

    pictures (P,): their numbers in the memory, the most similar first. cosines (P,): their similarity to the picture.
    similarities (K,): the CIDEr-D of each caption to each picture's captions, from 0 to 1, the mean over these, and
    the mean over the pictures, weighted by exp(cosine / temperature). copy: of the pictures' own captions, the one most
    similar to the others; None where all have unknown words, or were cut.
    """

    pictures: Ids
    cosines: Floats
    similarities: Values
    copy: Copy | None

    def order(self, captions: Sequence[Caption], factor: float) -> list[int]:
        """Return the places of the captions, the best first; of equals, in the order that they had."""
        means = np.array([caption.log_probability / max(len(caption.with_end), 1) for caption in captions])
        order: list[int] = np.argsort(-(means + factor * self.similarities), kind="stable").tolist()
        return order

    def copy_instead(self, best: int, ratio: float | None) -> Copy | None:
        """Return the copy where it is used instead of the best caption: see `options.Neighbours`."""
        if self.copy is None or ratio is None or self.copy.similarity <= ratio * self.similarities[best]:
            return None
        return self.copy


def consult(
    memory: Memory, vectors: Floats, found: Sequence[Sequence[Caption]], number: int, temperature: float
) -> list[Consulted]:
    """Return what the `number` most similar training pictures say of the captions of N pictures.

    vectors (N, D): of the pictures. found: the captions of each. The memory must have captions.
    """
    kept = memory.captions
    assert kept is not None
    consulted = []
    for pictures, cosines, captions in zip(*memory.nearest(vectors, number), found, strict=True):
        references, owners = kept.of(pictures)
        weights = weights_of(cosines, temperature)[owners] / np.bincount(owners)[owners]
        grams = _NGrams.of(references, kept.frequencies)
        candidates = _NGrams.of(padded([caption.with_end for caption in captions]), kept.frequencies)
        similarities = _weighted_similarities(candidates, grams, weights)
        copy = _most_similar(references, _weighted_similarities(grams, grams, weights) - weights * grams.to_itself)
        consulted.append(Consulted(pictures, cosines, similarities, copy))
    return consulted


def support_of(kept: KeptCaptions, caption: Caption, pictures: Ids) -> Values:
    """Return the mean CIDEr-D of a caption to the captions of each of P pictures, from 0 to 1: (P,)."""
    own = _NGrams.of(padded([caption.with_end]), kept.frequencies)
    support = np.zeros(len(pictures))
    for place in range(len(pictures)):
        references, _ = kept.of(pictures[[place]])
        grams = _NGrams.of(references, kept.frequencies)
        (support[place],) = _weighted_similarities(own, grams, np.full(len(references), 1 / len(references)))
    return support


def weights_of(cosines: Floats, temperature: float) -> Values:
    """Return the weights of pictures by their similarity (P,), which sum to 1."""
    weights = np.exp((cosines - cosines.max()).astype(np.float64) / temperature)
    normalised: Values = weights / weights.sum()
    return normalised


def _most_similar(captions: Ids, similarities: Values) -> Copy | None:
    """Return the caption of the greatest similarity, of those (R, T) that have no unknown word and were not cut."""
    usable = (captions == END).any(axis=1) & (captions != UNK).all(axis=1)
    if not usable.any():
        return None
    best = int(np.argmax(np.where(usable, similarities, -1.0)))
    return Copy(captions[best][captions[best] >= 0].tolist(), float(similarities[best]))


def rank(
    memory: Memory,
    vectors: Floats,
    found: Sequence[Sequence[Caption]],
    neighbours: Neighbours,
    read_copies: Callable[[list[int], list[Copy]], list[Caption]],
) -> list[Ranked]:
    """Return the captions of N pictures as their neighbours rank them.

    vectors (N, D): of the pictures. found: the captions of each. read_copies: returns copies for the pictures with
    these numbers as captions, see `as_captions`. The memory must have captions.
    """
    consulted = consult(memory, vectors, found, neighbours.number, neighbours.temperature)
    ranked, copies = [], {}
    for picture, (captions, said) in enumerate(zip(found, consulted, strict=True)):
        order = said.order(captions, neighbours.factor)
        copy = said.copy_instead(order[0], neighbours.copies)
        similarity = float(said.similarities[order[0]]) if copy is None else copy.similarity
        if copy is not None:
            copies[picture] = copy
        ranked.append(Ranked([captions[place] for place in order], similarity, copy is not None, said))
    if copies:
        for picture, caption in zip(copies, read_copies(list(copies), list(copies.values())), strict=True):
            ranked[picture].captions.insert(0, caption)
    return ranked


def as_captions(decoder: Steps, start: State, copies: Sequence[Copy]) -> list[Caption]:
    """Return copies for N pictures as captions, with the log-probabilities that the decoder gives their words.

    start: the state before the first word, of the N pictures.
    """
    of_words, _ = read(decoder, start, [[copy.tokens] for copy in copies])
    captions = []
    for copy, (own, *_) in zip(copies, of_words, strict=True):
        values = own[: len(copy.tokens)]
        captions.append(Caption(copy.tokens[:-1], float(values.sum()), True, values))
    return captions


def pool(grids: npt.NDArray[Any]) -> Floats:
    """Return the means of grids (N, h, w, C) over their positions, scaled to length 1: (N, C) float32."""
    means = grids.mean(axis=(1, 2), dtype=np.float32)
    pooled: Floats = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return pooled


def embed(pooled: Floats, mean: Floats, basis: Floats) -> Floats:
    """Return pooled grids (N, C), less their mean (C,), projected by a basis (C, D) and scaled to length 1: (N, D)."""
    vectors = (pooled - mean) @ basis
    scaled: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled


class _NGrams(NamedTuple):
    """The n-grams of R captions, an entry for each of the E places where one of 1 to 4 words begins.

    keys (E,): of the n-gram and its occurrence: the first of it in a caption, the second, and so on. rows (E,): the
    caption of each. weights (E,): the squared inverse document frequency, and counts (E,): how often the caption has
    the n-gram, both divided by the length of the caption's tf-idf vector. lengths (R,): of the captions, in words.
    to_itself (R,): the CIDEr-D of each to itself, from 0 to 1, which is less than 1 where it has fewer than 4 words.
    """

    keys: Keys
    rows: Ids
    weights: Values
    counts: Values
    lengths: Ids
    to_itself: Values

    @classmethod
    def of(cls, captions: Ids, frequencies: Frequencies) -> Self:
        """Return the n-grams of captions (R, T), padded with -1."""
        parts, to_itself = [], np.zeros(len(captions))
        for order in ORDERS:
            keys, valid = ngrams(captions, order)
            same = (keys[:, :, None] == keys[:, None, :]) & valid[:, None, :]
            counts, weights = same.sum(axis=2), frequencies.weights(keys) ** 2
            occurrence = np.tril(same).sum(axis=2).astype(np.uint64)
            norms = np.sqrt(np.where(valid, counts * weights, 0.0).sum(axis=1, keepdims=True))
            to_itself += (norms[:, 0] > 0) / len(ORDERS)
            norms[norms == 0] = 1.0
            rows = np.broadcast_to(np.arange(len(captions))[:, None], keys.shape)
            columns = (keys + occurrence * _OCCURRENCE, rows, weights / norms, counts / norms)
            parts.append([column[valid] for column in columns])
        keys, rows, weights, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(keys, rows, weights, counts, (captions >= 0).sum(axis=1), to_itself)


def _weighted_similarities(candidates: _NGrams, references: _NGrams, weights: Values) -> Values:
    """Return the sum of the CIDEr-D of K candidates to R references, from 0 to 1, each times its weight (R,): (K,).

    CIDEr-D counts an n-gram as often as both captions have it, so it is a sum over the occurrences that both have, and
    references of one length, on which the length penalty depends, are summed before they are compared.
    """
    keys, places = np.unique(candidates.keys, return_inverse=True)
    if not len(keys):
        return np.zeros(len(candidates.lengths))
    found = np.searchsorted(keys, references.keys).clip(max=len(keys) - 1)
    shared = keys[found] == references.keys
    lengths, groups = np.unique(references.lengths, return_inverse=True)
    rows = references.rows[shared]
    cells = found[shared] * len(lengths) + groups[rows]
    table = np.bincount(cells, references.counts[shared] * weights[rows], len(keys) * len(lengths))
    penalty = np.exp(-((candidates.lengths[:, None] - lengths) ** 2) / (2 * SIGMA**2))
    summed = (table.reshape(len(keys), -1)[places] * penalty[candidates.rows]).sum(axis=1) * candidates.weights
    values: Values = np.bincount(candidates.rows, summed, len(candidates.lengths)) / len(ORDERS)
    return values
