"""Near-duplicates: copies of a picture that are mirrored, cropped by a tenth, re-encoded, resized or with a border.

Whether two pictures are near-duplicates depends only on their fingerprints, not on the rest of the data set. Candidates
are those whose low frequencies (of the discrete cosine transform, as in pHash: Zauner 2010) point in the same
direction, for the whole picture or its mirror image on one side and the whole or one of nine crops on the other. They
are looked up by random hyperplanes (Charikar 2002) in several tables, and in each also by the keys that differ in the
least certain bits (Lv et al. 2007), so that the time grows about linearly with the number of pictures. Each candidate
is then verified: one picture is laid over the other, and their pixels must agree.

All sums are of integers that their types represent exactly, so that the result depends neither on the machine nor on
the number of pictures compared at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.common.progress import Bar
from tasks.data.fingerprints import CHROMA_SIDE, SIDE, Fingerprints, Frames

_FREQUENCIES = 8  # along an axis
_COEFFICIENTS = _FREQUENCIES**2
_CELLS = 16  # number of parts of a side whose means are transformed
_UNIT = 64  # parts of a side in which cuts are measured
_CUTS = ((0, 0), (3, 3), (0, 6), (6, 0))  # from the two ends of a side: nothing, or a tenth from both ends or from one
_CROPS = [(0, 0)] + [(down, across) for down in (1, 2, 3) for across in (1, 2, 3)]  # rows of _CUTS, for the two axes
_DEEPEST = 8  # the largest cut of an end that the alignment tries: an eighth of the side
_TABLES, _BITS, _UNCERTAIN = 8, 20, 4  # tables, bits of a key, and the number of bits that a look-up tries both ways
_SKETCH_BITS = 128  # bits of a sketch
_SKETCH_DIFFERENCES = 36  # the maximum number of bits in which candidates differ
_SIMILAR = 0.87  # least cosine of descriptors for a pair to be verified
_OVERLAID = 24  # positions of a side at which two pictures are compared
_HOPEFUL = 0.7  # least correlation of their luma, roughly overlaid, for the pair to be aligned
_AGREEMENT = 0.92  # least correlation of their luma if they are the same,
_EDGES_AGREE = 0.80  # and of its differences down and across: two skies above two fields correlate by the horizon alone
_COLOURS = 14.0  # the greatest mean difference of Cb and Cr, of 255, if they are the same
_ROUNDS = 3  # of the alignment, each along both axes
_AT_ONCE = 1 << 20  # pairs processed together, to limit the memory
_VERIFIED_AT_ONCE = 512
_LONG = 20_000  # number of pictures from which the search takes long enough for a bar
_SCALE = 200  # of descriptors: the components of a unit vector, multiplied by this, fit into int8

Integers = npt.NDArray[np.int64]
Exact = npt.NDArray[np.float64]  # integers below 2 ** 53, as floats for fast products


class _Candidates(NamedTuple):
    """Pairs to verify, int64 (P,) each: a frame, whether it is mirrored, and a crop of another frame."""

    frame: Integers
    mirrored: Integers
    other: Integers
    crop: Integers

    def without(self, tried: set[int], frames: int) -> _Candidates:
        """Return the candidates that are not in `tried`, and add them to it, because tables find the same ones.

        frames: number of all frames.
        """
        numbers = ((self.frame * 2 + self.mirrored) * frames + self.other) * len(_CROPS) + self.crop
        new = np.array([number not in tried for number in numbers.tolist()], np.bool_)
        tried.update(numbers.tolist())
        return _Candidates(*(values[new] for values in self))


def near_duplicates(pictures: Mapping[str, Path], database: Path) -> list[list[str]]:
    """Return the groups of near-duplicates among pictures, as lists of digests; sorted, each of two at least.

    Two pictures are in one group if a chain of near-duplicates connects them. pictures: digest of a file's content ->
    the file; unreadable ones are in no group. database: the cache of fingerprints.
    """
    return groups(Fingerprints(database).of(pictures))


def groups(fingerprints: Mapping[str, Frames]) -> list[list[str]]:
    """Return the groups of near-duplicates by their fingerprints; sorted, each of two digests at least."""
    digests = sorted(digest for digest, frames in fingerprints.items() if len(frames))
    if len(digests) < 2:
        return []
    roots = _roots([fingerprints[digest] for digest in digests])
    members: dict[int, list[str]] = {}
    for digest, root in zip(digests, roots.tolist(), strict=True):
        members.setdefault(root, []).append(digest)
    return sorted(group for group in members.values() if len(group) > 1)


def _roots(pictures: Sequence[Frames]) -> Integers:
    """Return, for each picture, the number of the first one of its group: int64 (N,)."""
    frames = np.concatenate(pictures)
    owners = np.repeat(np.arange(len(pictures)), [len(own) for own in pictures])
    roots = np.arange(len(pictures))
    index, tried = _Index(frames, owners), set[int]()
    with Bar(_TABLES, "comparing pictures", "tables", says_end=False) as bar:
        for table in range(_TABLES):
            for candidates in index.candidates(table, roots):
                _join(candidates.without(tried, len(frames)), frames, owners, roots)
            if len(pictures) >= _LONG:
                bar.advance()
    return roots


def _join(candidates: _Candidates, frames: Frames, owners: Integers, roots: Integers) -> None:
    """Verify candidates, and join the groups of those that agree. roots: int64 (N,), modified in place."""
    for start in range(0, len(candidates.frame), _VERIFIED_AT_ONCE):
        some = _Candidates(*(values[start : start + _VERIFIED_AT_ONCE] for values in candidates))
        apart = roots[owners[some.frame]] != roots[owners[some.other]]
        if not apart.any():
            continue
        some = _Candidates(*(values[apart] for values in some))
        agree = _agree(frames[some.frame], some.mirrored, frames[some.other], some.crop)
        for own, other in zip(owners[some.frame[agree]].tolist(), owners[some.other[agree]].tolist(), strict=True):
            first, second = sorted((roots[own], roots[other]))
            if first != second:
                roots[roots == second] = first


class _Index:
    """Descriptors of frames, for looking up pairs of pictures that may be near-duplicates."""

    def __init__(self, frames: Frames, owners: Integers) -> None:
        """frames: uint8 (F, LENGTH). owners: int64 (F,), the picture of each."""
        descriptors = _descriptors(frames)
        whole = descriptors[:, 0]
        self._owners = owners
        self._asked = np.concatenate([whole, whole * _MIRROR])  # of whole frames, then of their mirror images
        self._held = descriptors.reshape(-1, _COEFFICIENTS)
        self._asked_norms, self._held_norms = (_norms(values) for values in (self._asked, self._held))
        self._asked_sketches, self._held_sketches = (
            np.packbits(_projected(values, _TABLES * _BITS, _SKETCH_BITS) >= 0, axis=1).view(np.uint64)
            for values in (self._asked, self._held)
        )

    def candidates(self, table: int, roots: Integers) -> Iterator[_Candidates]:
        """Yield the pairs found by a table, of pictures that are not in the same group yet. roots: group of each."""
        values = _projected(self._asked, table * _BITS, _BITS)
        keys = _keys(values)
        held_keys = _keys(_projected(self._held, table * _BITS, _BITS))
        order = np.argsort(held_keys, kind="stable")
        ends = np.cumsum(np.bincount(held_keys, minlength=1 << _BITS))
        weakest = np.argsort(np.abs(values), axis=1, kind="stable")[:, :_UNCERTAIN]
        for subset in range(1 << _UNCERTAIN):
            flipped = np.zeros(len(keys), np.int64)
            for bit in range(_UNCERTAIN):
                if subset >> bit & 1:
                    flipped |= 1 << weakest[:, bit]
            probed = keys ^ flipped
            stops = ends[probed]
            starts = np.where(probed > 0, ends[probed - 1], 0)
            for queries, positions in _ranges(starts, stops):
                yield self._similar(queries, order[positions], roots)

    def _similar(self, queries: Integers, held: Integers, roots: Integers) -> _Candidates:
        """Return the pairs with similar descriptors, best first; for each two pictures only the most similar pair."""
        frames, crops = len(self._owners), len(_CROPS)
        apart = roots[self._owners[queries % frames]] != roots[self._owners[held // crops]]
        queries, held = queries[apart], held[apart]
        differences = np.bitwise_count(self._asked_sketches[queries] ^ self._held_sketches[held]).sum(axis=1)
        near = differences <= _SKETCH_DIFFERENCES
        queries, held = queries[near], held[near]
        products = np.einsum("pc,pc->p", self._asked[queries], self._held[held], dtype=np.int64)
        cosines = products / (self._asked_norms[queries] * self._held_norms[held])
        similar = cosines >= _SIMILAR
        queries, held, cosines = queries[similar], held[similar], cosines[similar]
        best = np.lexsort((held, queries, -cosines))
        _, first = np.unique(np.stack([queries, held // crops], axis=1)[best], axis=0, return_index=True)
        chosen = best[np.sort(first)]
        queries, held = queries[chosen], held[chosen]
        return _Candidates(queries % frames, queries // frames, held // crops, held % crops)


def _ranges(starts: Integers, stops: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Yield the numbers i and p with starts[i] <= p < stops[i], about `_AT_ONCE` pairs at a time."""
    counts = stops - starts
    totals = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = totals[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(totals, before + _AT_ONCE, side="right")))
        own = counts[first:last]
        if own.any():
            skipped = np.repeat(np.cumsum(own) - own, own)
            yield (
                np.repeat(np.arange(first, last), own),
                np.arange(own.sum()) - skipped + np.repeat(starts[first:last], own),
            )
        first = last


