"""Scores: ours are NLTK's and the COCO toolkit's, sums of pictures score as the corpus does, and the bootstrap knows luck."""

from __future__ import annotations

import random

import numpy as np
import pytest
from nltk.translate.bleu_score import corpus_bleu

from tasks.metrics import METRICS, ScoredCaption, load, measure
from tasks.metrics.bootstrap import compare, intervals, resampled
from tasks.metrics.ptb import tokenize

WORDS = ["a", "the", "dog", "cat", "runs", "sits", "on", "grass", "red", "ball"]


def corpus(pictures: int, seed: int = 0, noise: float = 0.4, facts: bool = False) -> list[ScoredCaption]:
    """Captions that are a reference with some words replaced."""
    draw = random.Random(seed)
    found = []
    for _ in range(pictures):
        references = [draw.choices(WORDS, k=draw.randint(1, 9)) for _ in range(draw.randint(1, 4))]
        caption = [draw.choice(WORDS) if draw.random() < noise else word for word in draw.choice(references)]
        found.append(ScoredCaption(caption[: draw.randint(0, 9)], references, {"things": []} if facts else None))
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pictures", [1, 3, 60])
def test_bleu_is_nltks(seed: int, pictures: int) -> None:
    """Where each order has a match, and no caption is too short for it: there NLTK counts an n-gram that is not."""
    items = [item for item in corpus(pictures, seed) if len(item.caption) >= 4]
    sure = ["a", "dog", "runs", "on", "the", "grass"]
    items.append(ScoredCaption(sure, [sure]))
    weights = [tuple(1 / n for _ in range(n)) for n in range(1, 5)]
    expected = corpus_bleu([item.references for item in items], [item.caption for item in items], weights)
    assert list(measure("bleu", items).values()) == pytest.approx([100 * float(value) for value in expected], abs=1e-9)


def test_an_empty_caption_scores_nothing_and_breaks_nothing() -> None:
    items = [ScoredCaption([], [["a", "dog"]]), ScoredCaption([], [["a"]])]
    for name, member in METRICS.items():
        if not member.needs_facts:
            assert all(value == 0.0 for value in measure(name, items).values())


# What the COCO caption toolkit (pycocoevalcap 1.2) gives for these, see bench/quality/toolkit.py; but 0 is 0 for BLEU.
THREE = [
    ["a dog runs across the green grass", "the brown dog is running"],
    ["two children play with a ball", "kids play football in a park"],
    ["a man rides a red bicycle", "a cyclist on a road"],
]
TOOLKIT = {
    "identical captions": (["a dog runs"] * 3, [0.255237, 0.197705, 0.181570, 0.0], 0.336157, 0.659105),
    "one caption empty": (
        ["", "two children play with a ball", "a man on a bicycle"],
        [0.634736, 0.559785, 0.484395, 0.456127],
        0.571848,
        2.322185,
    ),
    "one word": (["dog", "children", "man"], [0.013124, 0.0, 0.0, 0.0], 0.267928, 0.531276),
    "its references": ([references[0] for references in THREE], [1.0] * 4, 1.0, 5.227256),
}


@pytest.mark.parametrize("name", TOOLKIT)
def test_scores_are_the_toolkits(name: str) -> None:
    said, bleu, rouge, cider = TOOLKIT[name]
    items = [
        ScoredCaption(tokenize(caption), [tokenize(text) for text in texts])
        for caption, texts in zip(said, THREE, strict=True)
    ]
    assert list(measure("bleu", items).values()) == pytest.approx([100 * value for value in bleu], abs=1e-4)
    assert measure("rouge", items)["rouge_l"] == pytest.approx(100 * rouge, abs=1e-4)
    assert measure("cider", items)["cider"] == pytest.approx(100 * cider, abs=1e-4)


def test_meteor_is_the_toolkits_where_words_and_stems_are_all_that_matches() -> None:
    said, references = ["", "two children play with a ball", "a man on a bicycle"], THREE
    items = [
        ScoredCaption(tokenize(caption), [tokenize(text) for text in texts])
        for caption, texts in zip(said, references, strict=True)
    ]
    assert measure("meteor", items)["meteor"] == pytest.approx(26.6196, abs=1e-3)
    stems = measure("meteor", [ScoredCaption(["running", "dogs"], [["run", "dog"]])])["meteor"]
    exact = measure("meteor", [ScoredCaption(["run", "dog"], [["run", "dog"]])])["meteor"]
    assert exact == pytest.approx(100.0) and stems == pytest.approx(60.0)
    # In two pieces: half of the matches begin a chunk.
    pieces = measure("meteor", [ScoredCaption(["grass", "park", "dog", "boy"], [["dog", "boy", "grass", "park"]])])[
        "meteor"
    ]
    assert pieces == pytest.approx(100 * (1 - 0.6 * 0.5**0.2))


CUT = {
    "A man 's dog can't run ; it 's 5'10 \" tall .": "a man 's dog ca n't run it 's 5 10 tall",
    "They cannot stop": "they can not stop",
    "the U.S. flag & a St. Bernard (big)": "the u.s. flag & a st. bernard -lrb- big -rrb-",
    "a black/white t-shirt , size 10:30 a.m. !": "a black/white t-shirt size 10:30 a.m.",
    "dog...cat -- and - dash\u2014em": "dog cat and dash em",
    "rock 'n' roll , o'clock , \u2018quotes\u2019 it\u2019s": "rock 'n' roll o'clock quotes it 's",
    "na\u00efve caf\u00e9": "na\u00efve caf\u00e9",  # scripts without spaces differ: see test_languages.py
    " . ": "",
}


@pytest.mark.parametrize("text", CUT)
def test_captions_are_cut_as_stanfords_tokeniser_cuts_them(text: str) -> None:
    assert tokenize(text) == CUT[text].split()
    assert tokenize(CUT[text]) == CUT[text].split()  # cut again, as references that were kept are


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
    better = [ScoredCaption(item.references[0], item.references) for item in items[:100]] + items[100:]
    found = {item.score: item for item in compare(metric, items, better)}["bleu4"]
    assert found.second > found.first and found.better == 1.0 and 0 < found.interval[0] < found.interval[1]
    back = {item.score: item for item in compare(metric, better, items)}["bleu4"]
    assert back.better == 0.0 and back.interval == pytest.approx((-found.interval[1], -found.interval[0]))
    same = {item.score: item for item in compare(metric, items, items)}["bleu4"]
    assert same.better == 0.0 and same.interval == (0.0, 0.0)  # no better than itself, surely
    luck = {item.score: item for item in compare(metric, corpus(60, 1), corpus(60, 2))}["bleu1"]
    assert 0.0 < luck.better < 1.0
