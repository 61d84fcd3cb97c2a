"""Scheduled sampling and words made unknown: what is read changes, what is predicted does not."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional

from models.decoders.base import make, valid_indices
from models.vocabulary import NULL, START, UNK
from tasks.config.training import TrainingConfig
from tasks.training.batches import Batch
from tasks.training.objectives import Count, CrossEntropy, replace_with_sampled, replace_with_unknown
from tasks.training.outputs import HISTORY
from tests.decoding import CHANNELS, VOCABULARY, example
from tests.support import artifacts, run_all, small


def test_own_words_are_what_the_model_says_after_the_true_ones() -> None:
    torch.manual_seed(0)
    decoder = make("show_attend_tell", CHANNELS, VOCABULARY, {"embedding": 5, "hidden": 8, "attention_size": 4}).eval()
    grid, tokens = example()
    batch = Batch.of(grid, tokens)
    assert torch.equal(replace_with_sampled(decoder, batch, 0.0), batch.words)
    with torch.no_grad():  # a decoder that is sure: what it says is what is likeliest
        decoder.head.get_parameter("weight").mul_(1e4)
    mixed = replace_with_sampled(decoder, batch, 1.0)
    everywhere = torch.ones_like(batch.words, dtype=torch.bool)
    logits, _ = decoder(grid, batch.words, valid_indices(everywhere))
    logits[:, : UNK + 1] = -torch.inf
    likeliest = logits.argmax(dim=1).view(batch.words.shape)
    replaced = mixed != batch.words
    assert replaced.any()
    for n, r, t in (batch.words > UNK).nonzero().tolist():
        assert mixed[n, r, t] == likeliest[n, r, t - 1]
    special = batch.words <= UNK
    assert torch.equal(mixed[special], batch.words[special])
    assert mixed.min() >= NULL and (mixed[:, :, 0] == batch.words[:, :, 0]).all()


def test_a_share_of_the_words_is_replaced() -> None:
    torch.manual_seed(0)
    words = torch.full((10, 10, 100), 7)
    words[:, :, 0], words[:, :, 50:] = START, NULL
    found = replace_with_unknown(words, 0.2)
    assert 0.18 < float((found[:, :, 1:50] == UNK).float().mean()) < 0.22
    assert torch.equal(found[:, :, 0], words[:, :, 0]) and (found[:, :, 50:] == NULL).all()
    assert replace_with_unknown(words, 0.0) is words


def test_the_greedy_caption_removes_no_gradient() -> None:
    """Under autocast weights are cast once: what was cast without gradients is not to be what is trained."""
    torch.manual_seed(0)
    decoder = make("show_attend_tell", CHANNELS, VOCABULARY, {"embedding": 5, "hidden": 8, "attention_size": 4})
    grid, tokens = example()
    for share in (0.0, 1.0):
        decoder.zero_grad()
        training = TrainingConfig(scheduled_sampling=share, precision="bfloat16")
        batch = Batch.of(grid, tokens)
        CrossEntropy(training)(decoder, batch, Count.of(batch), 1.0).loss.backward()
        assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in decoder.parameters())


@pytest.mark.parametrize("mean", ["tokens", "captions"])
def test_the_loss_is_a_mean_over_tokens_or_over_captions(mean: Literal["tokens", "captions"]) -> None:
    """Over captions: the cross-entropy of each step, summed over time and divided by the captions of the batch."""
    torch.manual_seed(0)
    decoder = make("show_attend_tell", CHANNELS, VOCABULARY, {"embedding": 5, "hidden": 8, "dropout_output": 0.0})
    grid, tokens = example()
    batch = Batch.of(grid, tokens)
    given = CrossEntropy(TrainingConfig(loss_mean=mean, precision="float32"))
    found = given(decoder, batch, Count.of(batch), 0.0)
    found.loss.backward()
    ours = [weight.grad.clone() for weight in decoder.parameters() if weight.grad is not None]
    decoder.zero_grad()
    logits, _ = decoder(grid, batch.words, valid_indices(torch.ones_like(batch.words, dtype=torch.bool)))
    total = functional.cross_entropy(logits, batch.targets.flatten(), ignore_index=NULL, reduction="sum")
    expected = total / ((batch.targets != NULL).sum() if mean == "tokens" else batch.valid.any(dim=2).sum())
    expected.backward()
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(ours, [weight.grad for weight in decoder.parameters() if weight.grad is not None])
    torch.testing.assert_close(found.total / found.number, total.detach() / (batch.targets != NULL).sum())


def test_scheduled_sampling_trains(workspace: Path) -> None:
    """It learns, by other steps than without: the words read are the model's own in part."""
    results = []
    for share in (0.0, 0.5):
        config = small(workspace, training__scheduled_sampling=share, training__epochs=3)
        run_all(config)
        results.append(artifacts(config, "train")["train"])
    plain, sampled = (
        [row["loss"] for row in pq.read_table(artifact.path / HISTORY).to_pylist()] for artifact in results
    )
    assert sampled[0] > sampled[1] > sampled[2]
    # Its share grows from nothing: the first steps are alike, the later ones are harder.
    assert abs(sampled[0] - plain[0]) < 0.05 and sampled[2] != plain[2]
    assert results[0].products["weights"] != results[1].products["weights"]
