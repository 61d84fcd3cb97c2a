"""Decoding: greedy, beam search and sampling over any decoder.

Search uses only the decoder's `start` and `step`, logits and token ids. It decodes many pictures at once, each with its
rows of hypotheses.
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

FORBIDDEN = (NULL, START, UNK)  # tokens that no caption may contain
DEFAULT = Decoding()


class SearchState(Protocol):
    """The methods of a decoder's state that search uses; see decoders.base.State."""

    def expand(self: StateT, rows: int) -> StateT: ...
    def select(self: StateT, rows: Tensor) -> StateT: ...
    def keep(self: StateT, pictures: Tensor) -> StateT: ...


StateT = TypeVar("StateT", bound=SearchState)


class Steps(Protocol[StateT]):
    """The methods of a decoder that search uses; see decoders.base.Decoder."""

    def start(self, grid: Tensor) -> StateT: ...
    def step(self, state: StateT, tokens: Tensor) -> tuple[Tensor, StateT]: ...


@dataclass(frozen=True)
class Caption:
    """A decoded caption.

    tokens: ids, without START and END. log_probability: natural logarithm, of the tokens and of END if the caption
    has one. finished: whether END came within the maximum length.
    """

    tokens: list[int]
    log_probability: float
    finished: bool


def decode(
    decoder: Steps[StateT], grid: Tensor, decoding: Decoding, keys: Sequence[int] | None = None
) -> list[list[Caption]]:
    """Return the `n_best` captions of each picture of grid (N, h, w, C), best first.

    keys: for sampling, an integer per picture that identifies its content: the captions drawn for a picture depend on
    the seed and its key alone, not on the other pictures. The default is 0, 1, ...
    """
    if decoding.search == "sample":
        return sample(decoder, grid, decoding, range(len(grid)) if keys is None else keys)
    return beam_search(decoder, grid, decoding)


@torch.no_grad()
def greedy(decoder: Steps[StateT], grid: Tensor, decoding: Decoding = DEFAULT) -> list[Caption]:
    """Return a caption for each picture of grid (N, h, w, C), of the likeliest next word until END."""
    state = decoder.start(grid)
    words = torch.full((len(grid), 1, 1), START, device=grid.device)
    total = torch.zeros(len(grid), device=grid.device)
    unfinished = torch.ones(len(grid), dtype=torch.bool, device=grid.device)
    for _ in range(decoding.max_length):
        logits, state = decoder.step(state, words[:, :, -1])
        best, last = _rule_out(_log_probabilities(logits), words[:, :, 1:], decoding).max(dim=-1)
        total += torch.where(unfinished, best[:, 0], 0.0)
        words = torch.cat([words, torch.where(unfinished.unsqueeze(1), last, NULL).unsqueeze(-1)], dim=-1)
        unfinished = unfinished & (last[:, 0] != END)
        if not bool(unfinished.any()):
            break
    return [_caption(tokens, score) for tokens, score in zip(words[:, 0, 1:].tolist(), total.tolist(), strict=True)]


@torch.no_grad()
def sample(decoder: Steps[StateT], grid: Tensor, decoding: Decoding, keys: Sequence[int]) -> list[list[Caption]]:
    """Return `n_best` captions of each picture, drawn independently and sorted by falling log-probability.

    That log-probability is the decoder's, before temperature, top_k, top_p and the rules of `decoding` change it. keys:
    an integer per picture, see `decode`.
    """
    rows, device = decoding.n_best, grid.device
    draws = torch.stack([_uniform_draws(decoding.seed, key, (rows, decoding.max_length)) for key in keys]).to(device)
    state = decoder.start(grid).expand(rows)
    words = torch.full((len(grid), rows, 1), START, device=device)
    total = torch.zeros(len(grid), rows, device=device)
    unfinished = torch.ones(len(grid), rows, dtype=torch.bool, device=device)
    for step in range(decoding.max_length):
        logits, state = decoder.step(state, words[:, :, -1])
        log_probabilities = _log_probabilities(logits)
        allowed = _truncate(_rule_out(log_probabilities, words[:, :, 1:], decoding), decoding)
        # Sample by inverting the cumulative distribution, with one uniform number per word.
        cumulative = allowed.softmax(dim=-1).cumsum(dim=-1)
        last = torch.searchsorted(cumulative, draws[:, :, step : step + 1] * cumulative[..., -1:], right=True)
        last = last.clamp_max(cumulative.shape[-1] - 1)
        total += torch.where(unfinished, log_probabilities.gather(-1, last).squeeze(-1), 0.0)
        words = torch.cat([words, torch.where(unfinished.unsqueeze(-1), last, NULL)], dim=-1)
        unfinished = unfinished & (last.squeeze(-1) != END)
        if not bool(unfinished.any()):
            break
    samples = [
        [_caption(tokens, score) for tokens, score in zip(*picture, strict=True)]
        for picture in zip(words[:, :, 1:].tolist(), total.tolist(), strict=True)
    ]
    return [sorted(captions, key=lambda caption: -caption.log_probability) for captions in samples]


