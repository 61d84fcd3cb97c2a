"""Decoding: greedy, beam search and sampling over any decoder.

Knows only `start`, `step`, logits and token ids. Many pictures at once; each keeps as many rows as it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from .options import Decoding
from .vocabulary import END, NULL, START, UNK

FORBIDDEN = (NULL, START, UNK)  # in captions
DEFAULT = Decoding()


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


def decode(
    decoder: Steps[StateT], grid: Tensor, decoding: Decoding, keys: Sequence[int] | None = None
) -> list[list[Caption]]:
    """The `n_best` captions of each picture of grid (N, h, w, C), best first.

    keys: a whole number that stands for each picture (its content), which sampling needs: what is drawn for a
    picture depends on the seed and its key alone, not on its neighbours. 0, 1, ... unless given.
    """
    if decoding.search == "sample":
        return sample(decoder, grid, decoding, range(len(grid)) if keys is None else keys)
    return beam_search(decoder, grid, decoding)


@torch.no_grad()
def greedy(decoder: Steps[StateT], grid: Tensor, decoding: Decoding = DEFAULT) -> list[Caption]:
    """The likeliest next word until END, for each picture of grid (N, h, w, C)."""
    state = decoder.start(grid)
    words = torch.full((len(grid), 1, 1), START, device=grid.device)
    total = torch.zeros(len(grid), device=grid.device)
    going = torch.ones(len(grid), dtype=torch.bool, device=grid.device)
    for _ in range(decoding.max_length):
        logits, state = decoder.step(state, words[:, :, -1])
        best, last = _rule_out(_log_probabilities(logits), words[:, :, 1:], decoding).max(dim=-1)
        total += torch.where(going, best[:, 0], 0.0)
        words = torch.cat([words, torch.where(going.unsqueeze(1), last, NULL).unsqueeze(-1)], dim=-1)
        going = going & (last[:, 0] != END)
        if not bool(going.any()):
            break
    return [_caption(row, score) for row, score in zip(words[:, 0, 1:].tolist(), total.tolist(), strict=True)]


@torch.no_grad()
def sample(decoder: Steps[StateT], grid: Tensor, decoding: Decoding, keys: Sequence[int]) -> list[list[Caption]]:
    """`n_best` captions of each picture, drawn independently and ordered by the decoder's own log-probability.

    That log-probability is of the words as the decoder gave them, before temperature, top_k and top_p.
    """
    rows, device = decoding.n_best, grid.device
    draws = torch.stack([_draws(decoding.seed, key, (rows, decoding.max_length)) for key in keys]).to(device)
    state = decoder.start(grid).expand(rows)
    words = torch.full((len(grid), rows, 1), START, device=device)
    total = torch.zeros(len(grid), rows, device=device)
    going = torch.ones(len(grid), rows, dtype=torch.bool, device=device)
    for time in range(decoding.max_length):
        logits, state = decoder.step(state, words[:, :, -1])
        own = _log_probabilities(logits)
        allowed = _truncated(_rule_out(own, words[:, :, 1:], decoding), decoding)
        # By the inverse of the distribution function: one uniform number a word.
        shares = allowed.softmax(dim=-1).cumsum(dim=-1)
        last = torch.searchsorted(shares, draws[:, :, time : time + 1] * shares[..., -1:], right=True)
        last = last.clamp_max(shares.shape[-1] - 1)
        total += torch.where(going, own.gather(-1, last).squeeze(-1), 0.0)
        words = torch.cat([words, torch.where(going.unsqueeze(-1), last, NULL)], dim=-1)
        going = going & (last.squeeze(-1) != END)
        if not bool(going.any()):
            break
    found = [
        [_caption(row, score) for row, score in zip(*picture, strict=True)]
        for picture in zip(words[:, :, 1:].tolist(), total.tolist(), strict=True)
    ]
    return [sorted(captions, key=lambda caption: -caption.log_probability) for captions in found]


def _draws(seed: int, key: int, shape: tuple[int, int]) -> Tensor:
    """Uniform numbers of [0, 1) that are a function of the seed and the key."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + key) % 2**63)
    return torch.rand(shape, generator=generator)