def _descriptors(frames: Frames) -> npt.NDArray[np.int8]:
    """Return the low frequencies of frames and of their crops, as vectors of about equal length: int8 (F, crops, 64).

    Each is weighted by its frequency: in photographs amplitudes fall as the inverse (Field 1987), and without the
    weight all would look alike by the lowest.
    """
    transform = _transform()
    described = np.empty((len(frames), len(_CROPS), _COEFFICIENTS), np.int8)
    for start in range(0, len(frames), 4096):
        luma = frames[start : start + 4096, : SIDE * SIDE].reshape(-1, SIDE, SIDE).astype(np.float64)
        coefficients = (transform @ luma @ transform.T).reshape(-1, len(_CUTS), _FREQUENCIES, len(_CUTS), _FREQUENCIES)
        for number, (down, across) in enumerate(_CROPS):
            vectors = coefficients[:, down, :, across].reshape(-1, _COEFFICIENTS) * _WEIGHTS
            lengths = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
            units = vectors / np.maximum(lengths, 1)
            described[start : start + 4096, number] = np.clip(np.rint(units * _SCALE), -127, 127)
    return described


@cache
def _transform() -> Exact:
    """Return the cosine transforms of a side and of its crops, int (cuts * frequencies, SIDE); each row except those of
    the means sums to 0, so that brightness does not count."""
    positions = np.arange(_CELLS) + 0.5
    cosines = np.stack([np.cos(np.pi * positions * number / _CELLS) for number in range(_FREQUENCIES)])
    rows = []
    for cut in _CUTS:
        part = np.rint(cosines @ _shares(cut, SIDE, _CELLS) * 4096)
        rest = part.sum(axis=1)
        rest[0] = 0
        part[np.arange(_FREQUENCIES), np.abs(part).argmax(axis=1)] -= rest
        rows.append(part)
    return np.concatenate(rows)


