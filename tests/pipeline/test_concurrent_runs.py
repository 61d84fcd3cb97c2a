"""Several at once on one workspace: one does the work, nobody fails, nothing is spoilt."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.mlflow_store import tracking
from tasks.mlflow_store.runs import PARENT_RUN
from tests.support import plan, small


def start(folder: Path, name: str = "small", **changes: object) -> subprocess.Popen[str]:
    """`attend run` in a process of its own, on the workspace of `folder`."""
    config = small(folder / "workspace", **changes).model_dump(mode="json", exclude={"data": {"path"}})
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({**config, "name": name, "registry": {"model": name}}))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "flows.commands.cli", "run", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def ended(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What each of them wrote; all of them must have done well."""
    output = [process.communicate(timeout=900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n\n".join(output)
    assert not any("Traceback" in text or "database is locked" in text for text in output), "\n\n".join(output)
    return output


def check(workspace: Path, runs: int) -> None:
    client = tracking.connect(workspace)
    experiments = [item.experiment_id for item in client.search_experiments()]
    found = [run for run in client.search_runs(experiments) if PARENT_RUN not in run.data.tags]
    assert [run.info.status for run in found] == ["FINISHED"] * runs
    assert len(client.search_model_versions()) == runs
    for name in ("mlflow.db", "prefect/prefect.db"):
        with sqlite3.connect(f"file:{workspace / name}?mode=ro", uri=True) as database:
            assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    for pattern in (".*.tmp", "*.partial"):
        assert not list(workspace.rglob(pattern))


@pytest.mark.slow
def test_eight_at_once_on_an_empty_workspace(tmp_path: Path) -> None:
    said = ended([start(tmp_path) for _ in range(8)])
    assert sum("register: version 1 is champion" in text for text in said) == 1
    assert sum("another run is working on it; waiting" in text for text in said) >= 6
    assert all(status.fresh for status in plan(small(tmp_path / "workspace"), read="all"))
    check(tmp_path / "workspace", runs=1)


@pytest.mark.slow
def test_two_presets_at_once_share_their_grids(tmp_path: Path) -> None:
    said = ended([start(tmp_path, "one"), start(tmp_path, "two", training__seed=3)])
    assert sum(text.count("grids of tiny: 60/60") for text in said) == 1  # the other waited for them
    check(tmp_path / "workspace", runs=2)


@pytest.mark.slow
def test_pruning_steps_aside_for_a_run(tmp_path: Path) -> None:
    process = start(tmp_path, training__epochs=300)
    workspace = tmp_path / "workspace"
    while process.poll() is None and not list(workspace.glob("artifacts/train/*.partial")):
        pass
    command = [sys.executable, "-m", "flows.commands.cli", "workspace", "prune", "--yes", "--workspace", str(workspace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "prune: a run is going on: run of small" in done.stderr and "Traceback" not in done.stderr
    ended([process])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 versions, 0 items")


@pytest.mark.slow
def test_a_run_that_a_person_stops_is_cancelled_in_prefect(tmp_path: Path) -> None:
    run = start(tmp_path, data__pictures=200, training__epochs=100, training__patience=100)
    assert run.stdout is not None
    for line in run.stdout:
        if "epoch 2/100" in line:
            break
    run.send_signal(signal.SIGINT)
    text = run.communicate(timeout=120)[0]
    assert run.returncode == 130 and "stopped: run the same command again to continue" in text
    with sqlite3.connect(f"file:{tmp_path}/workspace/prefect/prefect.db?mode=ro", uri=True) as database:
        assert database.execute("select state_name from flow_run").fetchall() == [("Cancelled",)]
        states = dict(database.execute("select name, state_name from task_run").fetchall())
    assert states["train"] == "Cancelled" and states["ingest"] == "Completed"
