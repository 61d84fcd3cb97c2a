"""A captioner's memory of its training pictures: one vector per picture, to find similar ones.

The captions of similar pictures rank the captions that a search finds (see ranking.py). This file needs no torch:
captioners of every runtime share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .decoding_rules import Floats
from .matcher import Matcher, unit
from .ngrams import ORDERS, Frequencies, Ids, NGrams, Values

_FILE = "memory.npz"
_CAPTION_ARRAYS = ("tokens", "lengths", "counts", "norms")
_MATCHER_ARRAYS = ("projection", "bias", "words")
_BATCH = 64  # pictures compared with the memory at once
_MIN_LOOKED_UP = 60  # pictures looked up, at least
_NEAREST = 5  # nearest of these, whose distances are averaged
_EPSILON = 1e-12  # divisor
_BLOCK = 64  # pictures per block in `_greatest`
_NORM_BATCH = 1024  # captions whose norms are computed at once


@dataclass(frozen=True)
class StoredCaptions:
    """The captions of M pictures, as token ids without START, with END unless they were cut.

    tokens (T,) uint16 or int32: of all captions, one after the other. lengths (K,): the number of tokens of each
    caption. counts (M,): the number of captions of each picture. norms (K, 4) float64: the norms of each caption's
    tf-idf vectors of n-grams of 1 to 4 words. frequencies: the n-grams' document frequencies.
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
        captions = cls(tokens, lengths, counts, np.zeros((0, len(ORDERS))), frequencies)
        parts = np.split(np.arange(len(lengths)), range(_NORM_BATCH, len(lengths), _NORM_BATCH))
        norms = []
        for part in parts:
            grams = NGrams.of(captions._rows(part))
            norms.append(grams.norms(frequencies.weights(grams.keys) ** 2))
        return replace(captions, norms=np.concatenate(norms))

    @cached_property
    def _token_ends(self) -> Ids:
        return np.cumsum(self.lengths, dtype=np.int64)

    @cached_property
    def _caption_ends(self) -> Ids:
        return np.cumsum(self.counts, dtype=np.int64)

    def of(self, pictures: Ids) -> PictureCaptions:
        """Return the captions of P pictures."""
        counts = self.counts[pictures].astype(np.int64)
        owners = np.repeat(np.arange(len(pictures)), counts)
        before = np.repeat(np.cumsum(counts), counts) - np.arange(len(owners))  # the end of the picture's captions
        captions = self._caption_ends[pictures][owners] - before
        return PictureCaptions(self._rows(captions), owners, self.norms[captions])

    def draw(self, pictures: Ids, generator: np.random.Generator) -> Ids:
        """Return the tokens of a caption of each of P pictures, drawn at random: (P, T) padded with -1."""
        chosen = (generator.random(len(pictures)) * self.counts[pictures]).astype(np.int64)
        return self._rows(self._caption_ends[pictures] - 1 - chosen)

    def _rows(self, captions: Ids) -> Ids:
        """Return the tokens of R captions, (R, T) padded with -1."""
        lengths = self.lengths[captions].astype(np.int64)
        positions = np.arange(lengths.max(initial=1))
        inside = positions < lengths[:, None]
        index = np.where(inside, (self._token_ends[captions] - lengths)[:, None] + positions, 0)
        return np.where(inside, self.tokens[index].astype(np.int64), -1)


class PictureCaptions(NamedTuple):
    """The R captions of P pictures.

    tokens (R, T): padded with -1. owners (R,): the index of each caption's picture among the P. norms (R, 4): of the
    captions' tf-idf vectors.
    """

    tokens: Ids
    owners: Ids
    norms: Values


