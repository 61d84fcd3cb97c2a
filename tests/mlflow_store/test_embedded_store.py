"""The embedded MLflow store: whole or not there, whoever is killed while it is made, and wherever it is moved."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.commands.workspace_contents import usage
from flows.operations.prefect_server import set_aside_incomplete_database
from flows.registered.export import export_model
from tasks.common.errors import AttendError
from tasks.mlflow_store import tracking
from tasks.mlflow_store.embedded_store import DATABASE, VERSION
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.store_answers import ask
from tasks.mlflow_store.versions import champion_bundle, files_of, find
from tasks.pipeline.workspace import Workspace
from tests.support import artifacts, empty_store, pictures, plan, register_all, trained, verify

CONNECT = "import pathlib, sys; from tasks.mlflow_store import tracking; tracking.connect(pathlib.Path(sys.argv[1]))"


def half_made(workspace: Path) -> sqlite3.Connection:
    """Put a database there as a process leaves it that is killed between two of MLflow's upgrades."""
    workspace.mkdir()
    shutil.copyfile(empty_store() / DATABASE, workspace / DATABASE)
    connection = sqlite3.connect(workspace / DATABASE)
    connection.execute("update alembic_version set version_num = 'bf29a5ff90ea'")
    connection.commit()
    return connection


def test_a_database_that_cannot_be_upgraded_is_left_as_it_is(workspace: Path) -> None:
    connection = half_made(workspace)
    connection.execute("insert into registered_models (name) values ('precious')")
    connection.commit()
    connection.close()
    before = (workspace / DATABASE).read_bytes()
    with pytest.raises(AttendError, match=r"mlflow\.db: MLflow .* cannot upgrade it .*: it is unchanged; install"):
        tracking.connect(workspace)
    assert (workspace / DATABASE).read_bytes() == before


def test_a_database_of_another_version_of_mlflow_is_upgraded_with_all_that_is_in_it(workspace: Path) -> None:
    workspace.mkdir()
    tracking.connect(workspace).create_experiment("kept")
    (workspace / VERSION).write_text("1.0")
    assert tracking.connect(workspace).get_experiment_by_name("kept") is not None
    assert not list(workspace.glob("*.damaged"))


@pytest.mark.slow
def test_first_runs_at_once_and_killed_ones_leave_a_workspace_that_works(workspace: Path) -> None:
    workspace.mkdir()
    for milliseconds in range(1500, 5000, 500):
        begun = [subprocess.Popen([sys.executable, "-c", CONNECT, str(workspace)]) for _ in range(3)]
        time.sleep(milliseconds / 1000)
        for process in begun:
            process.send_signal(signal.SIGKILL)
            process.wait()
    begun = [subprocess.Popen([sys.executable, "-c", CONNECT, str(workspace)]) for _ in range(3)]
    assert [process.wait() for process in begun] == [0, 0, 0]


ANSWERS = """
import sys
from pathlib import Path
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.versions import find
sys.modules["mlflow"] = None  # its import fails
workspace, photograph = map(Path, sys.argv[1:])
found = find(None, workspace)
print(found.address)
print(load_captioner(*found).caption([photograph.read_bytes()])[0].caption)
"""


def test_answers_are_kept_while_the_database_stays_as_it_is(registered: Path, tmp_path: Path) -> None:
    """Then the champion captions without MLflow, with the code and the caption that it has with MLflow."""
    workspace = tmp_path / "workspace"
    shutil.copytree(registered, workspace)
    register_all(trained(workspace))  # as version 2, whose files are in this workspace
    champion = find(None, workspace)
    photograph = pictures(workspace)[0]
    with_mlflow = load_captioner(champion.address).caption([photograph.read_bytes()])[0].caption
    code = [sys.executable, "-c", ANSWERS, str(workspace), str(photograph)]
    without = subprocess.run(code, capture_output=True, text=True, check=True)
    assert without.stdout.splitlines() == [champion.address, with_mlflow]

    client = tracking.connect(workspace)
    client.set_registered_model_alias("small", "champion", "1")  # as MLflow's pages do
    assert find(None, workspace).address == "models:/small/1"
    client.delete_model_version("small", "2")
    assert plan(trained(workspace))[-1].why == ["models:/small/2 is not in mlflow.db any more"]
    (workspace / "mlflow.db.answers").write_text("damaged")
    assert find(None, workspace).address == "models:/small/1"


