"""Shards made elsewhere are those that one machine makes, each there once, whoever is lost on the way."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch

from bench.soak.cluster import config_of, dask_workers, extract, kill_after, shards
from flows.operations import dask_shards
from models.backbones.base import make as make_backbone
from tasks.common.errors import AttendError
from tasks.config.machine import MachineConfig
from tasks.grids.extraction import Publish, ShardJob, ShardResult, make_shard
from tests.support import artifacts, pictures, run_all, run_stage, small


def extracted(workspace: Path, spread: object = None, **changes: object) -> dict[str, str]:
    config = small(workspace, **changes)
    run_stage(config, "ingest")
    run_stage(config, "extract", executor=spread)
    return shards(workspace)


def backwards_and_twice(jobs: Sequence[ShardJob], publish: Publish) -> None:
    """Each shard made twice, as where a worker was thought lost; the later one is published, the last shard first."""
    for job in reversed(jobs):
        make_shard(job)
        publish(make_shard(job))


def test_shards_made_elsewhere_are_the_same(workspace: Path, tmp_path: Path) -> None:
    here = extracted(tmp_path / "here")
    assert extracted(workspace, backwards_and_twice) == here and len(here) == 4
    run_all(small(workspace))
    assert artifacts(small(workspace), "extract")["extract"].products == (
        artifacts(small(tmp_path / "here"), "extract")["extract"].products
    )


def test_a_photograph_changed_meanwhile_is_refused(workspace: Path) -> None:
    def late(jobs: Sequence[ShardJob], publish: Publish) -> None:
        pictures(workspace)[0].write_bytes(b"no picture")
        backwards_and_twice(jobs, publish)

    config = small(workspace)
    run_stage(config, "ingest")
    with pytest.raises(AttendError, match="was changed while the run"):
        run_stage(config, "extract", executor=late)


def test_what_was_made_for_a_run_that_is_no_more_is_not_there(workspace: Path) -> None:
    def lost(jobs: Sequence[ShardJob], publish: Publish) -> None:
        made: list[ShardResult] = [make_shard(job) for job in jobs]
        publish(made[0])
        raise KeyboardInterrupt

    config = small(workspace)
    run_stage(config, "ingest")
    with pytest.raises(KeyboardInterrupt):
        run_stage(config, "extract", executor=lost)
    assert len(shards(workspace)) == 1 and list(workspace.glob("grids/*/.*.tmp"))
    run_stage(config, "extract")
    assert len(shards(workspace)) == 4 and not list(workspace.glob("grids/*/.*.tmp"))


@pytest.mark.slow
def test_a_killed_workers_shards_are_made_by_another(tmp_path: Path) -> None:
    alone, config = (config_of(tmp_path / name, 40, 4, 64) for name in ("alone", "cluster"))
    extract(alone, None)
    with dask_workers(tmp_path, 2) as started:
        kill_after(started.workers[0], config.workspace, 10)
        extract(config, started)
        assert started.workers[0].wait() == -9 and started.workers[1].poll() is None
    assert shards(config.workspace) == shards(alone.workspace) and len(shards(alone.workspace)) == 40


def test_weights_are_those_of_the_leader_or_are_refused(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their path is of each one's own home."""
    homes = [workspace.parent / name for name in ("leader", "worker")]
    for seed, home in enumerate(homes):
        home.mkdir()
        weights = make_backbone("tiny", None, seed).features.state_dict()
        safetensors.torch.save_file(weights, home / "tiny.safetensors")
    monkeypatch.setenv("HOME", str(homes[0]))
    config = small(workspace, grids__weights="~/tiny.safetensors")

    def elsewhere(jobs: Sequence[ShardJob], publish: Publish) -> None:
        monkeypatch.setenv("HOME", str(homes[1]))
        monkeypatch.setattr("tasks.grids.extraction.loaded_encoders", {})
        backwards_and_twice(jobs[:2], publish)
        shutil.copy(homes[1] / "tiny.safetensors", homes[0])
        monkeypatch.setattr("tasks.grids.extraction.loaded_encoders", {})
        make_shard(jobs[2])

    run_stage(config, "ingest")
    with pytest.raises(AttendError, match=r"tiny.safetensors: differs on this worker"):
        run_stage(config, "extract", executor=elsewhere)
    made = shards(workspace)
    monkeypatch.setenv("HOME", str(homes[0]))
    safetensors.torch.save_file(make_backbone("tiny", None, 0).features.state_dict(), homes[0] / "tiny.safetensors")
    alone = extracted(workspace.parent / "alone", grids__weights="~/tiny.safetensors")
    assert len(made) == 2 and made.items() < alone.items()


def test_an_address_without_a_scheduler_is_reported_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_shards, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in (f"tcp://127.0.0.1:{silent.getsockname()[1]}", "tls://127.0.0.1:1", "nothing://127.0.0.1:1"):
            spread = dask_shards.executor_of(MachineConfig(dask=address))
            assert spread is not None
            with pytest.raises(AttendError, match=f"{address} does not answer .*: start its scheduler"):
                spread([], print)


@pytest.mark.slow
def test_a_lost_scheduler_is_reported_in_a_line_and_its_shards_stay(tmp_path: Path) -> None:
    config = config_of(tmp_path / "workspace", 40, 4, 64)
    with dask_workers(tmp_path, 1) as started:
        kill_after(started.scheduler, config.workspace, 5)
        with pytest.raises(SystemExit) as end:
            extract(config, started)
    told = str(end.value)
    assert f"{started.address} does not answer any more" in told and "trying again in a moment" in told
    assert told.rstrip().endswith("start its scheduler") and "Traceback" not in told
    kept = shards(config.workspace)
    assert 5 <= len(kept) < 40
    extract(config, None)
    assert kept.items() < shards(config.workspace).items()