def _shares(cut: tuple[int, int], side: int, cells: int) -> Exact:
    """Return the share of each pixel of a side in each cell of the part that a cut leaves: (cells, side)."""
    edges = np.linspace(cut[0] / _UNIT * side, (1 - cut[1] / _UNIT) * side, cells + 1)
    pixels = np.arange(side)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    shares: Exact = np.clip(overlap, 0, None) / (edges[1] - edges[0])
    return shares


_ALONG = np.arange(_FREQUENCIES)
# The weight of each coefficient, an integer: its frequency times 16, and 0 for the mean.
_WEIGHTS: Exact = np.rint(16 * np.sqrt(_ALONG[:, None] ** 2 + _ALONG**2)).ravel()
_MIRROR = np.tile(np.where(_ALONG % 2, -1, 1), _FREQUENCIES).astype(np.int8)  # the signs that mirroring changes


@cache
def _hyperplanes() -> Exact:
    """Return the normals of the random hyperplanes, of 1 and -1: (coefficients, bits of all tables and of sketches)."""
    chosen = random.Random(20).choices((-1.0, 1.0), k=_COEFFICIENTS * (_TABLES * _BITS + _SKETCH_BITS))
    return np.array(chosen).reshape(_COEFFICIENTS, -1)


def _projected(descriptors: npt.NDArray[np.int8], first: int, count: int) -> npt.NDArray[np.int32]:
    """Return the products of descriptors with some of the hyperplanes' normals: int32 (D, count)."""
    normals = _hyperplanes()[:, first : first + count].astype(np.float32)  # float32 holds sums below 2 ** 24 exactly
    return (descriptors.astype(np.float32) @ normals).astype(np.int32)