@dataclass(frozen=True)
class Memory:
    """A captioner's memory of M training pictures.

    grid (h, w, C) float32: the mean of their grids. mean (C,), basis (C, D) float32: the mean and the principal axes of
    their pooled grids (see `pool`). vectors (M, D) float16, or float32 if a number is too large for that: each
    picture's pooled grid less the mean, projected on the axes. captions: the pictures' captions; None if not kept.
    matcher: a dual encoder of vectors and captions; None if there are too few captions to train it, or none are kept.
    """

    grid: Floats
    mean: Floats
    basis: Floats
    vectors: Floats | npt.NDArray[np.float16]
    captions: StoredCaptions | None = None
    matcher: Matcher | None = None

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("grid", "mean", "basis", "vectors")}
        if self.captions is not None:
            frequencies = self.captions.frequencies
            arrays |= {name: getattr(self.captions, name) for name in _CAPTION_ARRAYS}
            arrays |= {"ngrams": frequencies.keys, "document_frequencies": frequencies.counts.astype(np.int32)}
            arrays["documents"] = np.int64(frequencies.pictures)
        if self.matcher is not None:
            arrays |= {name: getattr(self.matcher, name) for name in _MATCHER_ARRAYS}
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
            captions = StoredCaptions(**{name: arrays[name] for name in _CAPTION_ARRAYS}, frequencies=frequencies)
        matcher = Matcher(**{name: arrays[name] for name in _MATCHER_ARRAYS}) if "words" in arrays else None
        return cls(arrays["grid"], arrays["mean"], arrays["basis"], arrays["vectors"], captions, matcher)

    @cached_property
    def _scale(self) -> Floats:
        """Return the factors that whiten vectors, (D,): the inverse of the standard deviation along each axis.

        Without whitening, the few axes of largest variance determine which pictures are similar (Jégou and Chum 2012,
        "Negative evidences and co-occurrences in image retrieval: the benefit of PCA and whitening").
        """
        deviations = self.vectors.std(axis=0, dtype=np.float32)
        scale: Floats = 1 / np.maximum(deviations, _EPSILON)
        return scale

    @cached_property
    def directions(self) -> Floats:
        """Return the whitened vectors, (M, D), each of length 1."""
        return unit(self.vectors * self._scale)

    def look_up(self, pooled: Floats, number: int) -> NearestPictures:
        """Return the `number` pictures most similar to each of the pooled grids (N, C), or all if there are fewer."""
        parts = [self._look_up(pooled[start : start + _BATCH], number) for start in range(0, len(pooled), _BATCH)]
        return NearestPictures(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _look_up(self, pooled: Floats, number: int) -> NearestPictures:
        vectors = ((pooled - self.mean) @ self.basis).astype(np.float32, copy=False)
        directions = unit(vectors * self._scale)
        cosines = directions @ self.directions.T
        pictures, cosines = _greatest(cosines, max(number, _MIN_LOOKED_UP))
        distances = np.sort(self._distances(pooled, pictures), axis=1)[:, :_NEAREST].mean(axis=1)
        return NearestPictures(pictures[:, :number], cosines[:, :number], distances, directions)

    def _distances(self, pooled: Floats, pictures: Ids) -> Floats:
        """Return the distances (N, P) of pooled grids (N, C) to those of P pictures each, all scaled to length 1.

        The mean is not subtracted, because pictures unlike any other differ in it too.
        """
        vectors = self.vectors[pictures].astype(np.float32)
        products = (vectors @ (pooled @ self.basis)[:, :, None])[:, :, 0] + (pooled @ self.mean)[:, None]
        squared = self.mean @ self.mean + 2 * vectors @ (self.mean @ self.basis) + (vectors**2).sum(axis=2)
        lengths = np.linalg.norm(pooled, axis=1)[:, None] * np.sqrt(squared)
        distances: Floats = np.sqrt(2 - 2 * (products / np.maximum(lengths, _EPSILON)).clip(-1, 1))
        return distances


class NearestPictures(NamedTuple):
    """The P training pictures most similar to each of N pictures.

    pictures (N, P): their numbers in the memory, the most similar first. cosines (N, P): their similarity. distances
    (N,): the mean distance of each picture to the nearest of the most similar, from 0 to 2. directions (N, D): the
    vector of each of the N, whitened, of length 1.
    """

    pictures: Ids
    cosines: Floats
    distances: Floats
    directions: Floats

    def select(self, indices: Sequence[int]) -> NearestPictures:
        """Return the rows of the pictures with these indices."""
        rows = list(indices)
        return NearestPictures(self.pictures[rows], self.cosines[rows], self.distances[rows], self.directions[rows])


def _greatest(values: Floats, number: int) -> tuple[Ids, Floats]:
    """Return the indices and values of the `number` greatest of each row (N, M), or of all, greatest first.

    They are in the `number` blocks with the greatest maxima, so the other blocks need no partition.
    """
    rows, length = values.shape
    number, whole = min(number, length), length - length % _BLOCK
    indices = np.broadcast_to(np.arange(length), values.shape)
    if whole > number * _BLOCK:
        maxima = values[:, :whole].reshape(rows, -1, _BLOCK).max(axis=2)
        blocks = np.argpartition(maxima, -number, axis=1)[:, -number:]
        inside = (blocks[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(rows, -1)
        indices = np.concatenate([inside, indices[:, whole:]], axis=1)
    candidates = np.take_along_axis(values, indices, axis=1)
    chosen = np.argpartition(candidates, -number, axis=1)[:, -number:]
    selected = np.take_along_axis(indices, chosen, axis=1)
    greatest = np.take_along_axis(values, selected, axis=1)
    order = np.lexsort((selected, -greatest), axis=1)
    return np.take_along_axis(selected, order, axis=1), np.take_along_axis(greatest, order, axis=1)


def pool(grids: npt.NDArray[Any]) -> Floats:
    """Return the means of grids (N, h, w, C) over their positions, (N, C) float32."""
    pooled: Floats = grids.mean(axis=(1, 2), dtype=np.float32)
    return pooled
