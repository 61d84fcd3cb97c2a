"""Ranking of captions by their similarity to the captions of similar training pictures.

The captions of the nearest training pictures (see neighbours.py) are a second opinion on what a picture shows. Captions
that a search found are ranked by their log-probability and their CIDEr-D (Vedantam et al. 2015) against them (Devlin et
al. 2015, "Exploring Nearest Neighbor Approaches for Image Captioning" and "Language Models for Image Captioning: The
Quirks and What Works"), and by how well their words match the picture (see matcher.py).

This file needs no torch: captioners of every runtime share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .decoding_rules import Floats
from .neighbours import Memory, NearestPictures, StoredCaptions
from .ngrams import Ids, NGrams, Values, padded, similarities_to, weighted_similarities
from .options import Decoding, Neighbours
from .search import Caption, State, Steps, teacher_force
from .vocabulary import END, UNK

ANY_LENGTH = range(2**31)


class Copy(NamedTuple):
    """A caption of a similar training picture: its token ids, including END, and similarity: see `NeighbourOpinion`."""

    tokens: list[int]
    similarity: float


@dataclass(frozen=True)
class Ranked:
    """The captions of a picture, best first, and the opinion of its neighbours.

    similarity: the best caption's to the neighbours' captions; 0 if no neighbours are consulted. opinion: None if no
    neighbours are consulted.
    """

    captions: list[Caption]
    similarity: float = 0.0
    opinion: NeighbourOpinion | None = None


class NeighbourOpinion(NamedTuple):
    """The opinion of the P most similar training pictures on the K captions that a search found for a picture.

    pictures (P,): their numbers in the memory, the most similar first. cosines (P,): their similarity to the picture.
    similarities (K,): each caption's CIDEr-D against their captions, from 0 to 1, averaged over each picture's
    captions and then over the pictures, weighted by exp(cosine / temperature). matches (K,): how well each caption's
    words match the picture, from -1 to 1; 0 without a matcher. copy: of the pictures' own captions, the one most
    similar to the others; None if copies are off, or none may be copied.
    """

    pictures: Ids
    cosines: Floats
    similarities: Values
    matches: Values
    copy: Copy | None

    def order(self, captions: Sequence[Caption], neighbours: Neighbours) -> list[int]:
        """Return the indices of the captions, best first; equals keep their order."""
        means = np.array([caption.log_probability / max(len(caption.with_end), 1) for caption in captions])
        scores = means + neighbours.factor * self.similarities + neighbours.match * self.matches
        order: list[int] = np.argsort(-scores, kind="stable").tolist()
        return order

    def copy_instead(self, best: int, ratio: float | None) -> Copy | None:
        """Return the copy if it is to replace the best caption, else None: see `options.Neighbours`."""
        if self.copy is None or ratio is None or self.copy.similarity <= ratio * self.similarities[best]:
            return None
        return self.copy


def consult(
    memory: Memory,
    nearest: NearestPictures,
    candidates: Sequence[Sequence[Caption]],
    temperature: float,
    copy_lengths: range = ANY_LENGTH,
) -> list[NeighbourOpinion]:
    """Return the opinion of the most similar training pictures on the captions of N pictures.

    memory: one with captions. nearest: the similar pictures. candidates: the captions of each of the N. copy_lengths:
    the lengths, including END, that a copy may have; empty to look for no copies.
    """
    stored, matcher = memory.captions, memory.matcher
    assert stored is not None
    opinions = []
    for pictures, cosines, direction, captions in zip(
        nearest.pictures, nearest.cosines, nearest.directions, candidates, strict=True
    ):
        tokens = padded([caption.with_end for caption in captions])
        references = stored.of(pictures)
        weights = weights_of(cosines, temperature)[references.owners]
        weights /= np.bincount(references.owners)[references.owners]
        similarities = similarities_to(tokens, references.tokens, references.norms, weights, stored.frequencies)
        copy = None
        if copy_lengths:
            grams = NGrams.of(references.tokens)
            to_others = weighted_similarities(grams, grams, references.norms, weights, stored.frequencies)
            to_itself = (references.norms > 0).mean(axis=1)  # less than 1 if a caption has fewer than 4 words
            to_others = np.maximum(to_others - weights * to_itself, 0)
            copy = _most_similar(references.tokens, to_others, copy_lengths)
        matches = np.zeros(len(tokens)) if matcher is None else matcher.matches(direction, tokens)
        opinions.append(NeighbourOpinion(pictures, cosines, similarities, matches, copy))
    return opinions


def support_of(stored: StoredCaptions, caption: Caption, pictures: Ids) -> Values:
    """Return the mean CIDEr-D of a caption against the captions of each of P pictures, from 0 to 1: (P,)."""
    support = np.zeros(len(pictures))
    for index in range(len(pictures)):
        references = stored.of(pictures[[index]])
        weights = np.full(len(references.tokens), 1 / len(references.tokens))
        (support[index],) = similarities_to(
            padded([caption.with_end]), references.tokens, references.norms, weights, stored.frequencies
        )
    return support


def weights_of(cosines: Floats, temperature: float) -> Values:
    """Return the weights of pictures by their similarity (P,), which sum to 1."""
    weights = np.exp((cosines - cosines.max()).astype(np.float64) / temperature)
    normalised: Values = weights / weights.sum()
    return normalised


def _most_similar(captions: Ids, similarities: Values, copy_lengths: range) -> Copy | None:
    """Return the most similar of the captions (R, T) that may be copied; None if none may be.

    A caption may be copied if its length is in `copy_lengths`, it has no unknown word, and it was not cut.
    """
    lengths = (captions >= 0).sum(axis=1)
    usable = (captions == END).any(axis=1) & (captions != UNK).all(axis=1)
    usable &= (lengths >= copy_lengths.start) & (lengths < copy_lengths.stop)
    if not usable.any():
        return None
    best = int(np.argmax(np.where(usable, similarities, -1.0)))
    return Copy(captions[best][captions[best] >= 0].tolist(), float(similarities[best]))


def rank(
    memory: Memory,
    nearest: NearestPictures,
    candidates: Sequence[Sequence[Caption]],
    neighbours: Neighbours,
    decoding: Decoding,
    score_copies: Callable[[list[int], list[Copy]], list[Caption]],
) -> list[Ranked]:
    """Return the captions of N pictures as their neighbours rank them.

    memory: one with captions. nearest: the similar pictures. candidates: the captions of each of the N. decoding: the
    search's settings; its length limits hold for copies too. score_copies: takes the indices of pictures and a copy for
    each, and returns the copies as captions, see `as_captions`.
    """
    copy_lengths = range(0) if neighbours.copies is None else decoding.lengths
    opinions = consult(memory, nearest, candidates, neighbours.temperature, copy_lengths)
    ranked, copies = [], {}
    for picture, (captions, opinion) in enumerate(zip(candidates, opinions, strict=True)):
        order = opinion.order(captions, neighbours)
        copy = opinion.copy_instead(order[0], neighbours.copies)
        similarity = float(opinion.similarities[order[0]]) if copy is None else copy.similarity
        if copy is not None:
            copies[picture] = copy
        ranked.append(Ranked([captions[index] for index in order], similarity, opinion))
    if copies:
        for picture, caption in zip(copies, score_copies(list(copies), list(copies.values())), strict=True):
            ranked[picture].captions.insert(0, caption)
    return ranked


def as_captions(decoder: Steps, start: State, copies: Sequence[Copy]) -> list[Caption]:
    """Return copies for N pictures as captions, with the log-probabilities that the decoder gives their words.

    start: the state before the first word, of the N pictures.
    """
    log_probabilities, _ = teacher_force(decoder, start, [[copy.tokens] for copy in copies])
    captions = []
    for copy, (token_values, *_) in zip(copies, log_probabilities, strict=True):
        values = token_values[: len(copy.tokens)]
        captions.append(Caption(copy.tokens[:-1], float(values.sum()), True, values))
    return captions
