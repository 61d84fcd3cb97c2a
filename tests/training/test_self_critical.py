"""Self-critical training: the reward is CIDEr-D by anyone's count, the gradient that of the expected reward."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from models.decoders.base import make
from models.ngrams import Frequencies, Ids
from models.search import Caption
from models.vocabulary import END, NULL, START, Vocabulary
from tasks.common.errors import AttendError
from tasks.config.training import SelfCriticalConfig
from tasks.data.caption_files import read_captions, read_frequencies
from tasks.metrics import ScoredCaption, measure
from tasks.metrics.cider import cider_d
from tasks.training import loop as fitting
from tasks.training import outputs as trained
from tasks.training.batches import Batch
from tasks.training.dev import DevEvaluator
from tasks.training.objectives import Count
from tasks.training.reinforce_decoder import SelfCriticalLoss, as_tokens, log_likelihood, others_mean
from tasks.training.rewards import Rewards
from tests.support import artifacts, names_of, plan, run_stage, small

Words = list[int]


def by_dictionaries(caption: Words, references: list[Words], pictures: list[list[Words]]) -> float:
    """CIDEr-D as its papers define it, n-gram by n-gram in dictionaries."""

    def grams(words: Words, n: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))

    def vector(words: Words, n: int) -> dict[tuple[int, ...], float]:
        return {
            gram: count * (math.log(len(pictures)) - math.log(max(1, sum(
                any(gram in grams(reference, n) for reference in picture) for picture in pictures
            ))))
            for gram, count in grams(words, n).items()
        }  # fmt: skip

    total = 0.0
    told = [reference for reference in references if reference]
    for n, reference in itertools.product((1, 2, 3, 4), told):
        ours, true = vector(caption, n), vector(reference, n)
        product = sum(min(ours[g], true.get(g, 0)) * true.get(g, 0) for g in ours)
        norms = math.hypot(*ours.values()) * math.hypot(*true.values())
        penalty = math.exp(-((len(caption) - len(reference)) ** 2) / 72)
        total += penalty * product / norms if norms else 0.0
    return 10 * total / 4 / max(len(told), 1)


def padded(rows: list[Words], length: int) -> Ids:
    return np.array([row + [-1] * (length - len(row)) for row in rows], dtype=np.int64)


@pytest.mark.parametrize("seed", range(4))
def test_cider_d_is_that_of_dictionaries(seed: int) -> None:
    draw = random.Random(seed)
    pictures = [[draw.choices(range(6), k=draw.randint(0, 9)) for _ in range(3)] for _ in range(7)]
    captions = [[draw.choices(range(8), k=draw.randint(0, 9)) for _ in range(2)] for _ in range(7)]
    captions[0][0] = list(pictures[0][0])
    references = [padded(rows, 9) for rows in pictures]
    frequencies = Frequencies.from_references(references)
    for rows, own, array in zip(captions, pictures, references, strict=True):
        expected = [by_dictionaries(caption, own, pictures) for caption in rows]
        np.testing.assert_allclose(cider_d(padded(rows, 9), array, frequencies), expected, atol=1e-9)


def test_the_best_caption_is_the_only_reference_itself() -> None:
    rows = [padded([[1, 2, 3, 4, at]], 5) for at in range(5, 9)]
    frequencies = Frequencies.from_references(rows)
    found = np.stack([cider_d(row, row, frequencies) for row in rows])
    assert found.max() < 10 + 1e-9  # words that every picture has weigh nothing
    np.testing.assert_allclose(found, 10.0)


def test_the_artifact_holds_the_document_frequencies_of_its_captions(finished: Path) -> None:
    tensorised = artifacts(small(finished), "tensorise")["tensorise"].path
    read = read_frequencies(tensorised)
    rows = [picture.tokens[:, 1:].astype(np.int64) for picture in read_captions(tensorised, "train")]
    counted = Frequencies.from_references([np.where(ids == NULL, -1, ids) for ids in rows])
    assert read.pictures == counted.pictures == len(rows) and len(read.keys) > 50
    np.testing.assert_array_equal(read.keys, counted.keys)
    np.testing.assert_array_equal(read.counts, counted.counts)


def test_a_baseline_is_the_mean_of_the_others() -> None:
    assert others_mean(torch.tensor([[1.0, 2.0, 6.0]])).tolist() == [[4.0, 3.5, 1.5]]


def test_drawn_captions_become_tokens() -> None:
    drawn = [[Caption([5, 6], -1.0, True), Caption([7], -1.0, False)]]
    assert as_tokens(drawn).tolist() == [[[START, 5, 6, END], [START, 7, NULL, NULL]]]


def test_the_gradient_is_that_of_the_expected_reward() -> None:
    """Over many draws the mean gradient is that of the expectation, summed over every caption there is."""
    torch.manual_seed(0)
    decoder = make("show_attend_tell", 3, 6, {"embedding": 3, "hidden": 4, "attention_size": 3, "dropout_output": 0.0})
    grid = torch.randn(1, 1, 2, 3)
    references = torch.tensor([[[START, 4, 5, END], [START, 4, 4, END]]])
    frequencies = Frequencies.from_counts([[4], [5], [4, 5], [END]], np.array([2, 3, 2, 9]), 9)
    objective = SelfCriticalLoss(SelfCriticalConfig(samples=4), Rewards(frequencies), max_length=2)
    weight = decoder.head.get_parameter("weight")

    decoder.eval()
    expected = torch.zeros(())
    captions = [[END], *([word, last] for word in (4, 5) for last in (END, 4, 5))]
    for caption in captions:
        words = torch.tensor([[[START, *caption[:-1]]]])
        logits, _ = decoder(grid, words, torch.arange(words.numel()))
        likelihood = log_likelihood(logits, torch.tensor(caption)).sum().exp()
        reward = cider_d(padded([list(caption)], 2), references[0, :, 1:].numpy(), frequencies).item()
        expected = expected + likelihood * reward
    (true,) = torch.autograd.grad(-expected, weight)

    decoder.train()
    total, steps, pictures = torch.zeros_like(weight), 15, 100
    same = [tensor.expand(pictures, *tensor.shape[1:]) for tensor in (grid, references)]
    batch = Batch.of(same[0], same[1])
    for step in range(steps):
        drawn = objective.prepare(decoder, batch, step)
        output = objective(decoder, drawn, Count.of(batch), 0.0)
        (estimate,) = torch.autograd.grad(output.loss, weight)
        total += estimate * objective.max_length / steps
    assert float((total - true).norm() / true.norm()) < 0.1


CRITICAL = {"epochs": 3, "batch_pictures": 8, "learning_rate": 0.003}


def run(config: Any) -> None:
    for stage in names_of(config)[:-1]:
        run_stage(config, stage)


@pytest.mark.slow
def test_rewards_rise_and_what_is_evaluated_is_what_came_of_it(workspace: Path) -> None:
    learning: dict[str, Any] = {"training__epochs": 12, "training__learning_rate": 0.01, "training__patience": 12}
    learning |= {"training__select": "bleu4"}  # so that it need not begin with the best CIDEr
    # Ten samples of each picture: with the five of the default, chance moves a mean reward as far as learning does.
    critical = {**CRITICAL, "epochs": 12, "samples": 10}
    config = small(workspace, **learning, self_critical=critical)
    run(config)
    results = artifacts(config, "evaluate")
    rows = pq.read_table(results["self_critical"].path / trained.HISTORY).to_pylist()
    assert rows[0]["epoch"] == 0 and math.isnan(rows[0]["reward"])  # what it begins with
    rewards = [row["reward"] for row in rows[1:]]
    assert sum(rewards[-3:]) > sum(rewards[:3])
    keys = results["evaluate"].ledger.parts["upstream"]
    assert keys["self_critical.weights"] == results["self_critical"].products["weights"] and "train.weights" not in keys
    decoder: Any = trained.load_decoder(results["self_critical"].path)[0]
    before: Any = trained.load_decoder(results["train"].path)[0]
    assert not torch.equal(decoder.embed.weight, before.embed.weight)
    # Another reward setting leaves the decoder that it begins with as it is.
    other = small(workspace, **learning, self_critical={**critical, "samples": 3})
    states = {item.stage.name: item.state for item in plan(other)}
    assert states["train"] == "fresh" and states["self_critical"] == "stale"


@pytest.mark.slow
def test_resumed_is_uninterrupted(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def history(place: Path) -> list[dict[str, float]]:
        rows = pq.read_table(artifacts(configured(place), "self_critical")["self_critical"].path / trained.HISTORY)
        return [{name: value for name, value in row.items() if name != "seconds"} for row in rows.to_pylist()[1:]]

    def configured(place: Path) -> Any:
        return small(place, self_critical=CRITICAL, machine__checkpoint_seconds=0)

    run(configured(workspace))
    steps = [0]
    learn = fitting.TrainingLoop.learn

    def killed(fit: Any, step: Batch) -> None:
        steps[0] += fit.name == "self_critical"
        if steps[0] == 10:
            raise KeyboardInterrupt
        learn(fit, step)

    monkeypatch.setattr(fitting.TrainingLoop, "learn", killed)
    with pytest.raises(KeyboardInterrupt):
        run(configured(tmp_path / "other"))
    assert plan(configured(tmp_path / "other"), "self_critical")[-1].state == "interrupted"
    run(configured(tmp_path / "other"))
    assert history(tmp_path / "other") == history(workspace)
    whole, resumed = (
        artifacts(configured(place), "self_critical")["self_critical"] for place in (workspace, tmp_path / "other")
    )
    assert resumed.products == whole.products  # the digest of the weights
    for name in (trained.WEIGHTS, trained.LAST):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()


@pytest.mark.parametrize(("start", "is_kept"), [(40.0, True), (5.0, False)])
def test_the_decoder_it_begins_with_is_kept_where_no_epoch_is_better(
    start: float, is_kept: bool, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(workspace, self_critical=CRITICAL)
    stages = names_of(config)
    for stage in stages[: stages.index("self_critical")]:
        run_stage(config, stage)
    scores = iter([start, 10.0, 30.0, 20.0])  # of the decoder it begins with, then of three epochs
    others = {"dev_bleu4": 0.0, "dev_meteor": 0.0, "dev_mean": 0.0, "dev_loss": 1.0, "dev_perplexity": math.e}
    monkeypatch.setattr(DevEvaluator, "scores", lambda *_: {"dev_cider": next(scores), **others})
    run_stage(config, "self_critical")
    results = artifacts(config, "self_critical")
    before, begun = ((results[stage].path / trained.WEIGHTS).read_bytes() for stage in ("self_critical", "train"))
    assert (before == begun) == is_kept
    assert results["self_critical"].ledger.counts["dev_cider"] == max(start, 30.0)


def test_a_reward_is_cider_d_and_a_share_of_meteor() -> None:
    words = ("a", "dog", "dogs", "runs", "on", "grass")
    vocabulary = Vocabulary(words)

    def ids(text: str) -> list[int]:
        return [*(vocabulary.id_of(word) for word in text.split()), END]

    references = [["a dog runs on grass", "dogs on grass"], ["a dog runs"]]
    sampled = [["a dog runs", "dogs runs on grass", ""], ["a dog runs", "grass", "a a"]]
    given = torch.tensor([[(ids(text) + [NULL] * 6)[:6] for text in texts] for texts in sampled])
    own = torch.tensor([[(ids(text) + [NULL] * 6)[:6] for text in (*texts, "")[:2]] for texts in references])
    own[1, 1] = NULL  # a picture with one caption
    frequencies = Frequencies.from_references([padded([ids(text) for text in texts], 6) for texts in references])
    plain, mixed = Rewards(frequencies)(given, own), Rewards(frequencies, vocabulary, 2.0)(given, own)
    for picture, texts in enumerate(sampled):
        for row, text in enumerate(texts):
            true = [reference.split() for reference in references[picture]]
            share = measure("meteor", [ScoredCaption(text.split(), true)])["meteor"] / 100
            assert mixed[picture, row].item() == pytest.approx(plain[picture, row].item() + 2 * share)


def test_training_that_diverges_is_reported_and_keeps_nothing(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward alone would not tell: a decoder of no numbers says nothing, which is worth 0."""
    config = small(workspace, self_critical=CRITICAL)
    monkeypatch.setattr("tasks.training.reinforce_decoder.log_likelihood", lambda logits, _: logits[:, 0] * torch.nan)
    with pytest.raises(
        AttendError, match=r"self_critical: the loss is not finite at step \d: lower self_critical.learning_rate"
    ):
        run(config)
    assert "self_critical" not in artifacts(config)


def test_hard_attention_cannot_go_on_so(workspace: Path) -> None:
    with pytest.raises(AttendError, match="self_critical: hard_attention draws the positions it attends to"):
        small(workspace, decoder__name="hard_attention", self_critical=CRITICAL)
