"""Laws of decoding: beam 1 = greedy, a beam wide enough = brute force, batches change nothing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from models.decoders import DECODERS
from models.decoders.base import make
from models.search import beam_search, greedy
from models.vocabulary import END, NULL, START, UNK

V = 6  # NULL, START, END, UNK and two words


@dataclass(frozen=True)
class MarkovState:
    grid: Tensor
    rows: Tensor

    def expand(self, rows: int) -> MarkovState:
        return MarkovState(self.grid, self.rows.expand(-1, rows))

    def select(self, rows: Tensor) -> MarkovState:
        return MarkovState(self.grid, self.rows.gather(1, rows))

    def keep(self, pictures: Tensor) -> MarkovState:
        return MarkovState(self.grid[pictures], self.rows[pictures])


class Markov:
    """Not a network: logits looked up by the last two words, of a table a picture. Search must not know."""

    def start(self, grid: Tensor) -> MarkovState:
        return MarkovState(grid, torch.zeros(len(grid), 1, dtype=torch.long))

    def step(self, state: MarkovState, tokens: Tensor) -> tuple[Tensor, MarkovState]:
        pictures = torch.arange(len(tokens)).unsqueeze(1)
        logits = state.grid[pictures, state.rows, tokens]
        return logits, MarkovState(state.grid, tokens)


def tables(pictures: int, seed: int, end: float = 0.0) -> Tensor:
    """(pictures, V, V, V) random logits; `end` is added to END's."""
    torch.manual_seed(seed)
    grid = torch.randn(pictures, V, V, V) * 2
    grid[..., END] += end
    return grid


def brute_force(table: Tensor, length: int, alpha: float) -> tuple[list[int], float, bool]:
    """The best of all captions of at most `length` steps; an unfinished one only where no caption can end."""
    best: tuple[float, list[int], float, bool] | None = None
    log = torch.log_softmax(table, dim=-1)
    for count in range(length + 1):
        for words in itertools.product(range(4, V), repeat=count):
            finished = count < length
            ids = [START, *words, *([END] if finished else [])]
            score = sum(
                float(log[ids[place - 2] if place > 1 else 0, ids[place - 1], ids[place]])
                for place in range(1, len(ids))
            )
            rank = score / (len(ids) - 1) ** alpha + (0 if finished else -1e9)
            if best is None or rank > best[0]:
                best = (rank, list(words), score, finished)
    assert best is not None
    return best[1], best[2], best[3]


@pytest.mark.parametrize("seed", range(4))
def test_beam_of_one_is_greedy_on_tables(seed: int) -> None:
    grid = tables(20, seed)
    for one, beams in zip(greedy(Markov(), grid, 7), beam_search(Markov(), grid, 1, 7), strict=True):
        assert beams[0].tokens == one.tokens
        assert beams[0].finished == one.finished
        assert beams[0].log_probability == pytest.approx(one.log_probability, abs=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_beam_of_one_is_greedy_on_decoders(name: str) -> None:
    torch.manual_seed(0)
    decoder = make(name, 8, 40, {"embedding": 16, "hidden": 16}).eval()
    with torch.no_grad():
        decoder.output.weight *= 8
    grid = torch.randn(30, 3, 3, 8)
    ones = [caption.tokens for caption in greedy(decoder, grid)]
    beams = [found[0].tokens for found in beam_search(decoder, grid, 1)]
    assert ones == beams
    assert len({tuple(tokens) for tokens in ones}) > 5


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_is_brute_force(seed: int, alpha: float) -> None:
    length = 5
    grid = tables(8, seed)
    found = beam_search(Markov(), grid, 2**length * 2, length, alpha)
    for picture, captions in enumerate(found):
        tokens, score, finished = brute_force(grid[picture], length, alpha)
        assert captions[0].tokens == tokens
        assert captions[0].log_probability == pytest.approx(score, abs=1e-4)
        assert captions[0].finished == finished


def test_a_wider_beam_never_finds_less_on_these_tables() -> None:
    grid = tables(30, 9)
    narrow, wide = (beam_search(Markov(), grid, beam, 6) for beam in (1, 64))
    pairs = [(a[0], b[0]) for a, b in zip(narrow, wide, strict=True) if a[0].finished]
    gains = [b.log_probability - a.log_probability for a, b in pairs]
    assert min(gains) > -1e-5
    assert max(gains) > 0.1  # greedy is not optimal here, so the law says something


def test_pictures_do_not_disturb_each_other() -> None:
    grid = tables(25, 4)
    together = beam_search(Markov(), grid, 3, 8, 0.7, n_best=3)
    alone = [beam_search(Markov(), grid[n : n + 1], 3, 8, 0.7, n_best=3)[0] for n in range(25)]
    assert [[c.tokens for c in found] for found in together] == [[c.tokens for c in found] for found in alone]


def test_n_best_are_ranked_distinct_and_begin_with_the_best() -> None:
    grid = tables(10, 2)
    best = beam_search(Markov(), grid, 4, 8)
    for one, several in zip(best, beam_search(Markov(), grid, 4, 8, n_best=4), strict=True):
        assert several[0].tokens == one[0].tokens
        scores = [caption.log_probability for caption in several]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(caption.tokens) for caption in several}) == len(several)


def test_without_end_the_best_living_caption_comes_back() -> None:
    grid = tables(5, 1, end=-torch.inf)
    for beam in (1, 3):
        for found in beam_search(Markov(), grid, beam, 6):
            assert len(found[0].tokens) == 6
            assert not found[0].finished


def test_forbidden_words_never_come() -> None:
    grid = tables(20, 3)
    grid[..., [NULL, START, UNK]] += 50.0
    for found in beam_search(Markov(), grid, 3, 8):
        assert not {NULL, START, UNK} & set(found[0].tokens)
