"""Decoding: greedy and beam search over any decoder.

Knows only `start`, `step`, logits and token ids. Many pictures at once; each keeps `beam` rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from .vocabulary import END, NULL, START, UNK

_FORBIDDEN = (NULL, START, UNK)


class SearchState(Protocol):
    """A decoder's state, as far as search handles it; see decoders.base.State."""

    def expand(self: StateT, rows: int) -> StateT: ...
    def select(self: StateT, rows: Tensor) -> StateT: ...
    def keep(self: StateT, pictures: Tensor) -> StateT: ...


StateT = TypeVar("StateT", bound=SearchState)


class Steps(Protocol[StateT]):
    """A decoder, as far as search handles it."""

    def start(self, grid: Tensor) -> StateT: ...
    def step(self, state: StateT, tokens: Tensor) -> tuple[Tensor, StateT]: ...


@dataclass(frozen=True)
class Caption:
    """A decoded caption.

    tokens: ids, without START and END. log_probability: natural logarithm, of the tokens and of END where
    it came. finished: whether END came within the length allowed.
    """

    tokens: list[int]
    log_probability: float
    finished: bool


@torch.no_grad()
def greedy(decoder: Steps[StateT], grid: Tensor, max_length: int = 20) -> list[Caption]:
    """The likeliest next word until END, for each picture of grid (N, h, w, C); `max_length` steps at most."""
    state = decoder.start(grid)
    last = torch.full((len(grid), 1), START, device=grid.device)
    total = torch.zeros(len(grid), device=grid.device)
    going = torch.ones(len(grid), dtype=torch.bool, device=grid.device)
    words = []
    for _ in range(max_length):
        logits, state = decoder.step(state, last)
        best, last = _log_probabilities(logits).max(dim=-1)
        total += torch.where(going, best[:, 0], 0.0)
        words.append(torch.where(going, last[:, 0], NULL))
        going = going & (last[:, 0] != END)
        if not bool(going.any()):
            break
    rows = torch.stack(words, dim=1).tolist()
    return [_caption(row, score) for row, score in zip(rows, total.tolist(), strict=True)]


@torch.no_grad()
def beam_search(
    decoder: Steps[StateT],
    grid: Tensor,
    beam: int = 3,
    max_length: int = 20,
    length_normalisation: float = 0.0,
    n_best: int = 1,
) -> list[list[Caption]]:
    """The `n_best` best captions of each picture of grid (N, h, w, C), best first.

    Each picture keeps `beam` hypotheses; one that ends gives up its place. Hypotheses are ranked by
    log-probability / length ** length_normalisation, END counted in the length. A picture is done when no
    living hypothesis can still beat its n_best ended ones: the bound is exact, because log-probabilities
    only fall and no length exceeds `max_length`. Where END never came, the best living one is returned.
    """
    search = _Beams(len(grid), beam, max_length, length_normalisation, n_best, grid.device)
    state = decoder.start(grid).expand(beam)
    last = torch.full((len(grid), beam), START, device=grid.device)
    for _ in range(max_length):
        logits, state = decoder.step(state, last)
        parents, last = search.advance(_log_probabilities(logits))
        if search.done():
            break
        state = state.select(parents)
        alive = search.compact()
        if alive is not None:
            state, last = state.keep(alive), last[alive]
    return search.results()