def test_a_captioner_of_another_format_is_refused(
    registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.captioner.load_bundle.FORMAT", 99)
    with pytest.raises(AttendError, match=r"models:/small/1: another version of attend wrote it \(format 4; this one"):
        load_captioner(*find("models:/small/1", registered))
    with pytest.raises(AttendError, match=r"models:/small/1: another version of attend wrote it"):
        export_model("models:/small/1", tmp_path / "out", "torch", registered)  # nobody could use it
    assert champion_bundle(registered, "small", tmp_path) is None  # so that a nightly training starts anew
    assert not any(tmp_path.iterdir())


def test_answers_of_a_separate_registry_are_not_cached(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking.connect(workspace)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "sqlite:///elsewhere.db")
    assert [ask(workspace, "?", lambda: 1), ask(workspace, "?", lambda: 2)] == [1, 2]


def test_answers_are_not_cached_while_the_database_changes(workspace: Path) -> None:
    tracking.connect(workspace)
    asked: list[str] = []

    def answer() -> int:
        asked.append("again")
        with contextlib.closing(sqlite3.connect(workspace / DATABASE)) as connection, connection:
            connection.execute(f"create table t{len(asked)} (n)")
        return len(asked)

    assert [ask(workspace, "?", answer), ask(workspace, "?", answer)] == [1, 2]
    assert [ask(workspace, "?", lambda: 3), ask(workspace, "?", lambda: 4)] == [3, 3]
    with contextlib.closing(sqlite3.connect(workspace / DATABASE)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table log (n)")
        assert [ask(workspace, "?", lambda: 5), ask(workspace, "?", lambda: 6)] == [5, 6]


def test_a_moved_workspace_registers_its_model_again_and_captions(registered: Path, tmp_path: Path) -> None:
    """Moved and copied alike: MLflow's database names the folders where it was."""
    photograph = pictures(registered)[0].read_bytes()
    captions = load_captioner(*find(None, registered)).caption([photograph])[0].caption
    copied, moved = tmp_path / "copied", tmp_path / "moved"
    shutil.copytree(registered, copied)
    database = (registered / DATABASE).read_bytes()
    (stale,) = [status for status in plan(trained(copied)) if not status.fresh]
    assert stale.stage.name == "register" and "which is not in this workspace: it was moved or copied" in stale.why[0]
    assert set(register_all(trained(copied)).values()) == {"fresh", "damaged"}
    copied.rename(moved)
    with pytest.raises(
        AttendError, match=r"its files were in .*copied.*, which is gone: where the workspace was moved"
    ):
        find("models:/small@champion", moved)
    register_all(trained(moved))
    assert all(status.fresh for status in plan(trained(moved)))
    address, files = find(None, moved)
    assert address == "models:/small/3" and load_captioner(address, files).caption([photograph])[0].caption == captions
    why = tracking.connect(moved).get_model_version("small", "3").tags["attend.decision"]
    assert why == "version 3 is champion: the files of version 2 are not in this workspace"
    assert (registered / DATABASE).read_bytes() == database
    client = tracking.connect(moved)
    files = files_of(client, client.get_model_version("small", "3"))
    assert files is not None and files.is_relative_to(moved)
    assert all(item.needed_by for item in usage(Workspace(moved)) if item.what == "train")
    assert artifacts(trained(moved))["register"].ledger.counts["version"] == 3


def test_a_registered_model_that_is_damaged_is_registered_again(registered: Path, tmp_path: Path) -> None:
    """As after a power cut: its version is in MLflow's database, and its files are not whole."""
    workspace = tmp_path / "workspace"
    shutil.copytree(registered, workspace)
    register_all(trained(workspace))  # as version 2, whose files are in this workspace
    client = tracking.connect(workspace)
    files = files_of(client, client.get_model_version("small", "2"))
    assert files is not None
    (weights,) = files.rglob("decoder.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(bytes(len(whole)))
    assert verify(trained(workspace))[-1].state == "damaged"
    Workspace(workspace).suspect([weights])  # as a run does after a crash
    register_all(trained(workspace))
    assert find(None, workspace).address == "models:/small/3"
    why = tracking.connect(workspace).get_model_version("small", "3").tags["attend.decision"]
    assert why == "version 3 is champion: the files of version 2 are damaged"
    photograph = pictures(workspace)[0].read_bytes()
    assert load_captioner("models:/small@champion").caption([photograph])[0].error is None


def test_prefects_database_that_was_cut_off_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But never one of the user's own home, nor for another failure."""
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    home = tmp_path / "prefect"
    home.mkdir()
    (home / "prefect.db").write_bytes(b"half")
    (home / "prefect.db-wal").write_bytes(b"made")
    assert not set_aside_incomplete_database(tmp_path, "the port is taken") and (home / "prefect.db").exists()
    died = "alembic/runtime/migration.py OperationalError: index ix_block_document__block_type already exists"
    monkeypatch.setenv("PREFECT_HOME", "/home/theirs")
    assert not set_aside_incomplete_database(tmp_path, died)
    monkeypatch.delenv("PREFECT_HOME")
    assert set_aside_incomplete_database(tmp_path, died)
    assert sorted(path.name for path in home.iterdir()) == ["prefect.db-wal.damaged", "prefect.db.damaged"]
