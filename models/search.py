"""Decoding: greedy, beam search and sampling over any decoder.

Search uses only the decoder's `start` and `step`, logits and token ids. It decodes many pictures at once, each with its
rows of hypotheses.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from .allowed_words import log_probabilities_of, rule_out, truncate
from .consensus import by_consensus
from .options import Decoding
from .vocabulary import END, NULL, START

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
    return [captions[0] for captions in run(Greedy(decoder, grid, decoding))]


@torch.no_grad()
def sample(decoder: Steps[StateT], grid: Tensor, decoding: Decoding, keys: Sequence[int]) -> list[list[Caption]]:
    """Return `n_best` captions of each picture, drawn independently and sorted by falling log-probability.

    That log-probability is the decoder's, before temperature, top_k, top_p and the rules of `decoding` change it. keys:
    an integer per picture, see `decode`.
    """
    return run(Sampling(decoder, grid, decoding, uniform_draws(decoding, keys).to(grid.device)))


@torch.no_grad()
def beam_search(decoder: Steps[StateT], grid: Tensor, decoding: Decoding = DEFAULT) -> list[list[Caption]]:
    """Return the `n_best` best captions of each picture of grid (N, h, w, C), best first.

    Each picture has a beam of `beam` hypotheses, which each hypothesis that ends makes narrower by one. Lengths count
    END. A picture is done when no live hypothesis can still beat its best ended ones, as many as are wanted: the bound
    is exact, because log-probabilities only fall and no length exceeds `max_length`. Where too few hypotheses ended
    within that length, the best live ones are returned as well. With a consensus, the captions most like the others
    come first.
    """
    return run(BeamSearch(decoder, grid, decoding))


def steps_between_looks(device: torch.device) -> int:
    """Return after how many words a search looks whether it is done.

    To look at a GPU is to wait until it has done all that was asked of it.
    """
    return 1 if device.type == "cpu" else 4


class Search(Protocol):
    """A search over N pictures, word by word. Only `drop_done` and `results` read values, all else may be a graph's."""

    length: int

    @property
    def device(self) -> torch.device: ...

    @property
    def max_length(self) -> int: ...

    def advance(self) -> None:
        """Extend the captions by a word, without waiting for a value."""
        ...

    def done(self) -> Tensor:
        """Return whether each picture's captions are final, (N',) bool."""
        ...

    def drop_done(self) -> bool:
        """Return whether all pictures' captions are final; where many are, these pictures may be searched no more."""
        ...

    def results(self) -> list[list[Caption]]:
        """Return the captions of every picture, best first."""
        ...


def run(search: Search) -> list[list[Caption]]:
    """Return the captions of a search that has not begun."""
    between = steps_between_looks(search.device)
    while search.length < search.max_length:
        search.advance()
        if search.length % between == 0 and search.drop_done():
            break
    return search.results()


class _Pictures(ABC):
    """The base of searches over N pictures, of which those that are done are dropped once they are a quarter.

    The attributes `of_pictures`, and the decoder's state, have an entry for each of the N' pictures that are left.
    """

    of_pictures: ClassVar[tuple[str, ...]]

    def __init__(self, decoder: Steps[Any], grid: Tensor, decoding: Decoding) -> None:
        self.decoder, self.decoding, self.device = decoder, decoding, grid.device
        self.length, self.max_length = 0, decoding.max_length
        self.state: Any = decoder.start(grid)
        self._left = list(range(len(grid)))  # the index of each of the N' pictures among those searched at first
        self._dropped: dict[int, list[Caption]] = {}  # the captions of the others, by the same index

    @abstractmethod
    def done(self) -> Tensor:
        """Return whether each picture's captions are final, (N',) bool."""

    @abstractmethod
    def captions(self, pictures: Tensor) -> list[list[Caption]]:
        """Return the captions of each of the pictures with indices `pictures` among the N', best first."""

    def drop_done(self) -> bool:
        """Return whether all captions are final; drop the pictures that are done, once they are a quarter."""
        done = self.done().tolist()
        if all(done):
            return True
        if sum(done) >= 0.25 * len(done):
            self._dropped |= self._captions_of([index for index, is_done in enumerate(done) if is_done])
            remaining = torch.tensor([index for index, is_done in enumerate(done) if not is_done], device=self.device)
            self._left = [picture for picture, is_done in zip(self._left, done, strict=True) if not is_done]
            self.state = self.state.keep(remaining)
            for name in self.of_pictures:
                setattr(self, name, getattr(self, name)[remaining])
        return False

    def _captions_of(self, indices: Sequence[int]) -> dict[int, list[Caption]]:
        """Return the captions of the pictures with these indices among the N', by the index that they had at first."""
        captions = self.captions(torch.tensor(indices, dtype=torch.long, device=self.device))
        return {self._left[index]: found for index, found in zip(indices, captions, strict=True)}

    def results(self) -> list[list[Caption]]:
        found = self._dropped | self._captions_of(range(len(self._left)))
        return [found[picture] for picture in sorted(found)]


