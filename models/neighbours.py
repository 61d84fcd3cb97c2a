"""Captions that are ranked by how much they share with the captions of similar training pictures.

A captioner's memory has a vector of each training picture, and its captions. The captions of the nearest pictures are
a second opinion on what a picture shows: captions that a search found are ranked by their log-probability and by their
CIDEr-D (Vedantam et al. 2015) to these (Devlin et al. 2015, "Exploring Nearest Neighbor Approaches for Image
Captioning" and "Language Models for Image Captioning: The Quirks and What Works").

This file needs no torch: captioners of every runtime share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .ngrams import ORDERS, SIGMA, Frequencies, Ids, Keys, Values, ngrams, padded
from .options import Decoding, Neighbours
from .search import Caption, State, Steps, read
from .vocabulary import END, UNK
from .word_rules import Floats

ANY_LENGTH = range(2**31)
_FILE = "memory.npz"
_OF_CAPTIONS = ("tokens", "lengths", "counts", "norms")
_COMPARED = 64  # pictures that are compared with the memory at once
_NEAREST = 5  # pictures that a distance is taken to
_BLOCK = 64  # pictures of which the most similar is found first
_ODD = np.uint64(0xD1B54A32D192ED03)  # an odd factor, so that keys differ
_NORMED = 1024  # captions whose norms are computed at once
_LEAST = 1e-12  # in place of the norm of a caption whose every n-gram all pictures have


@dataclass(frozen=True)
class KeptCaptions:
    """The captions of M pictures, as token ids without START, with END unless they were cut.

    tokens (T,) uint16 or int32: of all captions, one after the other. lengths (K,): the number of tokens of each
    caption. counts (M,): the number of captions of each picture. norms (K, 4) float64: of each caption's tf-idf vectors
    of n-grams of 1 to 4 words. frequencies: of their n-grams.
    """

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    norms: Values
    frequencies: Frequencies

    @classmethod
    def make(
        cls, tokens: npt.NDArray[Any], lengths: npt.NDArray[Any], counts: npt.NDArray[Any], frequencies: Frequencies
    ) -> Self:
        """Return captions with the norms of their tf-idf vectors."""
        kept = cls(tokens, lengths, counts, np.zeros((0, len(ORDERS))), frequencies)
        parts = np.split(np.arange(len(lengths)), range(_NORMED, len(lengths), _NORMED))
        norms = []
        for part in parts:
            grams = _NGrams.of(kept._rows(part))
            norms.append(grams.norms(frequencies.weights(grams.keys) ** 2))
        return replace(kept, norms=np.concatenate(norms))

    @cached_property
    def _token_ends(self) -> Ids:
        return np.cumsum(self.lengths, dtype=np.int64)

    @cached_property
    def _caption_ends(self) -> Ids:
        return np.cumsum(self.counts, dtype=np.int64)

    def of(self, pictures: Ids) -> OfPictures:
        """Return the captions of P pictures."""
        counts = self.counts[pictures].astype(np.int64)
        owners = np.repeat(np.arange(len(pictures)), counts)
        before = np.repeat(np.cumsum(counts), counts) - np.arange(len(owners))  # the end of the picture's captions
        captions = self._caption_ends[pictures][owners] - before
        return OfPictures(self._rows(captions), owners, self.norms[captions])

    def _rows(self, captions: Ids) -> Ids:
        """Return the tokens of R captions, (R, T) padded with -1."""
        lengths = self.lengths[captions].astype(np.int64)
        places = np.arange(lengths.max(initial=1))
        inside = places < lengths[:, None]
        index = np.where(inside, (self._token_ends[captions] - lengths)[:, None] + places, 0)
        return np.where(inside, self.tokens[index].astype(np.int64), -1)


class OfPictures(NamedTuple):
    """The R captions of P pictures.

    tokens (R, T): padded with -1. owners (R,): of each, the place of its picture among the P. norms (R, 4): of their
    tf-idf vectors.
    """

    tokens: Ids
    owners: Ids
    norms: Values


@dataclass(frozen=True)
class Memory:
    """The memory that a captioner has of M training pictures.

    grid (h, w, C) float32: the mean of their grids. mean (C,), basis (C, D) float32: the mean and the principal axes of
    their pooled grids (see `pool`). vectors (M, D) float16: of each picture, its pooled grid less the mean, projected
    on the axes. captions: theirs; None where they are not kept.
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
            arrays |= {name: getattr(self.captions, name) for name in _OF_CAPTIONS}
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
            captions = KeptCaptions(**{name: arrays[name] for name in _OF_CAPTIONS}, frequencies=frequencies)
        return cls(arrays["grid"], arrays["mean"], arrays["basis"], arrays["vectors"], captions)

    @cached_property
    def _vectors(self) -> Floats:
        return self.vectors.astype(np.float32)  # NumPy multiplies matrices of float16 one number at a time

    @cached_property
    def _lengths(self) -> Floats:
        """Return the length of each vector, (M,)."""
        return _lengths_of(self._vectors)

    @cached_property
    def _along_mean(self) -> Floats:
        """Return the product of each vector with the mean, (M,)."""
        along: Floats = self._vectors @ (self.mean @ self.basis)
        return along

    def look_up(self, pooled: Floats, number: int) -> LookedUp:
        """Return the `number` most similar pictures to those of pooled grids (N, C), or all where there are fewer."""
        parts = [self._look_up(pooled[start : start + _COMPARED], number) for start in range(0, len(pooled), _COMPARED)]
        return LookedUp(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @cached_property
    def _whole_lengths(self) -> Floats:
        """Return the length of each picture's pooled grid, (M,)."""
        squared = self.mean @ self.mean + 2 * self._along_mean + self._lengths**2
        lengths: Floats = np.sqrt(squared.clip(1e-24))
        return lengths

    def _look_up(self, pooled: Floats, number: int) -> LookedUp:
        vectors = ((pooled - self.mean) @ self.basis).astype(np.float32, copy=False)
        products = vectors @ self._vectors.T
        pictures, cosines = _greatest(products / self._lengths, number)
        cosines /= _lengths_of(vectors)[:, None]
        # Pictures unlike any differ in what all others share, the mean: so distances are those of whole pooled grids.
        products += self._along_mean
        products += (pooled @ self.mean)[:, None]
        products /= self._whole_lengths
        near = _greatest(products, _NEAREST)[1] / _lengths_of(pooled)[:, None]
        return LookedUp(pictures, cosines, np.sqrt(2 - 2 * near.clip(-1, 1)).mean(axis=1))


class LookedUp(NamedTuple):
    """The P most similar training pictures to each of N pictures.

    pictures (N, P): their numbers in the memory, the most similar first. cosines (N, P): their similarity. distances
    (N,): the mean distance of the pictures to the nearest of all training pictures, from 0 to 2.
    """

    pictures: Ids
    cosines: Floats
    distances: Floats

    def select(self, which: Sequence[int]) -> LookedUp:
        """Return what was looked up for the pictures with these numbers."""
        rows = list(which)
        return LookedUp(self.pictures[rows], self.cosines[rows], self.distances[rows])


def _lengths_of(vectors: Floats) -> Floats:
    """Return the lengths of vectors (N, D), (N,)."""
    lengths: Floats = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
    return lengths


def _greatest(values: Floats, number: int) -> tuple[Ids, Floats]:
    """Return the places and the values of the `number` greatest of each row (N, M), or of all: the greatest first.

    They are in the `number` blocks of values with the greatest maxima, so that the other blocks need no partition.
    """
    rows, length = values.shape
    number, whole = min(number, length), length - length % _BLOCK
    places = np.broadcast_to(np.arange(length), values.shape)
    if whole > number * _BLOCK:
        maxima = values[:, :whole].reshape(rows, -1, _BLOCK).max(axis=2)
        blocks = np.argpartition(maxima, -number, axis=1)[:, -number:]
        inside = (blocks[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(rows, -1)
        places = np.concatenate([inside, places[:, whole:]], axis=1)
    candidates = np.take_along_axis(values, places, axis=1)
    chosen = np.argpartition(candidates, -number, axis=1)[:, -number:]
    found = np.take_along_axis(places, chosen, axis=1)
    greatest = np.take_along_axis(values, found, axis=1)
    order = np.lexsort((found, -greatest), axis=1)
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(greatest, order, axis=1)


class Copy(NamedTuple):
    """A caption of a similar training picture: its token ids, END included, and its similarity (see `Consulted`)."""

    tokens: list[int]
    similarity: float


@dataclass(frozen=True)
class Ranked:
    """The captions of a picture, best first, and what its neighbours say of them.

    similarity: of the best to their captions, 0 where none are consulted. consulted: None where none are.
    """

    captions: list[Caption]
    similarity: float = 0.0
    consulted: Consulted | None = None


class Consulted(NamedTuple):
    """The opinion of the P most similar training pictures on the K captions that a search found for a picture.

    pictures (P,): their numbers in the memory, the most similar first. cosines (P,): their similarity to the picture.
    similarities (K,): the CIDEr-D of each caption to each picture's captions, from 0 to 1, the mean over these, and
    the mean over the pictures, weighted by exp(cosine / temperature). copy: of the pictures' own captions, the one most
    similar to the others; None where it is not looked for, or none may be copied.
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
    kept: KeptCaptions,
    near: LookedUp,
    found: Sequence[Sequence[Caption]],
    temperature: float,
    copied: range = ANY_LENGTH,
) -> list[Consulted]:
    """Return what the most similar training pictures say of the captions of N pictures.

    kept: the memory's captions. near: the similar pictures. found: the captions of each of the N. copied: the lengths,
    END counted, that a copy may have; without any, none is looked for.
    """
    consulted = []
    for pictures, cosines, captions in zip(near.pictures, near.cosines, found, strict=True):
        references = kept.of(pictures)
        weights = weights_of(cosines, temperature)[references.owners]
        weights /= np.bincount(references.owners)[references.owners]
        similarities = _to_captions(captions, references, weights, kept.frequencies)
        copy = None
        if copied:
            grams = _NGrams.of(references.tokens)
            to_others = _weighted_similarities(grams, grams, references.norms, weights, kept.frequencies)
            to_itself = (references.norms > 0).mean(axis=1)  # less than 1 where a caption has fewer than 4 words
            to_others = np.maximum(to_others - weights * to_itself, 0)
            copy = _most_similar(references.tokens, to_others, copied)
        consulted.append(Consulted(pictures, cosines, similarities, copy))
    return consulted


def support_of(kept: KeptCaptions, caption: Caption, pictures: Ids) -> Values:
    """Return the mean CIDEr-D of a caption to the captions of each of P pictures, from 0 to 1: (P,)."""
    support = np.zeros(len(pictures))
    for place in range(len(pictures)):
        references = kept.of(pictures[[place]])
        weights = np.full(len(references.tokens), 1 / len(references.tokens))
        (support[place],) = _to_captions([caption], references, weights, kept.frequencies)
    return support


def _to_captions(
    captions: Sequence[Caption], references: OfPictures, weights: Values, frequencies: Frequencies
) -> Values:
    """Return the sum of the CIDEr-D of captions to R references, from 0 to 1, each times its weight (R,)."""
    candidates = _NGrams.of(padded([caption.with_end for caption in captions]))
    shared = _NGrams.of(references.tokens, among=np.unique(candidates.keys))
    return _weighted_similarities(candidates, shared, references.norms, weights, frequencies)


def weights_of(cosines: Floats, temperature: float) -> Values:
    """Return the weights of pictures by their similarity (P,), which sum to 1."""
    weights = np.exp((cosines - cosines.max()).astype(np.float64) / temperature)
    normalised: Values = weights / weights.sum()
    return normalised


def _most_similar(captions: Ids, similarities: Values, copied: range) -> Copy | None:
    """Return the caption of the greatest similarity, of those (R, T) that may be copied.

    These have one of the lengths `copied`, no unknown word, and were not cut.
    """
    lengths = (captions >= 0).sum(axis=1)
    usable = (captions == END).any(axis=1) & (captions != UNK).all(axis=1)
    usable &= (lengths >= copied.start) & (lengths < copied.stop)
    if not usable.any():
        return None
    best = int(np.argmax(np.where(usable, similarities, -1.0)))
    return Copy(captions[best][captions[best] >= 0].tolist(), float(similarities[best]))


def rank(
    kept: KeptCaptions,
    near: LookedUp,
    found: Sequence[Sequence[Caption]],
    neighbours: Neighbours,
    decoding: Decoding,
    read_copies: Callable[[list[int], list[Copy]], list[Caption]],
) -> list[Ranked]:
    """Return the captions of N pictures as their neighbours rank them.

    kept: the memory's captions. near: the similar pictures. found: the captions of each of the N. decoding: the
    search's settings, whose bounds of a caption's length hold for copies as well. read_copies: returns copies for the
    pictures with these numbers as captions, see `as_captions`.
    """
    copied = range(0) if neighbours.copies is None else decoding.lengths
    consulted = consult(kept, near, found, neighbours.temperature, copied)
    ranked, copies = [], {}
    for picture, (captions, said) in enumerate(zip(found, consulted, strict=True)):
        order = said.order(captions, neighbours.factor)
        copy = said.copy_instead(order[0], neighbours.copies)
        similarity = float(said.similarities[order[0]]) if copy is None else copy.similarity
        if copy is not None:
            copies[picture] = copy
        ranked.append(Ranked([captions[place] for place in order], similarity, said))
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
    """Return grids (N, h, w, C) pooled: their means over the positions, (N, C) float32."""
    pooled: Floats = grids.mean(axis=(1, 2), dtype=np.float32)
    return pooled


class _NGrams(NamedTuple):
    """The n-grams of R captions, an entry for each of the E places where one of 1 to 4 words begins.

    keys (E,): of the n-gram. rows (E,): its caption. orders (E,): the number of its words, less one. counts (E,): how
    often the caption has it. numbers (E,): 0 where it is the first time, 1 at the second, and so on. lengths (R,): of
    the captions, in words.
    """

    keys: Keys
    rows: Ids
    orders: Ids
    counts: Ids
    numbers: Ids
    lengths: Ids

    @classmethod
    def of(cls, captions: Ids, among: Keys | None = None) -> Self:
        """Return the n-grams of captions (R, T), padded with -1; those in the sorted keys `among` alone, if given."""
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
        """Return a key of each n-gram and its number, (E,)."""
        return self.keys + self.numbers.astype(np.uint64) * _ODD

    def norms(self, weights: Values) -> Values:
        """Return the norms of the captions' tf-idf vectors of 1 to 4 words, (R, 4).

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
    found: npt.NDArray[np.bool_] = among[np.searchsorted(among, keys).clip(max=len(among) - 1)] == keys
    return found


def _count(keys: Keys) -> tuple[Ids, Ids]:
    """Return how often each key is among the keys (E,), and how often before its place: both (E,)."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(keys)])
    sizes = np.diff(np.append(starts, len(keys)))
    counts, numbers = np.empty((2, len(keys)), np.int64)
    counts[order] = np.repeat(sizes, sizes)
    numbers[order] = np.arange(len(keys)) - np.repeat(starts, sizes)
    return counts, numbers


def _weighted_similarities(
    candidates: _NGrams, references: _NGrams, norms: Values, weights: Values, frequencies: Frequencies
) -> Values:
    """Return the sum of the CIDEr-D of K candidates to R references, from 0 to 1, each times its weight (R,): (K,).

    norms (R, 4): of the references' tf-idf vectors. CIDEr-D counts an n-gram as often as both captions have it, so it
    is a sum over the occurrences that both have, and references of one length, on which the length penalty depends, are
    summed before they are compared.
    """
    keys, places = np.unique(candidates.occurrences, return_inverse=True)
    if not len(keys):
        return np.zeros(len(candidates.lengths))
    occurrences = references.occurrences
    found = np.searchsorted(keys, occurrences).clip(max=len(keys) - 1)
    shared = keys[found] == occurrences
    lengths, groups = np.unique(references.lengths, return_inverse=True)
    rows, orders = references.rows[shared], references.orders[shared]
    cells = found[shared] * len(lengths) + groups[rows]
    shares = references.counts[shared] * weights[rows] / np.maximum(norms[rows, orders], _LEAST)
    table = np.bincount(cells, shares, len(keys) * len(lengths)).reshape(len(keys), -1)
    penalty = np.exp(-((candidates.lengths[:, None] - lengths) ** 2) / (2 * SIGMA**2))
    squared = frequencies.weights(candidates.keys) ** 2
    own = np.maximum(candidates.norms(squared), _LEAST)[candidates.rows, candidates.orders]
    summed = (table[places] * penalty[candidates.rows]).sum(axis=1) * squared / own
    values: Values = np.bincount(candidates.rows, summed, len(candidates.lengths)) / len(ORDERS)
    return values
