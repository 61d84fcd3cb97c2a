"""Scores: ours is NLTK's on any corpus, sums of pictures score as the corpus does, and the bootstrap knows luck."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from nltk.translate.bleu_score import corpus_bleu

from tasks.metrics import METRICS, Scored, load, measure
from tasks.metrics.bootstrap import compare, intervals, resampled

WORDS = ["a", "the", "dog", "cat", "runs", "sits", "on", "grass", "red", "ball"]


def corpus(pictures: int, seed: int = 0, noise: float = 0.4, facts: bool = False) -> list[Scored]:
    """Captions that are a reference with some words replaced."""
    draw = random.Random(seed)
    found = []
    for _ in range(pictures):
        references = [draw.choices(WORDS, k=draw.randint(1, 9)) for _ in range(draw.randint(1, 4))]
        caption = [draw.choice(WORDS) if draw.random() < noise else word for word in draw.choice(references)]
        found.append(Scored(caption[: draw.randint(0, 9)], references, {"things": []} if facts else None))
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pictures", [1, 3, 60])
def test_bleu_is_nltks(seed: int, pictures: int) -> None:
    items = corpus(pictures, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = [tuple(1 / n for _ in range(n)) for n in range(1, 5)]
        expected = corpus_bleu([item.references for item in items], [item.caption for item in items], weights)
    assert list(measure("bleu", items).values()) == pytest.approx([100 * float(value) for value in expected], abs=1e-9)


def test_an_empty_caption_scores_nothing_and_breaks_nothing() -> None:
    items = [Scored([], [["a", "dog"]]), Scored([], [["a"]])]
    assert set(measure("bleu", items).values()) == {0.0}


@pytest.mark.parametrize("name", METRICS)
def test_summed_statistics_score_as_the_corpus_does(name: str) -> None:
    metric, items = load(name), corpus(40, facts=True)
    counted = metric.statistics(items)
    half = counted[:20].sum(axis=0) + counted[20:].sum(axis=0)
    assert set(metric.scores(counted.sum(axis=0))) == set(METRICS[name].scores)
    assert {key: float(value) for key, value in metric.scores(half).items()} == pytest.approx(measure(name, items))
    # A draw that takes every picture once is the corpus; many are scored at once.
    many = metric.scores(np.stack([counted.sum(axis=0)] * 3))
    assert all(value.shape == (3,) and np.allclose(value, measure(name, items)[key]) for key, value in many.items())


def test_resamples_have_as_many_pictures_and_are_repeatable() -> None:
    ones = np.ones((30, 1))
    assert (resampled(ones, 20) == 30).all()
    counted = load("bleu").statistics(corpus(30))
    assert (resampled(counted, 20) == resampled(counted, 20)).all()
    assert (resampled(counted, 20) != resampled(counted, 20, seed=1)).any()


def test_intervals_hold_the_score_and_narrow_with_pictures() -> None:
    metric = load("bleu")
    widths = []
    for pictures in (50, 800):
        items = corpus(pictures)
        low, high = intervals(metric, metric.statistics(items))["bleu1"]
        assert low < measure("bleu", items)["bleu1"] < high
        widths.append(high - low)
    # As the square root of the number of pictures: a quarter, give or take.
    assert 0.15 < widths[1] / widths[0] < 0.4


def test_a_paired_comparison_tells_better_from_luck() -> None:
    metric, items = load("bleu"), corpus(200, noise=0.6)
    better = [Scored(item.references[0], item.references) for item in items[:100]] + items[100:]
    found = {item.score: item for item in compare(metric, items, better)}["bleu4"]
    assert found.second > found.first and found.better == 1.0 and 0 < found.interval[0] < found.interval[1]
    back = {item.score: item for item in compare(metric, better, items)}["bleu4"]
    assert back.better == 0.0 and back.interval == pytest.approx((-found.interval[1], -found.interval[0]))
    same = {item.score: item for item in compare(metric, items, items)}["bleu4"]
    assert same.better == 0.0 and same.interval == (0.0, 0.0)  # no better than itself, surely
    luck = {item.score: item for item in compare(metric, corpus(60, 1), corpus(60, 2))}["bleu1"]
    assert 0.0 < luck.better < 1.0