def _keys(values: npt.NDArray[np.int32]) -> Integers:
    """Return the key of each row of products: bit b is whether product b is not negative."""
    keys: Integers = ((values >= 0).astype(np.int64) << np.arange(values.shape[1])).sum(axis=1)
    return keys


def _norms(descriptors: npt.NDArray[np.int8]) -> Exact:
    """Return the lengths of descriptors, at least 1."""
    squares = np.einsum("dc,dc->d", descriptors, descriptors, dtype=np.int64)
    lengths: Exact = np.sqrt(np.maximum(squares, 1).astype(np.float64))
    return lengths


def _agree(frames: Frames, mirrored: Integers, others: Frames, crops: Integers) -> npt.NDArray[np.bool_]:
    """Return whether each frame, or its mirror image, is the same as a part of another frame near the given crop.

    frames, others: uint8 (P, LENGTH). mirrored: int64 (P,), 0 or 1. crops: int64 (P,), numbers in `_CROPS`.
    """
    luma, other = _planes(frames, mirrored)[0], _planes(others, np.zeros_like(mirrored))[0]
    overlays = _overlays(SIDE, _OVERLAID)
    laid = _resampled(overlays, other, *_cuts_of(crops))
    hopeful = _correlation(overlays[0] @ luma @ overlays[0].T, laid) >= _HOPEFUL
    agree = np.zeros(len(frames), np.bool_)
    agree[hopeful] = _aligned_agree(frames[hopeful], mirrored[hopeful], others[hopeful], crops[hopeful])
    return agree


def _cuts_of(crops: Integers) -> tuple[Integers, Integers]:
    """Return the cuts down and across, int64 (P, 2) each, of the ends of crops."""
    cuts = np.array(_CUTS)[np.array(_CROPS)[crops]]
    return cuts[:, 0], cuts[:, 1]


