"""Laws of decoding: beam 1 = greedy, a beam wide enough = brute force, batches change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.captioned import settings_of
from models.decoders import DECODERS
from models.decoders.base import make
from models.options import Decoding
from models.search import Caption
from models.torch_steps import decode
from models.vocabulary import END, FORBIDDEN, NULL, START, UNK

V = 6  # NULL, START, END, UNK and two words


def beam_search(decoder: Any, grid: Tensor, decoding: Decoding = Decoding()) -> list[list[Caption]]:  # noqa: B008
    return decode(decoder, grid, decoding)


def sample(decoder: Any, grid: Tensor, decoding: Decoding, keys: Sequence[int]) -> list[list[Caption]]:
    return decode(decoder, grid, decoding, keys)


@torch.no_grad()
def greedy(decoder: Any, grid: Tensor, decoding: Decoding = Decoding()) -> list[Caption]:  # noqa: B008
    """The likeliest next word until END, one picture and one word at a time."""
    captions = []
    for picture in range(len(grid)):
        state, words, total = decoder.start(grid[picture : picture + 1]), [START], 0.0
        while words[-1] != END and len(words) <= decoding.max_length:
            logits, state = decoder.step(state, torch.tensor([words[-1:]]))
            scores = torch.log_softmax(logits[0, 0].float(), dim=-1)
            scores[list(FORBIDDEN)] = -torch.inf
            words.append(int(scores.argmax()))
            total += float(scores[words[-1]])
        finished = words[-1] == END
        captions.append(Caption(words[1:-1] if finished else words[1:], total, finished))
    return captions


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
    for one, beams in zip(
        greedy(Markov(), grid, Decoding(max_length=7)),
        beam_search(Markov(), grid, Decoding(beam=1, max_length=7)),
        strict=True,
    ):
        assert beams[0].tokens == one.tokens
        assert beams[0].finished == one.finished
        assert beams[0].log_probability == pytest.approx(one.log_probability, abs=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_beam_of_one_is_greedy_on_decoders(name: str) -> None:
    torch.manual_seed(0)
    decoder = make(name, 8, 40, {"embedding": 16, "hidden": 16}).eval()
    with torch.no_grad():
        decoder.head.get_parameter("weight").mul_(8)
    grid = torch.randn(30, 3, 3, 8)
    ones = [caption.tokens for caption in greedy(decoder, grid)]
    beams = [found[0].tokens for found in beam_search(decoder, grid, Decoding(beam=1))]
    assert ones == beams
    assert len({tuple(tokens) for tokens in ones}) > 5


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_is_brute_force(seed: int, alpha: float) -> None:
    length = 5
    grid = tables(8, seed)
    found = beam_search(Markov(), grid, Decoding(beam=2**length * 2, max_length=length, length_normalisation=alpha))
    for picture, captions in enumerate(found):
        tokens, score, finished = brute_force(grid[picture], length, alpha)
        assert captions[0].tokens == tokens
        assert captions[0].log_probability == pytest.approx(score, abs=1e-4)
        assert captions[0].finished == finished


def full_beam(table: Tensor, beam: int, length: int, alpha: float) -> tuple[list[int], float] | None:
    """The best ended caption of a beam that stays full: candidates in plain Python, all ended ones kept."""
    log = torch.log_softmax(table, dim=-1)
    log[..., list(FORBIDDEN)] = -torch.inf
    live: list[tuple[float, list[int]]] = [(0.0, [START])]
    ended: list[tuple[float, float, list[int]]] = []
    for count in range(1, length + 1):
        candidates = [
            (score + float(log[ids[-2] if len(ids) > 1 else 0, ids[-1], word]), [*ids, word])
            for score, ids in live
            for word in (END, 4, 5)
        ]
        candidates.sort(key=lambda item: -item[0])
        ended += [(score / count**alpha, score, ids[1:-1]) for score, ids in candidates[:beam] if ids[-1] == END]
        live = [(score, ids) for score, ids in candidates if ids[-1] != END][:beam]
    return max(ended)[2:0:-1] if ended else None


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_a_narrow_beam_stays_full(beam: int, alpha: float) -> None:
    """Each hypothesis that ends takes no other's place; searching on until nothing can win changes nothing."""
    grid = tables(50, 21, end=0.5)
    found = beam_search(Markov(), grid, Decoding(beam=beam, max_length=8, length_normalisation=alpha))
    for picture, captions in enumerate(found):
        best = full_beam(grid[picture], beam, 8, alpha)
        if best is not None:
            assert captions[0].finished and captions[0].tokens == best[0]
            assert captions[0].log_probability == pytest.approx(best[1], abs=1e-4)