class _WordByWord(_Pictures):
    """The base of greedy search and sampling: captions (N', k) that are extended by a word each until END.

    words (N', k, t): the tokens so far, NULL after END. total (N', k): their log-probability. unfinished (N', k) bool.
    """

    of_pictures: ClassVar[tuple[str, ...]] = ("words", "last", "total", "unfinished")

    def __init__(self, decoder: Steps[Any], grid: Tensor, decoding: Decoding, rows: int) -> None:
        super().__init__(decoder, grid, decoding)
        shape = (len(grid), rows)
        self.words = torch.empty((*shape, 0), dtype=torch.long, device=self.device)
        self.last = torch.full(shape, START, device=self.device)
        self.total = torch.zeros(shape, device=self.device)
        self.unfinished = torch.ones(shape, dtype=torch.bool, device=self.device)

    @abstractmethod
    def choose(self, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next words (N', k) and their log-probabilities (N', k), given those of all words (N', k, V)."""

    def advance(self) -> None:
        logits, self.state = self.decoder.step(self.state, self.last)
        chosen, score = self.choose(log_probabilities_of(logits))
        self.total = self.total + torch.where(self.unfinished, score, 0.0)
        self.words = torch.cat([self.words, torch.where(self.unfinished, chosen, NULL).unsqueeze(-1)], dim=-1)
        self.last = self.words[:, :, -1]
        self.unfinished = self.unfinished & (chosen != END)
        self.length += 1

    def done(self) -> Tensor:
        return ~self.unfinished.any(dim=1)

    def captions(self, pictures: Tensor) -> list[list[Caption]]:
        captions = [
            [_caption(tokens, score) for tokens, score in zip(*rows, strict=True)]
            for rows in zip(self.words[pictures].tolist(), self.total[pictures].tolist(), strict=True)
        ]
        return [sorted(found, key=lambda caption: -caption.log_probability) for found in captions]


class Greedy(_WordByWord):
    """The search for the likeliest next word."""

    def __init__(self, decoder: Steps[Any], grid: Tensor, decoding: Decoding) -> None:
        super().__init__(decoder, grid, decoding, 1)

    def choose(self, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
        best = rule_out(log_probabilities, self.words, self.decoding).max(dim=-1)
        return best.indices, best.values


class Sampling(_WordByWord):
    """The drawing of `n_best` captions; draws (N', n_best, max_length): a uniform number per word."""

    of_pictures: ClassVar[tuple[str, ...]] = (*_WordByWord.of_pictures, "draws")

    def __init__(self, decoder: Steps[Any], grid: Tensor, decoding: Decoding, draws: Tensor) -> None:
        super().__init__(decoder, grid, decoding, decoding.n_best)
        self.draws, self.state = draws, self.state.expand(decoding.n_best)

    def choose(self, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
        allowed = truncate(rule_out(log_probabilities, self.words, self.decoding), self.decoding)
        # Sample by inverting the cumulative distribution, with one uniform number per word.
        cumulative = allowed.softmax(dim=-1).cumsum(dim=-1)
        draw = self.draws[:, :, self.length].unsqueeze(-1)
        chosen = torch.searchsorted(cumulative, draw * cumulative[..., -1:], right=True)
        chosen = chosen.clamp_max(cumulative.shape[-1] - 1)
        return chosen.squeeze(-1), log_probabilities.gather(-1, chosen).squeeze(-1)


def uniform_draws(decoding: Decoding, keys: Sequence[int]) -> Tensor:
    """Return uniform numbers in [0, 1), (N, n_best, max_length): a picture's depend on the seed and its key alone."""
    shape = (decoding.n_best, decoding.max_length)
    return torch.stack([_uniform_draws(decoding.seed, key, shape) for key in keys])


def _uniform_draws(seed: int, key: int, shape: tuple[int, int]) -> Tensor:
    """Return uniform numbers in [0, 1) that depend on the seed and the key alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + key) % 2**63)
    return torch.rand(shape, generator=generator)


class _Ended(NamedTuple):
    """A hypothesis that ended: its length-normalised score, its log-probability, and its tokens with END and NULL."""

    score: float
    total: float
    words: list[int]


class BeamSearch(_Pictures):
    """The hypotheses of N' pictures: one each at the start, k each after the first word.

    scores (N', k): log-probabilities of live hypotheses, -inf where there is no live one. words (N', k, t): their
    tokens. widths (N', 1): the live hypotheses that each picture may have. Those that ended have a slot each, in the
    order in which they ended: there are `beam` at most, because each makes the beam narrower. ended_scores (N', beam +
    1) float64: their length-normalised scores, -inf where a slot is empty; ended_totals (N', beam + 1) float64: their
    log-probabilities; ended_words (N', beam + 1, max_length). The last slot is for what is thrown away.
    """

    of_pictures: ClassVar[tuple[str, ...]] = (
        "last",
        "scores",
        "words",
        "widths",
        "ended_scores",
        "ended_totals",
        "ended_words",
    )

    def __init__(self, decoder: Steps[Any], grid: Tensor, decoding: Decoding) -> None:
        super().__init__(decoder, grid, decoding)
        pictures, device, beam = len(grid), grid.device, decoding.beam
        self.last = torch.full((pictures, 1), START, device=device)  # one hypothesis: others would be the same
        self.scores = torch.zeros((pictures, 1), device=device)
        self.words = torch.empty((pictures, 1, 0), dtype=torch.long, device=device)
        self.widths = torch.full((pictures, 1), beam, device=device)
        # In float64, because scores are compared that were divided by different lengths.
        self.ended_scores = torch.full((pictures, beam + 1), -torch.inf, dtype=torch.float64, device=device)
        self.ended_totals = torch.zeros_like(self.ended_scores)
        self.ended_words = torch.full((pictures, beam + 1, self.max_length), NULL, device=device)

    def advance(self) -> None:
        logits, self.state = self.decoder.step(self.state, self.last)
        log_probabilities = rule_out(log_probabilities_of(logits), self.words, self.decoding)
        vocabulary = log_probabilities.shape[-1]
        candidates = (self.scores.unsqueeze(-1) + log_probabilities).flatten(1)
        # There are fewer than k new hypotheses where there are fewer candidates.
        scores, index = candidates.topk(min(self.decoding.beam, candidates.shape[1]), dim=1)
        parents, self.last = index // vocabulary, index % vocabulary
        self.words = torch.cat([_gather_rows(self.words, parents), self.last.unsqueeze(-1)], dim=-1)
        self.length += 1
        rank = torch.arange(scores.shape[1], device=self.device)
        scores = scores.masked_fill(rank >= self.widths, -torch.inf)
        just_ended = (self.last == END) & scores.isfinite()
        self._record(just_ended, scores)
        self.widths = self.widths - just_ended.sum(dim=1, keepdim=True)
        self.scores = scores.masked_fill(just_ended, -torch.inf)
        self.state = self.state.select(parents)

    def _record(self, just_ended: Tensor, scores: Tensor) -> None:
        """Put the hypotheses that end with the last word into slots; just_ended (N', k) bool, scores (N', k)."""
        beam = self.decoding.beam
        slots = torch.where(just_ended, beam - self.widths + just_ended.cumsum(dim=1) - 1, beam)
        totals = scores.double()
        normalised = torch.where(just_ended, totals / self.length**self.decoding.length_normalisation, -torch.inf)
        self.ended_scores.scatter_(1, slots, normalised)
        self.ended_totals.scatter_(1, slots, totals)
        into = slots.unsqueeze(-1).expand(-1, -1, self.length)
        self.ended_words[:, :, : self.length].scatter_(1, into, self.words)

    def done(self) -> Tensor:
        best = self.scores.max(dim=1).values.double()
        to_beat = self.ended_scores[:, :-1].topk(self.decoding.wanted, dim=1).values[:, -1]
        can_change: Tensor = best / self.max_length**self.decoding.length_normalisation > to_beat
        can_change &= best.isfinite()
        return ~can_change

    def captions(self, pictures: Tensor) -> list[list[Caption]]:
        """Return the n_best captions of each picture: those that ended, then live ones if too few ended."""
        slots = (self.ended_scores, self.ended_totals, self.ended_words)
        ended = [list(map(_Ended, *of)) for of in zip(*(slot[pictures].tolist() for slot in slots), strict=True)]
        live = zip(self.scores[pictures].tolist(), self.words[pictures].tolist(), strict=True)
        return [self._best(slots, list(zip(*rows, strict=True))) for slots, rows in zip(ended, live, strict=True)]

    def _best(self, slots: Sequence[_Ended], live: Sequence[tuple[float, list[int]]]) -> list[Caption]:
        """Return the n_best captions of a picture. live: the score and the words of each live hypothesis."""
        ended = sorted((slot for slot in slots if slot.score > -math.inf), key=lambda slot: -slot.score)
        found = [_caption(slot.words, slot.total) for slot in ended[: self.decoding.wanted]]
        # All live ones have the same length, so length normalisation would not change their order.
        ranked = sorted((row for row in live if row[0] > -math.inf), reverse=True)
        cut_off = [Caption(words, score, finished=False) for score, words in ranked]
        voters = self.decoding.voters
        return [*by_consensus(found[:voters]), *found[voters:], *cut_off][: self.decoding.n_best]


def _gather_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return the rows with indices rows (N, R') of a tensor (N, R, X)."""
    return tensor.gather(1, rows.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))


def _caption(tokens: list[int], score: float) -> Caption:
    """Return the caption of the tokens up to END, or of all if there is no END."""
    finished = END in tokens
    return Caption(tokens[: tokens.index(END)] if finished else tokens, score, finished)
