"""Decoders that speak together: the mean of their probabilities, in training's artifact, in search, out of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from models.captioner import Captioner
from models.decoders.ensemble import Ensemble
from models.options import Decoding
from models.torch_steps import decode
from tasks.captioner.bundle import make_captioner, write_bundle
from tasks.common.errors import AttendError
from tasks.evaluation.caption_and_score import PREDICTIONS
from tasks.grids.index import open_grids
from tasks.training import outputs as trained
from tasks.training.batches import grids_in_order
from tests.decoding import decoder_of, example
from tests.support import artifacts, captioner_artifacts, run_all, run_stage, small


@pytest.mark.parametrize("name", ["show_attend_tell", "transformer", "hard_attention"])
def test_the_next_words_probability_is_the_mean(name: str) -> None:
    members = [decoder_of(name, {"hidden": 8}) for _ in range(2)]
    torch.manual_seed(9)
    for weight in members[1].parameters():
        weight.data.add_(torch.randn_like(weight) * 0.3)
    grid, tokens = example()
    together = Ensemble(members).eval()
    with torch.no_grad():
        for speaking in (together, together.for_inference()):
            joint = speaking.start(grid).expand(3)
            states = [member.start(grid).expand(3) for member in members]
            for time in range(3):
                each = []
                for place, member in enumerate(members):
                    logits, states[place] = member.step(states[place], tokens[:, :, time])
                    each.append(logits.softmax(dim=-1))
                logits, joint = speaking.step(joint, tokens[:, :, time])
                torch.testing.assert_close(logits.exp(), (each[0] + each[1]) / 2)
                torch.testing.assert_close(joint.alphas, (states[0].alphas + states[1].alphas) / 2)
        words = tokens[:, :, :-1]
        logits, read = together(grid, words, torch.arange(words.numel()))
        torch.testing.assert_close(logits.exp().sum(dim=1), torch.ones(len(logits)))
        torch.testing.assert_close(
            read.alphas, torch.stack([m(grid, words, torch.arange(words.numel()))[1].alphas for m in members]).mean(0)
        )


def test_twins_say_what_each_says() -> None:
    decoder: Any = decoder_of("show_attend_tell")
    grid, _ = example()
    alone = decode(decoder, grid, Decoding(beam=3, n_best=3))
    both = decode(Ensemble([decoder, decoder]).eval().for_inference(), grid, Decoding(beam=3, n_best=3))
    assert [[c.tokens for c in captions] for captions in both] == [[c.tokens for c in captions] for captions in alone]


def test_each_member_is_trained_as_it_is_alone(tmp_path: Path) -> None:
    """Without dropout: the first member begins as the decoder alone does, and reads the same batches."""
    plain = {"training__epochs": 3, "training__patience": 3, "training__clip_norm": 0.5, "decoder__dropout_output": 0.0}
    weights = []
    for members in (1, 2):
        config = small(tmp_path / str(members), **plain, decoder__members=members)
        run_all(config)
        weights.append(safetensors.torch.load_file(artifacts(config, "train")["train"].path / trained.LAST))
    alone, together = weights
    assert len(together) == 2 * len(alone)
    for name, value in alone.items():
        torch.testing.assert_close(together[f"0.{name}"], value)
    assert any(not torch.equal(together[f"0.{name}"], together[f"1.{name}"]) for name in alone)


def test_the_registered_ensemble_gives_the_evaluated_captions(workspace: Path, tmp_path: Path) -> None:
    learning = {"training__epochs": 4, "training__patience": 4, "training__learning_rate": 0.01}
    config = small(workspace, **learning, decoder__members=2)
    run_all(config)
    results = artifacts(config, "evaluate")
    captioner = make_captioner(config, captioner_artifacts(config))
    write_bundle(captioner, tmp_path / "bundle")
    loaded = Captioner.load(tmp_path / "bundle")
    rows = pq.read_table(results["evaluate"].path / PREDICTIONS).to_pylist()
    grids = open_grids(results["extract"], config.machine)
    digests = [row["digest"] for row in rows]
    ((_, grid),) = grids_in_order(digests, grids, len(digests))
    found = loaded.from_grid(grid.half().numpy(), attention=True)
    assert [item.caption for item in found] == [row["caption"] for row in rows]
    assert all(item.attention is not None and item.attention.shape[1:] == grid.shape[1:3] for item in found)


def test_rewards_train_all_members(workspace: Path) -> None:
    config = small(workspace, decoder__members=2, self_critical={"epochs": 1, "samples": 2, "batch_pictures": 8})
    for stage in ("ingest", "extract", "tensorise", "train", "self_critical"):
        run_stage(config, stage)
    results = artifacts(config, "self_critical")
    before, after = (
        safetensors.torch.load_file(results[stage].path / trained.LAST) for stage in ("train", "self_critical")
    )
    for member in "01":
        assert not torch.equal(after[f"{member}.head.weight"], before[f"{member}.head.weight"])


def test_one_decoder_is_tuned_with_the_backbone(workspace: Path) -> None:
    with pytest.raises(AttendError, match=r"tuning: one decoder is tuned .* set decoder\.members=1"):
        small(workspace, decoder__members=2, tuning={"epochs": 1})