def test_a_wider_beam_never_finds_less_on_these_tables() -> None:
    grid = tables(30, 9)
    narrow, wide = (beam_search(Markov(), grid, Decoding(beam=beam, max_length=6)) for beam in (1, 64))
    pairs = [(a[0], b[0]) for a, b in zip(narrow, wide, strict=True) if a[0].finished]
    gains = [b.log_probability - a.log_probability for a, b in pairs]
    assert min(gains) > -1e-5
    assert max(gains) > 0.1  # greedy is not optimal here, so the law says something


@pytest.mark.parametrize("neighbours", [False, True])
def test_pictures_do_not_disturb_each_other(neighbours: bool) -> None:
    grid = tables(25, 4)
    decoding = Decoding(beam=3, max_length=8, length_normalisation=0.7, n_best=3, neighbours=neighbours)
    together = beam_search(Markov(), grid, decoding)
    alone = [beam_search(Markov(), grid[n : n + 1], decoding)[0] for n in range(25)]
    assert [[c.tokens for c in found] for found in together] == [[c.tokens for c in found] for found in alone]


def test_n_best_are_ranked_distinct_and_begin_with_the_best() -> None:
    grid = tables(10, 2)
    best = beam_search(Markov(), grid, Decoding(beam=4, max_length=8))
    for one, several in zip(best, beam_search(Markov(), grid, Decoding(beam=4, max_length=8, n_best=4)), strict=True):
        assert several[0].tokens == one[0].tokens
        scores = [caption.log_probability for caption in several]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(caption.tokens) for caption in several}) == len(several)


def test_without_end_the_best_living_caption_comes_back() -> None:
    grid = tables(5, 1, end=-torch.inf)
    for beam in (1, 3):
        for found in beam_search(Markov(), grid, Decoding(beam=beam, max_length=6)):
            assert len(found[0].tokens) == 6
            assert not found[0].finished


def test_forbidden_words_never_come() -> None:
    grid = tables(20, 3)
    grid[..., [NULL, START, UNK]] += 50.0
    for found in beam_search(Markov(), grid, Decoding(max_length=8)):
        assert not {NULL, START, UNK} & set(found[0].tokens)


SAMPLING = Decoding(search="sample", max_length=8, n_best=3, seed=7)


def test_sampling_draws_by_the_decoders_own_probabilities() -> None:
    """The first word of many draws has the distribution of the table's first row."""
    grid = tables(1, 5)
    grid[..., [NULL, START, UNK]] = -torch.inf
    draws = 4000
    found = sample(Markov(), grid, Decoding(search="sample", max_length=1, n_best=draws), [3])[0]
    expected = torch.softmax(grid[0, 0, START], dim=-1)
    for word in (4, 5):
        share = sum(caption.tokens == [word] for caption in found) / draws
        assert share == pytest.approx(float(expected[word]), abs=0.03)
    assert sum(caption.tokens == [] for caption in found) / draws == pytest.approx(float(expected[END]), abs=0.03)


def test_samples_depend_on_seed_and_picture_alone() -> None:
    grid = tables(12, 6)
    keys = [100 + n for n in range(12)]
    together = decode(Markov(), grid, SAMPLING, keys)
    alone = [decode(Markov(), grid[n : n + 1], SAMPLING, keys[n : n + 1])[0] for n in range(12)]
    assert [[c.tokens for c in found] for found in together] == [[c.tokens for c in found] for found in alone]
    other = decode(Markov(), grid, Decoding(search="sample", max_length=8, n_best=3, seed=8), keys)
    assert [[c.tokens for c in found] for found in together] != [[c.tokens for c in found] for found in other]


