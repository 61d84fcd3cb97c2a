"""Damage, missing memory and bad weights: told in a line, never kept, and never blamed on something else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from models.backbones.base import make
from models.encoded_pictures import decode
from tasks.common.errors import AttendError
from tasks.training import best_weights
from tasks.training import loop as fitting
from tests.photographs import picture_folder
from tests.support import Killed, artifacts, run_stage, small, states


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError("decoder error -9 when reading image file: out of memory error"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_picture_is_not_unreadable_because_memory_ran_out(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    config = picture_folder(tmp_path, finished, max_failed=1.0)
    run_stage(config, "ingest")

    def full(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("models.encoded_pictures.Image.open", full)
        with pytest.raises(MemoryError):
            decode(b"any picture")
        with pytest.raises(
            AttendError, match=r"\.png: out of memory while it was decoded: free some, or lower machine\."
        ):
            run_stage(config, "extract")
    run_stage(config, "extract")
    assert artifacts(config)["extract"].ledger.counts["failed"] == 0


def test_a_stage_that_runs_out_of_memory_says_so(finished_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(fitting.TrainingLoop, "learn", full)
    with pytest.raises(
        AttendError, match=r"train: out of memory: free some, or set a smaller training\.batch_pictures"
    ):
        run_stage(small(finished_copy, training__seed=3), "train")


def test_pictures_that_could_not_be_read_are_tried_again_where_the_index_is_removed(
    tmp_path: Path, finished: Path
) -> None:
    config = picture_folder(tmp_path, finished, max_failed=1.0)
    broken = tmp_path / "pictures" / "scene_000003.png"
    whole = broken.read_bytes()
    broken.write_bytes(b"not a picture")
    for stage in ("ingest", "extract"):
        run_stage(config, stage)
    digest = pq.read_table(artifacts(config)["extract"].path / "failed.parquet")["digest"][0].as_py()
    with pytest.MonkeyPatch.context() as patch:  # as if the decoder had been at fault, and not the picture
        patch.setattr("tasks.grids.extraction.decode", lambda data: decode(whole if data == b"not a picture" else data))
        shutil.rmtree(artifacts(config)["extract"].path)
        run_stage(config, "extract")
    extracted = artifacts(config)["extract"]
    assert extracted.ledger.counts["extracted"] == 1 and extracted.ledger.counts["grids"] == 60
    assert digest in pq.read_table(extracted.path / "index.parquet")["digest"].to_pylist()


def test_values_that_are_not_finite_are_never_cached(tmp_path: Path, workspace: Path) -> None:
    weights = {name: value.clone() for name, value in make("tiny", None, 0).features.state_dict().items()}
    next(iter(weights.values())).view(-1)[0] = float("nan")
    safetensors.torch.save_file(weights, tmp_path / "broken.safetensors")
    config = small(workspace, grids__weights=str(tmp_path / "broken.safetensors"))
    run_stage(config, "ingest")
    with pytest.raises(
        AttendError, match=r"grids\.weights: .*broken.safetensors: gives values that are not finite .*png"
    ):
        run_stage(config, "extract")
    assert not list(workspace.glob("grids/*/shard-*"))


def test_weights_that_were_ranked_and_are_damaged_are_never_published(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut: the checkpoint ranks an epoch whose weights are not what they were."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for workspace in (whole, cut):
        shutil.copytree(finished, workspace)
    changes = {"training__seed": 4, "training__epochs": 3}
    run_stage(small(whole, **changes), "train")

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("tasks.training.loop.TrainingLoop.write", dies)
        run_stage(small(cut, **changes), "train")
    kept = sorted(cut.rglob(".epoch-*.safetensors"))
    assert kept
    for path in kept:
        state = safetensors.torch.load_file(path)
        safetensors.torch.save_file({name: torch.zeros_like(value) for name, value in state.items()}, path)
    assert states(small(cut, **changes))["train"].state == "interrupted"
    run_stage(small(cut, **changes), "train")
    one, two = (artifacts(small(workspace, **changes))["train"] for workspace in (whole, cut))
    assert one.products == two.products


def test_a_checkpoint_that_was_cut_off_is_left_and_the_training_begins_again(
    finished_copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def dies(*_: object) -> None:
        raise Killed

    changes = {"training__seed": 5}
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("tasks.training.loop.TrainingLoop.write", dies)
        run_stage(small(finished_copy, **changes), "train")
    (checkpoint,) = finished_copy.rglob(".checkpoint.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-2000])
    run_stage(small(finished_copy, **changes), "train")
    assert "the checkpoint is damaged: the training begins again" in caplog.text
    assert states(small(finished_copy, **changes))["train"].fresh


def test_weights_that_are_not_finite_are_never_published(finished_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = best_weights.save_weights

    def spoilt(state: dict[str, torch.Tensor], path: Path) -> None:
        save({name: value.float() * float("nan") for name, value in state.items()}, path)

    monkeypatch.setattr(best_weights, "save_weights", spoilt)
    with pytest.raises(AttendError, match=r"train: the kept weights are not finite .*: lower training.learning_rate"):
        run_stage(small(finished_copy, training__seed=5), "train")