def _uniform_draws(seed: int, key: int, shape: tuple[int, int]) -> Tensor:
    """Return uniform numbers in [0, 1) that depend on the seed and the key alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + key) % 2**63)
    return torch.rand(shape, generator=generator)


def _truncate(scores: Tensor, decoding: Decoding) -> Tensor:
    """Return scores (N, k, V) divided by the temperature, with the words that top_k and top_p cut off at -inf."""
    scores = scores / decoding.temperature
    if decoding.top_k:
        lowest = scores.topk(min(decoding.top_k, scores.shape[-1]), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    if decoding.top_p < 1:
        ranked, order = scores.sort(dim=-1, descending=True)
        probability_above = ranked.softmax(dim=-1).cumsum(dim=-1) - ranked.softmax(dim=-1)
        cut_off = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, probability_above >= decoding.top_p)
        scores = scores.masked_fill(cut_off, -torch.inf)
    return scores


@torch.no_grad()
def beam_search(decoder: Steps[StateT], grid: Tensor, decoding: Decoding = DEFAULT) -> list[list[Caption]]:
    """Return the `n_best` best captions of each picture of grid (N, h, w, C), best first.

    Each picture has a beam of `beam` hypotheses, which each hypothesis that ends makes narrower by one. Lengths count
    END. A picture is done when no live hypothesis can still beat its n_best ended ones: the bound is exact, because
    log-probabilities only fall and no length exceeds `max_length`. Where too few hypotheses ended within that length,
    the best live ones are returned as well.
    """
    beams = _Beams(len(grid), decoding, grid.device)
    state = decoder.start(grid)
    last = torch.full((len(grid), 1), START, device=grid.device)  # one hypothesis: others would be the same
    for _ in range(decoding.max_length):
        logits, state = decoder.step(state, last)
        parents, last = beams.advance(_rule_out(_log_probabilities(logits), beams.words, decoding))
        if beams.done():
            break
        state = state.select(parents)
        active = beams.compact()
        if active is not None:
            state, last = state.keep(active), last[active]
    return beams.results()


class _Beams:
    """The hypotheses of N pictures: one each at the start, k each after the first word.

    pictures (N',): indices of the pictures still searched. scores (N', k): log-probabilities of live hypotheses, -inf
    where there is no live one. words (N', k, t): their tokens. widths (N', 1): the live hypotheses that each picture
    may have. ended: for each of the N pictures, its ended hypotheses with their length-normalised scores.
    """

    def __init__(self, pictures: int, decoding: Decoding, device: torch.device) -> None:
        self.beam = decoding.beam
        self.max_length, self.alpha = decoding.max_length, decoding.length_normalisation
        self.n_best = decoding.n_best
        self.pictures = torch.arange(pictures, device=device)
        self.scores = torch.zeros((pictures, 1), device=device)
        self.words = torch.empty((pictures, 1, 0), dtype=torch.long, device=device)
        self.widths = torch.full((pictures, 1), decoding.beam, device=device)
        self.ended: list[list[tuple[float, Caption]]] = [[] for _ in range(pictures)]

    def advance(self, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Extend the hypotheses by a word, and return their parents (N', k) and new words (N', k).

        log_probabilities (N', R, V): of the next word of each hypothesis. Parents are indices of rows R. There are
        fewer than k new hypotheses where R V < k.
        """
        vocabulary = log_probabilities.shape[-1]
        candidates = (self.scores.unsqueeze(-1) + log_probabilities).flatten(1)
        scores, index = candidates.topk(min(self.beam, candidates.shape[1]), dim=1)
        parents, words = index // vocabulary, index % vocabulary
        self.words = torch.cat(
            [self.words.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])), words.unsqueeze(-1)],
            dim=-1,
        )
        rank = torch.arange(scores.shape[1], device=scores.device)
        scores = scores.masked_fill(rank >= self.widths, -torch.inf)
        just_ended = (words == END) & scores.isfinite()
        self._record(just_ended, scores)
        self.widths = self.widths - just_ended.sum(dim=1, keepdim=True)
        self.scores = scores.masked_fill(just_ended, -torch.inf)
        return parents, words

    def done(self) -> bool:
        """Update which pictures' captions can still change, and return whether all are final."""
        best_scores = self.scores.max(dim=1).values.tolist()
        self._can_change = [
            best > -math.inf and best / self.max_length**self.alpha > self._score_to_beat(picture)
            for best, picture in zip(best_scores, self.pictures.tolist(), strict=True)
        ]
        return not any(self._can_change)

    def compact(self) -> Tensor | None:
        """Drop the pictures that are done, once they are a quarter of those searched.

        Returns the indices, among the pictures searched so far, of those that remain; None if nothing was dropped.
        """
        if sum(self._can_change) > 0.75 * len(self._can_change):
            return None
        remaining = torch.tensor(
            [index for index, can_change in enumerate(self._can_change) if can_change], device=self.pictures.device
        )
        self.pictures, self.scores, self.words, self.widths = (
            tensor[remaining] for tensor in (self.pictures, self.scores, self.words, self.widths)
        )
        return remaining

    def results(self) -> list[list[Caption]]:
        """Return the n_best captions of every picture: those that ended, then live ones if too few ended."""
        index_of = {picture: index for index, picture in enumerate(self.pictures.tolist())}
        captions = []
        for picture, ended in enumerate(self.ended):
            best = [caption for _, caption in sorted(ended, key=lambda item: -item[0])][: self.n_best]
            if len(best) < self.n_best and picture in index_of:
                best += self._live_captions(index_of[picture])[: self.n_best - len(best)]
            captions.append(best)
        return captions

    def _live_captions(self, index: int) -> list[Caption]:
        """Return the live hypotheses of the picture at `index` of N', best first.

        All have the same length, so length normalisation would not change their order.
        """
        ranked = sorted(zip(self.scores[index].tolist(), self.words[index].tolist(), strict=True), reverse=True)
        return [Caption(words, score, finished=False) for score, words in ranked if score > -math.inf]

    def _score_to_beat(self, picture: int) -> float:
        """Return the score of the n_best-th ended hypothesis of a picture; -inf if fewer have ended."""
        scores = sorted((score for score, _ in self.ended[picture]), reverse=True)
        return scores[self.n_best - 1] if len(scores) >= self.n_best else -math.inf

    def _record(self, just_ended: Tensor, scores: Tensor) -> None:
        """Add the hypotheses that end with the last word to `ended`; just_ended (N', k) bool, scores (N', k)."""
        length = self.words.shape[-1]
        for index, row in just_ended.nonzero().tolist():
            score = float(scores[index, row])
            caption = Caption(self.words[index, row, :-1].tolist(), score, finished=True)
            self.ended[int(self.pictures[index])].append((score / length**self.alpha, caption))


