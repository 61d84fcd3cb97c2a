"""Decoding in NumPy: the beam search and the sampling of models/search.py.

Beam search reads a shortlist of each hypothesis' likeliest next words, not all log-probabilities. That is exact: the
shortlist is longer, by as many words as can be ruled out, than the number of hypotheses that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..consensus import by_consensus
from ..options import Decoding
from ..vocabulary import END, NULL, START

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.int64]


@dataclass(frozen=True)
class State:
    """The state of a decoder between words, its arrays by name.

    of_rows (N, R, ...): one entry for each of a picture's hypotheses. of_pictures (N, ...): the same for all of them.
    """

    of_rows: dict[str, npt.NDArray[Any]]
    of_pictures: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        """Return N."""
        return len(next(iter(self.of_rows.values())))

    def select(self, rows: Words) -> State:
        """Return the state of the rows with indices `rows` (N, R') within each picture."""
        pictures = np.arange(len(rows))[:, None]
        return State({name: values[pictures, rows] for name, values in self.of_rows.items()}, self.of_pictures)

    def keep(self, pictures: Words) -> State:
        """Return the state of the pictures with indices `pictures` (N',)."""
        rows, of_pictures = (
            {name: values[pictures] for name, values in part.items()} for part in (self.of_rows, self.of_pictures)
        )
        return State(rows, of_pictures)


class Next(NamedTuple):
    """Hold what a decoder says after a word.

    values (N, R, K): natural log-probabilities, of the `words` (N, R, K), the likeliest first; or of all words, K = V.
    Tokens that no caption may contain have -inf.
    blind (N, R, K): those of the same words for another grid, if the decoder gives them, else 0. alphas (N, R, P').
    state: after the word.
    """

    values: Floats
    words: Words
    blind: Floats
    alphas: Floats
    state: State


class Steps(Protocol):
    """The method of a decoder that search uses."""

    def step(self, state: State, tokens: Words, shortlist: int) -> Next:
        """Return the `shortlist` likeliest words after tokens (N, R), or all words in order for a shortlist of 0."""
        ...


@dataclass(frozen=True)
class Caption:
    """A decoded caption.

    tokens: ids, without START and END. log_probability: natural logarithm, of the tokens and of END if the caption has
    one. finished: whether END came within the maximum length. of_words, blind (T,): see `Next`, of each token, END
    included. alphas (T, P'): of the steps that chose them.
    """

    tokens: list[int]
    log_probability: float
    finished: bool
    of_words: Floats
    blind: Floats
    alphas: Floats


def decode(decoder: Steps, start: State, decoding: Decoding, keys: Sequence[int] | None = None) -> list[list[Caption]]:
    """Return the `n_best` captions of each of N pictures, best first: see models/search.py.

    start: the state before the first word, R = 1.
    """
    if decoding.search == "sample":
        return _sample(decoder, start, decoding, range(len(start)) if keys is None else keys)
    return _BeamSearch(decoder, start, decoding).run()


class _History(NamedTuple):
    """The words (N, R, t) of hypotheses, and what `Next` says of each.

    of_words, blind (N, R, t). alphas (N, R, t, P').
    """

    words: Words
    of_words: Floats
    blind: Floats
    alphas: Floats

    @classmethod
    def empty(cls, pictures: int, rows: int) -> _History:
        numbers = np.zeros((pictures, rows, 0), np.float32)
        return cls(numbers.astype(np.int64), numbers, numbers, numbers[..., None])

    def extended(self, said: Next, parents: Words, chosen: Words) -> _History:
        """Return the history of the rows `parents` (N, R'), with one more word of each: `chosen` (N, R') of `said`."""
        pictures = np.arange(len(parents))[:, None]
        alphas = said.alphas[pictures, parents][:, :, None]
        before = self.alphas[pictures, parents] if self.alphas.shape[2] else alphas[:, :, :0]

        def longer(so_far: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([so_far[pictures, parents], new[pictures, parents, chosen][..., None]], axis=2)

        return _History(
            longer(self.words, said.words),
            longer(self.of_words, said.values),
            longer(self.blind, said.blind),
            np.concatenate([before, alphas], axis=2),
        )

    def keep(self, pictures: Words) -> _History:
        """Return the history of the pictures with indices `pictures` (N',)."""
        return _History(self.words[pictures], self.of_words[pictures], self.blind[pictures], self.alphas[pictures])

    def caption(self, picture: int, row: int, log_probability: float) -> Caption:
        """Return a row's caption: its tokens up to END, or all if there is no END."""
        words = self.words[picture, row].tolist()
        finished = END in words
        length = words.index(END) + 1 if finished else len(words)
        return Caption(
            words[: length - 1] if finished else words,
            log_probability,
            finished,
            self.of_words[picture, row, :length],
            self.blind[picture, row, :length],
            self.alphas[picture, row, :length],
        )


class _BeamSearch:
    """Hypotheses of N' pictures, as in `search.BeamSearch`.

    scores (N', k): log-probabilities of live hypotheses, -inf where there is no live one. widths (N', 1): the live
    hypotheses that each picture may have. ended: of each picture, (length-normalised score, caption) in the order in
    which they ended. pictures: the index of each of the N' pictures among those searched at first.
    """

    def __init__(self, decoder: Steps, start: State, decoding: Decoding) -> None:
        count = len(start)
        self._decoder, self._decoding, self._length = decoder, decoding, 0
        self._state = start
        self._last = np.full((count, 1), START)  # one hypothesis: others would be the same
        self._scores = np.zeros((count, 1), np.float32)
        self._widths = np.full((count, 1), decoding.beam)
        self._history = _History.empty(count, 1)
        self._ended: list[list[tuple[float, Caption]]] = [[] for _ in range(count)]
        self._pictures = np.arange(count)
        self._found: dict[int, list[Caption]] = {}  # the captions of pictures that are done, by the same index

    def run(self) -> list[list[Caption]]:
        """Return the captions of every picture, best first."""
        while self._length < self._decoding.max_length and len(self._pictures):
            self._advance()
            self._drop_done()
        self._found |= {int(picture): self._captions(row) for row, picture in enumerate(self._pictures)}
        return [self._found[picture] for picture in sorted(self._found)]

    def _advance(self) -> None:
        """Extend the hypotheses by a word."""
        decoding, beam = self._decoding, self._decoding.beam
        # END, and of each n-gram so far its last word, or the last word, may be ruled out.
        likeliest = self._decoder.step(self._state, self._last, beam + 1 + self._length)
        allowed = _rule_out(likeliest.values, likeliest.words, self._history.words, decoding)
        shortlist = allowed.shape[2]
        candidates = (self._scores[:, :, None] + allowed).reshape(len(allowed), -1)
        # There are fewer than k new hypotheses where there are fewer candidates.
        index = np.argsort(-candidates, axis=1, kind="stable")[:, :beam]
        parents = index // shortlist
        scores = candidates[np.arange(len(index))[:, None], index]
        scores[np.arange(scores.shape[1]) >= self._widths] = -np.inf
        self._history = self._history.extended(likeliest, parents, index % shortlist)
        self._last = self._history.words[:, :, -1]
        self._length += 1
        just_ended = (self._last == END) & np.isfinite(scores)
        for picture, row in zip(*np.nonzero(just_ended), strict=True):
            total = float(scores[picture, row])
            normalised = total / self._length**decoding.length_normalisation
            self._ended[picture].append((normalised, self._history.caption(picture, row, total)))
        self._widths = self._widths - just_ended.sum(axis=1, keepdims=True)
        self._scores = np.where(just_ended, -np.inf, scores).astype(np.float32)
        self._state = likeliest.state.select(parents)

    def _drop_done(self) -> None:
        """Search no more the pictures for which no live hypothesis can still beat as many ended ones as are wanted."""
        longest = self._decoding.max_length**self._decoding.length_normalisation
        best = self._scores.max(axis=1).astype(np.float64) / longest
        to_beat = [self._to_beat(ended) for ended in self._ended]
        done = ~((best > to_beat) & np.isfinite(best))
        if not done.any():
            return
        self._found |= {int(self._pictures[row]): self._captions(row) for row in np.flatnonzero(done).tolist()}
        left = np.flatnonzero(~done)
        self._pictures, self._ended = self._pictures[left], [self._ended[row] for row in left]
        self._state, self._history = self._state.keep(left), self._history.keep(left)
        self._last, self._scores, self._widths = self._last[left], self._scores[left], self._widths[left]

    def _to_beat(self, ended: list[tuple[float, Caption]]) -> float:
        """Return the score of the worst of the ended hypotheses that are wanted; -inf where fewer ended."""
        ranked = sorted((score for score, _ in ended), reverse=True)
        count = self._decoding.wanted
        return ranked[count - 1] if len(ranked) >= count else -np.inf

    def _captions(self, row: int) -> list[Caption]:
        """Return the n_best captions of a picture: those that ended, then live ones if too few ended."""
        decoding = self._decoding
        found = [caption for _, caption in sorted(self._ended[row], key=lambda item: -item[0])][: decoding.wanted]
        found[: decoding.voters] = by_consensus(found[: decoding.voters])
        if len(found) < decoding.n_best:
            scores, words = self._scores[row].tolist(), self._history.words[row].tolist()
            live = sorted(range(len(scores)), key=lambda number: (scores[number], words[number]), reverse=True)
            live = [number for number in live if scores[number] > -np.inf][: decoding.n_best - len(found)]
            found += [self._history.caption(row, number, scores[number]) for number in live]
        return found[: decoding.n_best]


def _rule_out(values: Floats, words: Words, before: Words, decoding: Decoding) -> Floats:
    """Return log-probabilities (N, R, K) of words (N, R, K), with those that `decoding` forbids at -inf.

    before (N, R, t): the words so far. Where no word would be left, END remains allowed.
    """
    length, size = before.shape[2], decoding.no_repeat
    echoes = decoding.no_echo and length > 0
    if length >= decoding.min_length and not 0 < size <= length and not echoes:
        return values
    ruled_out = words == END if length < decoding.min_length else np.zeros(words.shape, np.bool_)
    if echoes:
        ruled_out |= words == before[:, :, -1:]
    if 0 < size <= length:
        # Each n-gram so far, by its first words, against the words that the next one would make an n-gram.
        repeated = np.ones((*before.shape[:2], length - size + 1), np.bool_)
        for place in range(size - 1):
            first = before[:, :, place : place + length - size + 1]
            repeated &= first == before[:, :, length - size + 1 + place, None]
        if repeated.any():
            forbidden = np.where(repeated, before[:, :, size - 1 :], NULL)
            ruled_out |= (words[..., None] == forbidden[..., None, :]).any(axis=-1)
    none_left = (ruled_out | np.isneginf(values)).all(axis=-1, keepdims=True)
    return np.where(ruled_out & ~(none_left & (words == END)), -np.inf, values).astype(np.float32)


def _sample(decoder: Steps, start: State, decoding: Decoding, keys: Sequence[int]) -> list[list[Caption]]:
    """Return `n_best` captions of each picture, drawn independently and sorted by falling log-probability."""
    shape = (len(start), decoding.n_best)
    draws = np.stack([_uniform_draws(decoding, key) for key in keys])
    every_row = np.broadcast_to(np.arange(shape[1]), shape)
    state = start.select(np.zeros(shape, np.int64))
    history, last = _History.empty(*shape), np.full(shape, START)
    total, unfinished = np.zeros(shape, np.float32), np.ones(shape, np.bool_)
    while history.words.shape[2] < decoding.max_length and unfinished.any():
        said = decoder.step(state, last, 0)
        allowed = _truncated(_rule_out(said.values, said.words, history.words, decoding), decoding)
        # Sample by inverting the cumulative distribution, with one uniform number per word.
        cumulative = _softmax(allowed).cumsum(axis=-1, dtype=np.float64).astype(np.float32)
        draw = draws[:, :, history.words.shape[2], None] * cumulative[..., -1:]
        chosen = np.minimum((cumulative <= draw).sum(axis=-1), cumulative.shape[-1] - 1)
        history = history.extended(said, every_row, np.where(unfinished, chosen, NULL))
        total = total + np.where(unfinished, history.of_words[:, :, -1], np.float32(0))
        last = history.words[:, :, -1]
        unfinished, state = unfinished & (chosen != END), said.state
    captions = [
        [history.caption(picture, row, float(total[picture, row])) for row in range(shape[1])]
        for picture in range(shape[0])
    ]
    return [sorted(found, key=lambda caption: -caption.log_probability) for found in captions]


def _uniform_draws(decoding: Decoding, key: int) -> Floats:
    """Return uniform numbers in [0, 1), (n_best, max_length), as torch's generator draws them for a seed and a key."""
    seed = (decoding.seed * 1_000_003 + key) % 2**32  # torch's Mersenne Twister takes these bits of a seed
    shape = (decoding.n_best, decoding.max_length)
    bits = np.random.RandomState(seed).randint(0, 2**32, shape, dtype=np.uint32)
    draws: Floats = (bits & (2**24 - 1)).astype(np.float32) / np.float32(2**24)
    return draws


def _truncated(scores: Floats, decoding: Decoding) -> Floats:
    """Return scores (N, k, V) divided by the temperature, with the words that top_k and top_p cut off at -inf."""
    scores = scores / np.float32(decoding.temperature)
    if decoding.top_k:
        kept = min(decoding.top_k, scores.shape[-1])
        lowest = np.partition(scores, -kept, axis=-1)[..., -kept, None]
        scores = np.where(scores < lowest, np.float32(-np.inf), scores)
    if decoding.top_p < 1:
        order = np.argsort(-scores, axis=-1, kind="stable")
        probabilities = _softmax(np.take_along_axis(scores, order, axis=-1))
        above = probabilities.cumsum(axis=-1, dtype=np.float64).astype(np.float32) - probabilities
        cut_off = np.zeros(scores.shape, np.bool_)
        np.put_along_axis(cut_off, order, above >= np.float32(decoding.top_p), axis=-1)
        scores = np.where(cut_off, np.float32(-np.inf), scores)
    return scores.astype(np.float32)


def _softmax(scores: Floats) -> Floats:
    """Return the softmax of scores (..., V)."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Floats = (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32)
    return result
