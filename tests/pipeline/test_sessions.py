"""What a crash leaves is noticed, told, and read before it is used; an orderly end leaves nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.commands.cli import app
from tasks.common.errors import AttendError
from tasks.mlflow_store import tracking
from tasks.mlflow_store.runs import close_dead_runs, training_log
from tasks.pipeline.run import run_stage as run_planned
from tasks.pipeline.sessions import exclusive_session, session
from tasks.pipeline.workspace import Workspace
from tests.support import HERE, WITHOUT_MLFLOW, artifacts, plan, planned, run_all, run_stage, small, verify


def _enter(root: Path, inside: object) -> None:
    with session(Workspace(root), "run of a test"):
        inside.set()  # type: ignore[attr-defined]
        signal.pause()


def crash(root: Path) -> None:
    """A process that is killed while it is in the workspace."""
    context = multiprocessing.get_context("spawn")
    inside = context.Event()
    process = context.Process(target=_enter, args=(root, inside))
    process.start()
    assert inside.wait(60)
    with (
        pytest.raises(AttendError, match="a run is going on: run of a test"),
        exclusive_session(Workspace(root), "prune"),
    ):
        pass
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()


def begin_a_run(workspace: Workspace) -> None:
    """Begin a run that does nothing: it notices crashes."""
    with session(workspace, "a run of a test"):
        pass


def flip(path: Path, at: int = -7) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)


def test_a_flipped_bit_is_found_after_a_crash_and_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(tmp_path / "workspace")
    workspace = Workspace(config.workspace)
    run_all(config)
    crash(workspace.root)
    flip(workspace.root / next(iter(artifacts(config)["extract"].ledger.shared)))
    flip(artifacts(config)["train"].path / "weights.safetensors")
    assert all(plan(config, "evaluate")[at].fresh for at in range(5))  # sizes alone tell nothing
    begin_a_run(workspace)
    assert "run of a test: was cut off" in capsys.readouterr().err
    ran = {name: run_stage(config, name).state for name in WITHOUT_MLFLOW}
    assert {name for name, state in ran.items() if state != "fresh"} == {"extract", "train"}
    assert artifacts(config)["extract"].ledger.counts["extracted"] == 16
    assert all(status.fresh for status in plan(config, "evaluate", read="all"))
    assert not workspace.suspects()


def test_a_crash_is_reported_once_and_an_orderly_end_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace(tmp_path)
    crash(tmp_path)
    begin_a_run(workspace)
    assert "was cut off" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError), session(workspace, "a run that fails"):
        raise ZeroDivisionError
    begin_a_run(workspace)
    assert "was cut off" not in capsys.readouterr().err
    assert not list((tmp_path / "locks" / "sessions").iterdir())
    with exclusive_session(workspace, "prune"):
        pass


class CutOff(Workspace):
    """A workspace in which a run is cut off as it marks the suspects."""

    def suspect(self, files: Iterable[Path]) -> None:
        raise KeyboardInterrupt


def test_a_run_that_is_cut_off_as_it_marks_suspects_forgets_no_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        begin_a_run(CutOff(tmp_path))
    begin_a_run(Workspace(tmp_path))
    assert "was cut off" in capsys.readouterr().err


def test_verify_remembers_what_it_found(tmp_path: Path) -> None:
    config = small(tmp_path / "workspace")
    run_all(config)
    shard = config.workspace / next(iter(artifacts(config)["extract"].ledger.shared))
    flip(shard)
    found = {status.stage.name: status for status in verify(config, "evaluate")}
    assert found["extract"].state == "damaged" and "does not match its digest" in found["extract"].why[0]
    ran = run_all(config)
    assert {name for name, state in ran.items() if state != "fresh"} == {"extract"}
    assert shard.with_name(f"{shard.name}.damaged").exists()


@pytest.mark.parametrize("left", [b"", b"\xff{}"])
def test_a_ledger_that_is_none_is_damage(tmp_path: Path, left: bytes) -> None:
    config = small(tmp_path / "workspace")
    run_all(config)
    (artifacts(config)["tensorise"].path / "ledger.json").write_bytes(left)
    status = plan(config)[2]
    assert (status.stage.name, status.state) == ("tensorise", "damaged") and "ledger.json is not whole" in status.why[0]
    ran = run_all(config)
    assert {name for name, state in ran.items() if state != "fresh"} == {"tensorise"}


@pytest.mark.parametrize("how", ["cut", "gone", "flipped"])
def test_the_pictures_of_a_damaged_shard_index_are_extracted_again(tmp_path: Path, how: str) -> None:
    config = small(tmp_path / "workspace")
    run_all(config)
    index = sorted(config.workspace.rglob("shard-*.parquet"))[1]
    if how == "cut":
        index.write_bytes(index.read_bytes()[:50])
    elif how == "gone":
        index.unlink()
    else:
        flip(index, 100)  # a digest, in a page that can still be read
        verify(config, "evaluate")
    run_all(config)
    assert artifacts(config)["extract"].ledger.counts["extracted"] == 16
    assert index.with_name(f"{index.name}.damaged").exists() == (how != "gone")


@pytest.mark.parametrize("cut", [50, None])
def test_verify_sets_each_damaged_shard_aside_and_a_run_extracts_it_again(tmp_path: Path, cut: int | None) -> None:
    config = small(tmp_path / "workspace")
    run_all(config)
    indexes = sorted(config.workspace.rglob("shard-*.parquet"))
    if cut is None:
        flip(indexes[0], 100)
    else:
        indexes[0].write_bytes(indexes[0].read_bytes()[:cut])
    flip(indexes[1].with_suffix(".h5"))
    outcome = CliRunner().invoke(app, ["workspace", "verify", "--workspace", str(config.workspace)])
    assert outcome.exit_code == 1 and f"2 of {len(indexes)} shards are sound" in outcome.output
    assert outcome.output.count("set aside; `attend run` extracts its pictures again") == 2
    run_all(config)
    assert artifacts(config)["extract"].ledger.counts["extracted"] == 32


def test_a_clock_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tomorrow: none is stale, and one that is edited is noticed."""
    from tests.photographs import picture_folder

    first = small(tmp_path / "first")
    run_stage(first, "ingest")
    config = picture_folder(tmp_path, tmp_path / "first", max_failed=0.01)
    run_all(config)
    tomorrow = 4_000_000_000
    for path in (*tmp_path.rglob("*"),):
        if path.is_file():
            os.utime(path, (tomorrow, tomorrow))
    monkeypatch.setattr("time.time", lambda: 1_000_000_000.0)
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_000 * 10**9)
    assert set(run_all(config).values()) == {"fresh"}
    edited = tmp_path / "pictures" / "scene_000003.png"
    edited.write_bytes((tmp_path / "pictures" / "scene_000004.png").read_bytes())
    os.utime(edited, (tomorrow, tomorrow))
    assert run_all(config)["ingest"] != "fresh"