def _caption(tokens: list[int], score: float) -> Caption:
    """Return the caption of the tokens up to END, or of all if there is no END."""
    finished = END in tokens
    return Caption(tokens[: tokens.index(END)] if finished else tokens, score, finished)


def _log_probabilities(logits: Tensor) -> Tensor:
    """Return the log-softmax of logits in float32, with the tokens that no caption may contain at -inf."""
    scores = torch.log_softmax(logits.float(), dim=-1)
    scores[..., FORBIDDEN] = -torch.inf
    return scores


def _rule_out(scores: Tensor, words: Tensor, decoding: Decoding) -> Tensor:
    """Return scores (N, k, V) of the words after words (N, k, t), with those that `decoding` forbids at -inf.

    Where no word would be left, END remains allowed.
    """
    length = words.shape[-1]
    size = decoding.no_repeat
    if length >= decoding.min_length and not 0 < size <= length:
        return scores
    allowed = scores.clone()
    if length < decoding.min_length:
        allowed[..., END] = -torch.inf
    if 0 < size <= length:
        ngrams = words.unfold(-1, size, 1)  # (N, k, t - size + 1, size)
        prefix = words[..., length - size + 1 :].unsqueeze(-2)  # the words that the next one would make an n-gram
        repeated = (ngrams[..., :-1] == prefix).all(dim=-1)
        forbidden = torch.where(repeated, ngrams[..., -1], NULL)  # NULL is forbidden anyway
        allowed.scatter_(-1, forbidden, -torch.inf)
    none_left = allowed.max(dim=-1).values == -torch.inf
    allowed[..., END] = torch.where(none_left, scores[..., END], allowed[..., END])
    return allowed