def _aligned_agree(frames: Frames, mirrored: Integers, others: Frames, crops: Integers) -> npt.NDArray[np.bool_]:
    """Return the result of `_agree` for pairs that may agree after alignment.

    The alignment searches along one axis after the other, in steps of 1/64 of a side at each end.
    """
    luma, *tints = _planes(frames, mirrored)
    other_luma, *other_tints = _planes(others, np.zeros_like(mirrored))
    overlays = _overlays(SIDE, _OVERLAID)
    whole = overlays[0] @ luma @ overlays[0].T
    down, across = _cuts_of(crops)
    best = _correlation(whole, _resampled(overlays, other_luma, down, across))
    for _ in range(_ROUNDS):
        before = best
        part = other_luma @ overlays[_number(across)].transpose(0, 2, 1)
        down, best = _refined_cuts(overlays, down, best, whole, part)
        part = other_luma.transpose(0, 2, 1) @ overlays[_number(down)].transpose(0, 2, 1)
        across, best = _refined_cuts(overlays, across, best, whole.transpose(0, 2, 1), part)
        if (best == before).all():
            break
    laid = _resampled(overlays, other_luma, down, across)
    same = best >= _AGREEMENT
    for axis in (1, 2):
        same &= _correlation(np.diff(whole, axis=axis), np.diff(laid, axis=axis)) >= _EDGES_AGREE
    small = _overlays(CHROMA_SIDE, CHROMA_SIDE // 2)
    for own, other in zip(tints, other_tints, strict=True):
        difference = small[0] @ own @ small[0].T - _resampled(small, other, down, across)
        same &= np.abs(difference).mean(axis=(1, 2)) <= _COLOURS * _UNIT**2
    return same


def _planes(frames: Frames, mirrored: Integers) -> list[Exact]:
    """Return the luma (P, 32, 32), and Cb and Cr (P, 8, 8), of frames, mirrored if `mirrored` is 1."""
    planes = []
    for first, side in ((0, SIDE), (SIDE**2, CHROMA_SIDE), (SIDE**2 + CHROMA_SIDE**2, CHROMA_SIDE)):
        plane = frames[:, first : first + side**2].reshape(-1, side, side).astype(np.float64)
        planes.append(np.where(mirrored[:, None, None] == 1, plane[:, :, ::-1], plane))
    return planes


@cache
def _overlays(side: int, cells: int) -> Exact:
    """Return the shares of pixels in the cells of the part left by each pair of cuts, in 64ths: (cuts, cells, side)."""
    ends = range(_DEEPEST + 1)
    overlays = np.rint(np.stack([_shares((first, last), side, cells) for first in ends for last in ends]) * _UNIT)
    rest = overlays.sum(axis=2, keepdims=True) - _UNIT
    largest = overlays.argmax(axis=2)[..., None]
    np.put_along_axis(overlays, largest, np.take_along_axis(overlays, largest, 2) - rest, 2)
    return overlays


def _number(cuts: Integers) -> Integers:
    """Return the numbers in `_overlays` of cuts: int64 (P,) of (P, 2)."""
    return cuts[:, 0] * (_DEEPEST + 1) + cuts[:, 1]


def _resampled(overlays: Exact, planes: Exact, down: Integers, across: Integers) -> Exact:
    """Return the part of planes left by cuts, in the cells of `overlays`: (P, cells, cells). down, across: (P, 2)."""
    return overlays[_number(down)] @ planes @ overlays[_number(across)].transpose(0, 2, 1)


def _refined_cuts(overlays: Exact, cuts: Integers, best: Exact, whole: Exact, part: Exact) -> tuple[Integers, Exact]:
    """Return the cuts along one axis, at most one step from the given ones, that agree best, and their correlation.

    cuts: (P, 2). best: (P,), their correlation. whole: (P, cells, cells). part: (P, side, cells), already cut along the
    other axis.
    """
    base = cuts
    for first in (-1, 0, 1):
        for last in (-1, 0, 1):
            tried = np.clip(base + np.array([first, last]), 0, _DEEPEST)
            scores = _correlation(whole, overlays[_number(tried)] @ part)
            better = scores > best
            cuts = np.where(better[:, None], tried, cuts)
            best = np.where(better, scores, best)
    return cuts, best


def _correlation(first: Exact, second: Exact) -> Exact:
    """Return the normalised correlation of each pair of planes, 0 if one is plain: (P,) of (P, cells, cells)."""
    count = first.shape[1] * first.shape[2]

    def covariance(one: Exact, two: Exact) -> Integers:
        # The sums are below 2 ** 50, which float64 holds exactly; times `count` they are below 2 ** 63.
        product = np.einsum("pij,pij->p", one, two).astype(np.int64)
        sums = one.sum(axis=(1, 2)).astype(np.int64) * two.sum(axis=(1, 2)).astype(np.int64)
        difference: Integers = count * product - sums
        return difference

    spreads = covariance(first, first).astype(np.float64) * covariance(second, second).astype(np.float64)
    return covariance(first, second) / np.sqrt(np.maximum(spreads, 1))