def _truncated(scores: Tensor, decoding: Decoding) -> Tensor:
    """scores (N, k, V) by temperature, with all but the likeliest words at -inf."""
    scores = scores / decoding.temperature
    if decoding.top_k:
        least = scores.topk(min(decoding.top_k, scores.shape[-1]), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if decoding.top_p < 1:
        ranked, order = scores.sort(dim=-1, descending=True)
        before = ranked.softmax(dim=-1).cumsum(dim=-1) - ranked.softmax(dim=-1)
        out = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, before >= decoding.top_p)
        scores = scores.masked_fill(out, -torch.inf)
    return scores


@torch.no_grad()
def beam_search(decoder: Steps[StateT], grid: Tensor, decoding: Decoding = DEFAULT) -> list[list[Caption]]:
    """The `n_best` best captions of each picture of grid (N, h, w, C), best first.

    Each picture keeps `beam` hypotheses; one that ends gives up its place. A length counts END. A picture is done
    when no living hypothesis can still beat its n_best ended ones: the bound is exact, because log-probabilities
    only fall and no length exceeds `max_length`. Where END never came, the best living one is returned.
    """
    search = _Beams(len(grid), decoding, grid.device)
    state = decoder.start(grid)
    last = torch.full((len(grid), 1), START, device=grid.device)  # one hypothesis: more would repeat it
    for _ in range(decoding.max_length):
        logits, state = decoder.step(state, last)
        parents, last = search.advance(_rule_out(_log_probabilities(logits), search.words, decoding))
        if search.done():
            break
        state = state.select(parents)
        alive = search.compact()
        if alive is not None:
            state, last = state.keep(alive), last[alive]
    return search.results()


class _Beams:
    """The hypotheses of N pictures: one each to begin with, k after the first words.

    alive (N',): which pictures are still searched. scores (N', k): log-probabilities of living hypotheses, -inf
    for a place given up. words (N', k, t): their tokens. ended: of all pictures, what has ended.
    """

    def __init__(self, pictures: int, decoding: Decoding, device: torch.device) -> None:
        beam = self.beam = decoding.beam
        self.max_length, self.alpha = decoding.max_length, decoding.length_normalisation
        self.n_best = decoding.n_best
        self.alive = torch.arange(pictures, device=device)
        self.scores = torch.zeros((pictures, 1), device=device)
        self.words = torch.empty((pictures, 1, 0), dtype=torch.long, device=device)
        self.places = torch.full((pictures, 1), beam, device=device)  # living hypotheses a picture may have
        self.ended: list[list[tuple[float, Caption]]] = [[] for _ in range(pictures)]

    def advance(self, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """One word further: (N', R, V) -> parents (N', k) and words (N', k) of the new hypotheses, fewer if R V < k."""
        vocabulary = log_probabilities.shape[-1]
        candidates = (self.scores.unsqueeze(-1) + log_probabilities).flatten(1)
        scores, index = candidates.topk(min(self.beam, candidates.shape[1]), dim=1)
        parents, words = index // vocabulary, index % vocabulary
        self.words = torch.cat(
            [self.words.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])), words.unsqueeze(-1)],
            dim=-1,
        )
        rank = torch.arange(scores.shape[1], device=scores.device)
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
    scores[..., FORBIDDEN] = -torch.inf
    return scores


def _rule_out(scores: Tensor, words: Tensor, decoding: Decoding) -> Tensor:
    """scores (N, k, V) after words (N, k, t), with the words that `decoding` forbids at -inf.

    Where that would leave no word at all, END stays.
    """
    length = words.shape[-1]
    size = decoding.no_repeat
    if length >= decoding.min_length and not 0 < size <= length:
        return scores
    ruled = scores.clone()
    if length < decoding.min_length:
        ruled[..., END] = -torch.inf
    if 0 < size <= length:
        grams = words.unfold(-1, size, 1)  # (N, k, t - size + 1, size)
        begun = words[..., length - size + 1 :].unsqueeze(-2)
        repeated = (grams[..., :-1] == begun).all(dim=-1)
        last = torch.where(repeated, grams[..., -1], NULL)  # NULL never comes anyway
        ruled.scatter_(-1, last, -torch.inf)
    stuck = ruled.max(dim=-1).values == -torch.inf
    ruled[..., END] = torch.where(stuck, scores[..., END], ruled[..., END])
    return ruled