class _Beams:
    """The hypotheses of N pictures with k beams each.

    alive (N',): which pictures are still searched. scores (N', k): log-probabilities of living hypotheses, -inf
    for a place given up. words (N', k, t): their tokens. ended: of all pictures, what has ended.
    """

    def __init__(
        self, pictures: int, beam: int, max_length: int, alpha: float, n_best: int, device: torch.device
    ) -> None:
        self.beam, self.max_length, self.alpha, self.n_best = beam, max_length, alpha, min(n_best, beam)
        self.alive = torch.arange(pictures, device=device)
        self.scores = torch.full((pictures, beam), -torch.inf, device=device)
        self.scores[:, 0] = 0.0  # one hypothesis to begin with: the others would repeat it
        self.words = torch.empty((pictures, beam, 0), dtype=torch.long, device=device)
        self.places = torch.full((pictures, 1), beam, device=device)  # living hypotheses a picture may have
        self.ended: list[list[tuple[float, Caption]]] = [[] for _ in range(pictures)]

    def advance(self, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """One word further: (N', k, V) -> parents (N', k) and words (N', k) of the new hypotheses."""
        vocabulary = log_probabilities.shape[-1]
        candidates = (self.scores.unsqueeze(-1) + log_probabilities).flatten(1)
        scores, index = candidates.topk(self.beam, dim=1)
        parents, words = index // vocabulary, index % vocabulary
        self.words = torch.cat(
            [self.words.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])), words.unsqueeze(-1)],
            dim=-1,
        )
        rank = torch.arange(self.beam, device=scores.device)
        scores = scores.masked_fill(rank >= self.places, -torch.inf)
        over = (words == END) & scores.isfinite()
        self._record(over, scores)
        self.places = self.places - over.sum(dim=1, keepdim=True)
        self.scores = scores.masked_fill(over, -torch.inf)
        return parents, words

    def done(self) -> bool:
        """Drop the pictures whose captions can no longer change; True where none is left to search."""
        bound = self.scores.max(dim=1).values.tolist()
        self._open = [
            best > -math.inf and best / self.max_length**self.alpha > self._to_beat(picture)
            for best, picture in zip(bound, self.alive.tolist(), strict=True)
        ]
        return not any(self._open)

    def compact(self) -> Tensor | None:
        """Index of the pictures still searched, once a quarter of them are done; None before."""
        if sum(self._open) > 0.75 * len(self._open):
            return None
        kept = torch.tensor([place for place, is_open in enumerate(self._open) if is_open], device=self.alive.device)
        self.alive, self.scores, self.words, self.places = (
            tensor[kept] for tensor in (self.alive, self.scores, self.words, self.places)
        )
        return kept

    def results(self) -> list[list[Caption]]:
        """The n_best captions of every picture: those that ended, and living ones only where these are too few."""
        living = {picture: place for place, picture in enumerate(self.alive.tolist())}
        captions = []
        for picture, ended in enumerate(self.ended):
            best = [caption for _, caption in sorted(ended, key=lambda item: -item[0])][: self.n_best]
            if len(best) < self.n_best and picture in living:
                best += self._living(living[picture])[: self.n_best - len(best)]
            captions.append(best)
        return captions

    def _living(self, place: int) -> list[Caption]:
        """The living hypotheses of a picture, best first. All are of one length, so alpha does not matter."""
        ranked = sorted(zip(self.scores[place].tolist(), self.words[place].tolist(), strict=True), reverse=True)
        return [Caption(words, score, finished=False) for score, words in ranked if score > -math.inf]

    def _to_beat(self, picture: int) -> float:
        scores = sorted((score for score, _ in self.ended[picture]), reverse=True)
        return scores[self.n_best - 1] if len(scores) >= self.n_best else -math.inf

    def _record(self, over: Tensor, scores: Tensor) -> None:
        length = self.words.shape[-1]
        for place, row in over.nonzero().tolist():
            score = float(scores[place, row])
            caption = Caption(self.words[place, row, :-1].tolist(), score, finished=True)
            self.ended[int(self.alive[place])].append((score / length**self.alpha, caption))


def _caption(row: list[int], score: float) -> Caption:
    finished = END in row
    return Caption(row[: row.index(END)] if finished else row, score, finished)


def _log_probabilities(logits: Tensor) -> Tensor:
    """log softmax in float32, with the words that no caption may hold ruled out."""
    scores = torch.log_softmax(logits.float(), dim=-1)
    scores[..., _FORBIDDEN] = -torch.inf
    return scores