def test_the_mlflow_run_of_a_killed_process_is_closed(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    Workspace(workspace).prepare()
    client = tracking.connect(workspace)
    with pytest.raises(KeyboardInterrupt), training_log(workspace, "m", "a" * 64, {"x": 1}) as log:
        raise KeyboardInterrupt
    note = workspace / "runs" / "mlflow" / f"{'a' * 20}.json"
    assert client.get_run(log.run_id).info.status == "KILLED" and note.exists()
    client.update_run(log.run_id, status="RUNNING")  # as SIGKILL leaves it
    close_dead_runs(workspace)
    assert client.get_run(log.run_id).info.status == "KILLED" and not note.exists()
    with training_log(workspace, "m", "a" * 64, {"x": 1, "y": 2}) as again:
        close_dead_runs(workspace)  # another process looks: this one is alive
        assert client.get_run(log.run_id).info.status == "RUNNING"
    assert again.run_id == log.run_id and not note.exists()
    assert client.get_run(log.run_id).info.status == "FINISHED"
    assert client.get_run(log.run_id).data.params == {"x": "1", "y": "2"}


def test_damage_that_is_found_while_a_stage_runs_is_not_forgotten(workspace: Path) -> None:
    """By `attend workspace verify`, say: a run trusts the files alone that it has read."""
    config = small(workspace)
    for name in ("ingest", "extract", "tensorise"):
        run_stage(config, name)
    run = planned(config, "train", read="suspects")
    shard = workspace / next(iter(artifacts(config)["extract"].ledger.shared))
    flip(shard)
    run.workspace.suspect([shard])
    run_planned(run, "train")
    assert run.workspace.suspects() == {shard}
    assert plan(config, "extract", read="suspects")[1].state == "damaged"


def test_trusted_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(tmp_path / "workspace")
    workspace = Workspace(config.workspace)
    run_all(config)
    workspace.suspect(workspace.published())
    planned(config, "evaluate", read="suspects")
    read: list[Path] = []

    def noted(path: Path) -> str:
        read.append(path)
        return ""

    monkeypatch.setattr("tasks.pipeline.workspace.digest_of_file", noted)
    assert all(status.fresh for status in plan(config, "evaluate", read="suspects"))
    assert not read and not workspace.suspects()


@pytest.mark.slow
def test_killed_at_random_instants_it_ends_as_if_left_alone() -> None:
    """Three kills of the whole process group; by hand, `python bench/soak/kills.py` does a hundred."""
    bench = HERE / "bench" / "soak" / "kills.py"
    done = subprocess.run(
        [sys.executable, bench, "--kills", "3", "--seed", "7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rounds: every one ended as the run left alone" in done.stdout


def test_waiting_for_maintenance_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = Workspace(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with exclusive_session(workspace, "prune"):
            waiting = pool.submit(enter, workspace)
            while "a run: the workspace is being tidied; waiting" not in capsys.readouterr().err:
                assert not waiting.done()
                time.sleep(0.01)
        assert waiting.result()


def enter(workspace: Workspace) -> bool:
    with session(workspace, "a run"):
        return True
