"""Decoders that speak together: the mean of their probabilities, in training's artifact, in search, out of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from models.captioner import Captioner
from models.decoders.ensemble import Ensemble
from models.options import Decoding
from models.torch_steps import decode
from tasks.captioner.bundle import make_captioner, write_bundle
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.evaluation.caption_and_score import PREDICTIONS
from tasks.grids.index import open_grids
from tasks.pipeline.workspace import Workspace
from tasks.training import outputs as trained
from tasks.training.batches import grids_in_order
from tests.decoding import decoder_of, example
from tests.support import artifacts, captioner_artifacts, plan, run_all, run_stage, small


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


def test_what_an_attempt_left_that_could_not_be_published_is_no_member(tmp_path: Path) -> None:
    config = small(tmp_path / "workspace", training__keep=3, training__epochs=2)
    for stage in ("ingest", "extract", "tensorise"):
        run_stage(config, stage)
    key = next(status.key for status in plan(config, "train") if status.stage.name == "train")
    assert key is not None
    partial = Workspace(config.workspace).partial("train", key)
    partial.mkdir(parents=True)
    (partial / trained.NEXT_BEST.format(3)).write_bytes(b"of another epoch")
    run_stage(config, "train")
    names = [path.name for path in trained.kept_weights(artifacts(config, "train")["train"].path)]
    assert names == [trained.WEIGHTS, trained.NEXT_BEST.format(2)]


def test_twins_say_what_each_says() -> None:
    decoder: Any = decoder_of("show_attend_tell")
    grid, _ = example()
    alone = decode(decoder, grid, Decoding(beam=3, n_best=3))
    both = decode(Ensemble([decoder, decoder]).eval().for_inference(), grid, Decoding(beam=3, n_best=3))
    assert [[c.tokens for c in captions] for captions in both] == [[c.tokens for c in captions] for captions in alone]


def config_of(workspace: Path, members: int = 2) -> Config:
    learning = {"training__epochs": 6, "training__patience": 6, "training__learning_rate": 0.01, "training__keep": 3}
    return small(workspace, **learning, evaluation__ensemble=members)


def test_the_best_epochs_are_kept_and_what_is_registered_says_what_was_evaluated(
    workspace: Path, tmp_path: Path
) -> None:
    config = config_of(workspace)
    run_all(config)
    made = artifacts(config, "evaluate")
    scores = [row["dev_bleu4"] for row in pq.read_table(made["train"].path / trained.HISTORY).to_pylist()]
    kept = trained.kept_weights(made["train"].path)
    assert [path.name for path in kept] == [trained.WEIGHTS, "weights-2.safetensors", "weights-3.safetensors"]
    assert len({path.read_bytes() for path in kept}) == 3 and len(scores) == 6
    captioner = make_captioner(config, captioner_artifacts(config))
    write_bundle(captioner, tmp_path / "bundle")
    loaded = Captioner.load(tmp_path / "bundle")
    rows = pq.read_table(made["evaluate"].path / PREDICTIONS).to_pylist()
    grids = open_grids(made["extract"], config.machine)
    digests = [row["digest"] for row in rows]
    ((_, grid),) = grids_in_order(digests, grids, len(digests))
    found = loaded.from_grid(grid.half().numpy(), attention=True)
    assert [item.caption for item in found] == [row["caption"] for row in rows]
    assert all(item.attention is not None and item.attention.shape[1:] == grid.shape[1:3] for item in found)
    alone = config_of(workspace, 1)
    assert {name: state for name, state in run_all(alone).items() if state != "fresh"} == {"evaluate": "stale"}


def test_more_than_are_kept_cannot_speak(workspace: Path) -> None:
    with pytest.raises(AttendError, match=r"evaluation.ensemble: needs the weights of 4 epochs, but training keeps 3"):
        config_of(workspace, 4)
    with pytest.raises(AttendError, match="training keeps 1"):
        small(workspace, training__epochs=1, training__keep=2, evaluation__ensemble=2)