def test_sampled_captions_tell_the_decoders_log_probability() -> None:
    grid = tables(6, 8)
    log = _log_of(grid)
    decoding = Decoding(search="sample", max_length=6, n_best=4, temperature=0.5, top_k=3)
    for picture, found in enumerate(sample(Markov(), grid, decoding, range(6))):
        for caption in found:
            ids = [START, *caption.tokens, *([END] if caption.finished else [])]
            places = range(1, len(ids))
            told = sum(float(log[picture, ids[n - 2] if n > 1 else 0, ids[n - 1], ids[n]]) for n in places)
            assert caption.log_probability == pytest.approx(told, abs=1e-4)
        scores = [caption.log_probability for caption in found]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("narrowed", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_sampling_narrowed_to_one_word_is_greedy(narrowed: dict[str, float]) -> None:
    grid = tables(15, 10)
    ones = [caption.tokens for caption in greedy(Markov(), grid, Decoding(max_length=8))]
    found = sample(Markov(), grid, Decoding(search="sample", max_length=8, **narrowed), range(15))  # type: ignore[arg-type]
    assert [captions[0].tokens for captions in found] == ones


def test_top_p_keeps_the_smallest_set_that_makes_the_share() -> None:
    grid = torch.full((1, V, V, V), -torch.inf)
    grid[..., [END, 4, 5]] = torch.tensor([0.2, 0.5, 0.3]).log()
    kept = {}
    for share in (0.4, 0.6, 0.9):
        found = sample(Markov(), grid, Decoding(search="sample", max_length=1, n_best=300, top_p=share), [0])[0]
        kept[share] = {tuple(caption.tokens) for caption in found}
    assert kept == {0.4: {(4,)}, 0.6: {(4,), (5,)}, 0.9: {(4,), (5,), ()}}


SEARCHES = [Decoding(beam=1), Decoding(beam=4, n_best=4), SAMPLING]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_comes_twice(search: Decoding, size: int) -> None:
    grid = tables(30, 11, end=-2.0)
    plain = [c for found in decode(Markov(), grid, replace(search, max_length=12)) for c in found]
    ruled = [c for found in decode(Markov(), grid, replace(search, max_length=12, no_repeat=size)) for c in found]
    assert any(_repeats(caption.tokens, size) for caption in plain)
    assert not any(_repeats(caption.tokens, size) for caption in ruled)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("size", [0, 3])
def test_no_word_follows_itself(search: Decoding, size: int) -> None:
    grid = tables(30, 11, end=-2.0)
    search = replace(search, max_length=12, no_repeat=size)
    plain = [c for found in decode(Markov(), grid, search) for c in found]
    ruled = [c for found in decode(Markov(), grid, replace(search, no_echo=True)) for c in found]
    assert any(_echoes(caption.tokens) for caption in plain)
    assert not any(_echoes(caption.tokens) for caption in ruled)
    assert not size or not any(_repeats(caption.tokens, size) for caption in ruled)


@pytest.mark.parametrize("search", SEARCHES)
def test_no_caption_ends_before_its_least_length(search: Decoding) -> None:
    grid = tables(30, 12, end=1.0)
    plain = [c for found in decode(Markov(), grid, search) for c in found]
    ruled = [c for found in decode(Markov(), grid, replace(search, min_length=5)) for c in found]
    assert min(len(caption.tokens) for caption in plain) < 5
    assert min(len(caption.tokens) for caption in ruled) >= 5


def test_neighbours_are_given_all_that_ended() -> None:
    grid = tables(40, 16, end=-1.0)
    search = Decoding(beam=6, length_normalisation=0.7, max_length=9)
    whole = beam_search(Markov(), grid, replace(search, neighbours=True))
    assert [captions[0] for captions in whole] == [captions[0] for captions in beam_search(Markov(), grid, search)]
    for captions, best in zip(whole, beam_search(Markov(), grid, replace(search, n_best=6)), strict=True):
        ended = [caption for caption in best if caption.finished]
        assert captions[: len(ended) or 1] == (ended or best[:1])
        assert len(captions) == 1 or all(caption.finished for caption in captions)
        scores = [caption.log_probability / len(caption.with_end) ** 0.7 for caption in captions]
        assert scores == sorted(scores, reverse=True)
    assert max(map(len, whole)) > 6


def test_sampling_consults_no_neighbours_and_no_search_has_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="neighbours: they rank captions of a beam"):
        Decoding(search="sample", neighbours=True)
    with pytest.raises(ValueError, match="there is no 'nonsense': use beam or sample"):
        Decoding(search="nonsense")  # type: ignore[arg-type]
    evaluated = Decoding(beam=4, neighbours=True)
    assert settings_of(evaluated, {"temperature": 1.0}) == replace(evaluated, search="sample", neighbours=False)
    with pytest.raises(ValueError, match="seed is for sampling: give temperature"):
        settings_of(evaluated, {"seed": 3})
    assert settings_of(evaluated, {"seed": 3, "temperature": 1.0}).seed == 3


def _log_of(grid: Tensor) -> Tensor:
    return torch.log_softmax(grid, dim=-1)


def _echoes(tokens: list[int]) -> bool:
    return any(word == before for before, word in itertools.pairwise(tokens))


def _repeats(tokens: list[int], size: int) -> bool:
    grams = [tuple(tokens[n : n + size]) for n in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)
