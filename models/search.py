"""Decoding by greedy search, beam search or sampling, over the likeliest next words that a decoder gives.

The bookkeeping is in NumPy, so that torch and onnxruntime share it; each runtime implements `Steps` (see torch_steps.py
for torch). Many pictures are decoded at once, each with its rows of hypotheses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .decoding_rules import Floats, Words, rule_out, truncate, uniform_draws
from .options import Decoding
from .vocabulary import END, NULL, START

_MIN_DONE_SHARE = 0.25  # share of the pictures that must be done before they are dropped from the batch


class State(Protocol):
    """The state of a decoder between words: of N pictures, R rows each."""

    @property
    def alphas(self) -> Floats:
        """Return the attention weights of the word just read, (N, R, P); P is 0 for a decoder without attention."""
        ...

    def select(self, rows: Words) -> Any:
        """Return the state of the rows with indices `rows` (N, R') within each picture."""
        ...

    def keep(self, pictures: Words) -> Any:
        """Return the state of the pictures with indices `pictures` (N',)."""
        ...


class StepOutput(NamedTuple):
    """The output of a decoder after a word.

    values (N, R, K): natural log-probabilities of the `words` (N, R, K), the likeliest first; or of all words, K = V.
    Tokens that no caption may contain have -inf. state: the state after the word.
    """

    values: Floats
    words: Words
    state: Any


class Steps(Protocol):
    """The methods of a decoder that search uses."""

    def start(self, grid: Floats) -> Any:
        """Return the state before the first word, R = 1, for grid (N, h, w, C)."""
        ...

    def step(self, state: Any, tokens: Words, shortlist: int) -> StepOutput:
        """Return the `shortlist` likeliest words after tokens (N, R), or all words in order for a shortlist of 0."""
        ...


@dataclass(frozen=True)
class Caption:
    """A decoded caption.

    tokens: ids, without START and END. log_probability: natural logarithm, including END if the caption has one.
    finished: whether END came within the maximum length. token_log_probabilities (T,): of each token, including END.
    """

    tokens: list[int]
    log_probability: float
    finished: bool
    token_log_probabilities: Floats = field(default_factory=lambda: np.zeros(0, np.float32), compare=False, repr=False)

    @property
    def with_end(self) -> list[int]:
        """Return the token ids, with END if the caption has one."""
        return [*self.tokens, END] if self.finished else self.tokens


def decode(
    decoder: Steps, start: State, pictures: int, decoding: Decoding, keys: Sequence[int] | None = None
) -> list[list[Caption]]:
    """Return the captions of each of N pictures, best first: `decoding.num_returned` of them at most.

    start: the state before the first word. pictures: N. keys: for sampling, an integer per picture that identifies its
    content, so that the captions drawn for a picture depend only on the seed and its key, not on the other pictures.
    The default is 0, 1, ...
    """
    search: _Search
    if decoding.search == "sample":
        search = _Sampling(decoder, start, decoding, range(pictures) if keys is None else keys)
    elif decoding.beam == 1:
        search = _Greedy(decoder, start, decoding, pictures)
    else:
        search = _BeamSearch(decoder, start, decoding, pictures)
    while search.length < decoding.max_length:
        search.advance()
        if search.drop_done():
            break
    return search.results()


def teacher_force(
    decoder: Steps, start: State, captions: Sequence[Sequence[Sequence[int]]], with_alphas: bool = False
) -> tuple[Floats, Floats]:
    """Return the log-probability of each token of given captions, and the alphas of the steps before them.

    start: the state before the first word. captions: the token ids of R captions of each of N pictures, with END if a
    caption has one. The log-probabilities are (N, R, T), 0 after a caption's end; the alphas (N, R, T, P), with P = 0
    without `with_alphas`.
    """
    longest = max(len(tokens) for of_picture in captions for tokens in of_picture)
    words = np.full((len(captions), len(captions[0]), longest), NULL)
    for picture, of_picture in enumerate(captions):
        for row, tokens in enumerate(of_picture):
            words[picture, row, : len(tokens)] = tokens
    state = start.select(np.zeros(words.shape[:2], np.int64))
    last, log_probabilities, alphas = np.full(words.shape[:2], START), [], []
    for index in range(longest):
        output = decoder.step(state, last, 0)
        last, state = words[:, :, index], output.state
        log_probabilities.append(np.take_along_axis(output.values, last[:, :, None], axis=2)[:, :, 0])
        alphas.append(state.alphas if with_alphas else np.zeros((*last.shape, 0), np.float32))
    return np.where(words == NULL, np.float32(0), np.stack(log_probabilities, axis=2)), np.stack(alphas, axis=2)


class _History(NamedTuple):
    """The words of hypotheses, (N, R, t) int64, and the log-probability of each, (N, R, t)."""

    words: Words
    log_probabilities: Floats

    def extended(self, output: StepOutput, parents: Words, chosen: Words) -> _History:
        """Return the history of the rows `parents` (N, R'), each with one more word: `chosen` (N, R') of `output`."""
        pictures = np.arange(len(parents))[:, None]

        def longer(so_far: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([so_far[pictures, parents], new[pictures, parents, chosen][:, :, None]], axis=2)

        return _History(longer(self.words, output.words), longer(self.log_probabilities, output.values))

    def keep(self, pictures: Words) -> _History:
        """Return the history of the pictures with indices `pictures` (N',)."""
        return _History(self.words[pictures], self.log_probabilities[pictures])

    def caption(self, picture: int, row: int, log_probability: float) -> Caption:
        """Return a row's caption: its tokens up to END, or all if there is no END."""
        words = self.words[picture, row].tolist()
        finished = END in words
        length = words.index(END) + 1 if finished else len(words)
        tokens = words[: length - 1] if finished else words
        return Caption(tokens, log_probability, finished, self.log_probabilities[picture, row, :length])


class _Search(ABC):
    """The base of searches over N pictures; those that are done are dropped once they are a quarter of the batch.

    Subclasses keep arrays for the N' pictures that are left, such as the last word read, `last` (N', R).
    """

    def __init__(self, decoder: Steps, state: State, decoding: Decoding, pictures: int, rows: int = 1) -> None:
        self.decoder, self.decoding, self.length = decoder, decoding, 0
        self.state: Any = state
        self.history = _History(np.zeros((pictures, rows, 0), np.int64), np.zeros((pictures, rows, 0), np.float32))
        self.last = np.full((pictures, rows), START)
        self._remaining = np.arange(pictures)  # the index of each of the N' pictures among the N
        self._captions: dict[int, list[Caption]] = {}  # the captions of the dropped pictures, by the same index

    @abstractmethod
    def advance(self) -> None:
        """Extend the captions by a word."""

    @abstractmethod
    def done(self) -> npt.NDArray[np.bool_]:
        """Return whether each picture's captions are final, (N',)."""

    @abstractmethod
    def captions(self, picture: int) -> list[Caption]:
        """Return the captions of the picture with this index among the N', best first."""

    def keep(self, pictures: Words) -> None:
        """Continue with only the pictures with indices `pictures` among the N'."""
        self.state, self.history, self.last = (
            self.state.keep(pictures),
            self.history.keep(pictures),
            self.last[pictures],
        )
        self._remaining = self._remaining[pictures]

    def drop_done(self) -> bool:
        """Return whether all captions are final; drop the pictures that are done once they are a quarter."""
        done = self.done()
        if done.all():
            return True
        if done.mean() >= _MIN_DONE_SHARE:
            self._captions |= {
                int(self._remaining[index]): self.captions(index) for index in np.flatnonzero(done).tolist()
            }
            self.keep(np.flatnonzero(~done))
        return False

    def results(self) -> list[list[Caption]]:
        """Return the captions of every picture, best first."""
        self._captions |= {int(picture): self.captions(index) for index, picture in enumerate(self._remaining)}
        return [self._captions[picture] for picture in sorted(self._captions)]


class _WordByWord(_Search):
    """The base of greedy search and sampling, which extend each caption word by word until END.

    total (N', R): the captions' log-probabilities. unfinished (N', R) bool.
    """

    def __init__(self, decoder: Steps, state: State, decoding: Decoding, pictures: int, rows: int = 1) -> None:
        super().__init__(decoder, state, decoding, pictures, rows)
        self.total = np.zeros((pictures, rows), np.float32)
        self.unfinished = np.ones((pictures, rows), np.bool_)

    shortlist: int

    @abstractmethod
    def choose(self, allowed: Floats) -> Words:
        """Return the index of the next word (N', R) among the candidates, from their log-probabilities (N', R, K)."""

    def advance(self) -> None:
        output = self.decoder.step(self.state, self.last, self.shortlist and self.shortlist + self.length)
        chosen = self.choose(rule_out(output.values, output.words, self.history.words, self.decoding))
        rows = np.broadcast_to(np.arange(self.last.shape[1]), self.last.shape)
        self.history = self.history.extended(output, rows, chosen)
        words = self.history.words[:, :, -1]
        words[~self.unfinished] = NULL
        self.total += np.where(self.unfinished, self.history.log_probabilities[:, :, -1], np.float32(0))
        self.unfinished &= words != END
        self.last, self.state = words, output.state
        self.length += 1

    def done(self) -> npt.NDArray[np.bool_]:
        done: npt.NDArray[np.bool_] = np.logical_not(self.unfinished.any(axis=1))
        return done

    def keep(self, pictures: Words) -> None:
        super().keep(pictures)
        self.total, self.unfinished = self.total[pictures], self.unfinished[pictures]

    def captions(self, picture: int) -> list[Caption]:
        rows = range(self.total.shape[1])
        captions = [self.history.caption(picture, row, float(self.total[picture, row])) for row in rows]
        return sorted(captions, key=lambda caption: -caption.log_probability)


class _Greedy(_WordByWord):
    """Greedy search, which takes the likeliest next word."""

    shortlist = 3  # END, the last word, and the last word of each n-gram so far may be ruled out

    def choose(self, allowed: Floats) -> Words:
        best: Words = allowed.argmax(axis=-1)
        return best


class _Sampling(_WordByWord):
    """Sampling, which draws `n_best` captions independently, with a uniform number for each word."""

    shortlist = 0

    def __init__(self, decoder: Steps, state: State, decoding: Decoding, keys: Sequence[int]) -> None:
        shape = (len(keys), decoding.n_best)
        super().__init__(decoder, state.select(np.zeros(shape, np.int64)), decoding, *shape)
        self._draws = np.stack([uniform_draws(decoding, key) for key in keys])

    def choose(self, allowed: Floats) -> Words:
        # Sample by inverting the cumulative distribution.
        scores = truncate(allowed, self.decoding)
        cumulative = np.exp(scores - scores.max(axis=-1, keepdims=True)).cumsum(axis=-1, dtype=np.float64)
        draws = self._draws[:, :, self.length, None] * cumulative[..., -1:]
        chosen: Words = np.minimum(np.count_nonzero(cumulative <= draws, axis=-1), cumulative.shape[-1] - 1)
        return chosen

    def keep(self, pictures: Words) -> None:
        super().keep(pictures)
        self._draws = self._draws[pictures]


class _BeamSearch(_Search):
    """Beam search with `beam` live hypotheses for each picture until it is done.

    A hypothesis ends if its END is among the `beam` best candidates. Ended hypotheses are ordered by length-normalised
    score, with END counted in the length. The beam stays full: other live hypotheses take the place of ended ones. A
    picture is done when no live hypothesis can still beat the `num_searched` best ended. The bound is exact, because
    log-probabilities only fall and no length exceeds `max_length`. If too few ended within that length, the best live
    ones are returned as well.

    scores (N', R): log-probabilities of live hypotheses, -inf where there is none. ended: for each picture,
    (length-normalised score, caption), best first.
    """

    def __init__(self, decoder: Steps, state: State, decoding: Decoding, pictures: int) -> None:
        super().__init__(decoder, state, decoding, pictures)  # one hypothesis, because more would be identical
        self.scores = np.zeros((pictures, 1), np.float32)
        self.ended: list[list[tuple[float, Caption]]] = [[] for _ in range(pictures)]
        self._is_done = np.zeros(pictures, np.bool_)

    def advance(self) -> None:
        beam = self.decoding.beam
        # END, the last word, and the last word of each n-gram so far may be ruled out.
        output = self.decoder.step(self.state, self.last, beam + 2 + self.length)
        allowed = rule_out(output.values, output.words, self.history.words, self.decoding)
        count, _, shortlist = allowed.shape
        candidates = (self.scores[:, :, None] + allowed).reshape(count, -1)
        # At most `beam` of them end, one per row.
        ranked = np.argsort(-candidates, axis=1, kind="stable")[:, : 2 * beam]
        pictures = np.arange(count)[:, None]
        scores, is_end = candidates[pictures, ranked], output.words.reshape(count, -1)[pictures, ranked] == END
        self.length += 1
        self._end(output, ranked, scores, is_end & np.isfinite(scores))
        live = np.argsort(is_end, axis=1, kind="stable")[:, :beam]
        index = ranked[pictures, live]
        self.scores = np.where(is_end[pictures, live], -np.inf, scores[pictures, live]).astype(np.float32)
        parents = index // shortlist
        self.history = self.history.extended(output, parents, index % shortlist)
        self.last, self.state = self.history.words[:, :, -1], output.state.select(parents)

    def _end(self, output: StepOutput, ranked: Words, scores: Floats, ended: npt.NDArray[np.bool_]) -> None:
        """Keep the hypotheses that end with this word; ranked, scores, ended (N', 2 * beam): of the best candidates."""
        limit, shortlist = self.decoding.num_returned, output.words.shape[2]
        # A picture that is done keeps no more hypotheses, or its result would depend on the other pictures.
        new = np.argwhere(ended[:, : self.decoding.beam] & ~self._is_done[:, None])
        for picture, rank in new.tolist():
            index, total = int(ranked[picture, rank]), float(scores[picture, rank])
            row, chosen = divmod(index, shortlist)
            normalised = total / self.length**self.decoding.length_normalisation
            hypotheses = self.ended[picture]
            if len(hypotheses) < limit or normalised > hypotheses[-1][0]:
                values = np.append(self.history.log_probabilities[picture, row], output.values[picture, row, chosen])
                hypotheses.append((normalised, Caption(self.history.words[picture, row].tolist(), total, True, values)))
                hypotheses.sort(key=lambda item: -item[0])
                del hypotheses[limit:]

    def done(self) -> npt.NDArray[np.bool_]:
        longest = self.decoding.max_length**self.decoding.length_normalisation
        best = self.scores.max(axis=1).astype(np.float64) / longest
        number = self.decoding.num_searched
        to_beat = [ended[number - 1][0] if len(ended) >= number else -np.inf for ended in self.ended]
        self._is_done = np.logical_not((best > to_beat) & np.isfinite(best))
        return self._is_done

    def keep(self, pictures: Words) -> None:
        super().keep(pictures)
        self.scores, self.ended = self.scores[pictures], [self.ended[index] for index in pictures]
        self._is_done = self._is_done[pictures]

    def captions(self, picture: int) -> list[Caption]:
        """Return the captions of a picture: those that ended, then live ones if fewer than n_best ended."""
        decoding = self.decoding
        captions = [caption for _, caption in self.ended[picture]]
        if len(captions) < decoding.n_best:
            # All live ones have the same length, so length normalisation does not change their order.
            scores = self.scores[picture]
            live = [row for row in np.argsort(-scores, kind="stable").tolist() if scores[row] > -np.inf]
            captions += [self.history.caption(picture, row, float(scores[row])) for row in live]
        return captions[: decoding.num_returned]
