"""What nobody needs is told and removed; what a run or a registered model needs never is."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from flows.commands import workspace_contents as housekeeping
from flows.commands.old_versions import old_versions, remove_versions
from flows.commands.workspace_contents import Item, compact, planned_compactions, prune, usage
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.grids.index import indexed_digests, open_grids
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.versions import files_of, find, logged_model_of
from tasks.pipeline.workspace import Workspace
from tests.cli import attend
from tests.support import Killed, artifacts, pictures, register_all, run_all, run_stage, small, trained


@pytest.fixture
def workspace(finished_copy: Path) -> Workspace:
    return Workspace(finished_copy)


def unneeded(workspace: Workspace, **options: list[str]) -> list[Item]:
    return [item for item in usage(workspace, **options) if not item.needed_by]


def compacted(workspace: Workspace) -> None:
    compact(workspace, planned_compactions(workspace), 16)


def shards(workspace: Workspace) -> list[Path]:
    return sorted(workspace.grids.glob("*/*.h5"))


def test_all_that_a_run_made_is_needed(workspace: Workspace) -> None:
    assert not unneeded(workspace)
    files = sum(path.stat().st_size for path in (workspace.root / "artifacts").rglob("*") if path.is_file())
    files += sum(path.stat().st_size for path in workspace.grids.rglob("shard-*"))
    assert sum(item.size for item in usage(workspace)) == files


def test_artifacts_of_other_settings_alone_are_pruned(workspace: Workspace) -> None:
    old = artifacts(small(workspace.root))["train"].path
    config = small(workspace.root, training__learning_rate=0.01)
    run_all(config)
    found = unneeded(workspace)
    assert {item.what for item in found} == {"train", "evaluate"} and old in {item.path for item in found}
    assert old.exists()
    prune(workspace, found)
    assert not old.exists() and not unneeded(workspace)
    assert set(run_all(config).values()) == {"fresh"}
    assert {name for name, state in run_all(small(workspace.root)).items() if state != "fresh"} == {"train", "evaluate"}


def test_two_runs_need_what_they_share(workspace: Workspace) -> None:
    other = small(workspace.root, training__seed=7)
    other = other.model_copy(update={"name": "other"})
    run_all(other)
    assert not unneeded(workspace)
    assert {item.what for item in unneeded(workspace, without=["other"])} == {"train", "evaluate"}
    with pytest.raises(AttendError, match="--forget: othr: no run has this name; did you mean 'other'"):
        usage(workspace, without=["othr"])
    prune(workspace, unneeded(workspace, without=["other"]), without=["other"])
    assert set(run_all(small(workspace.root)).values()) == {"fresh"}


def with_fewer_pictures(workspace: Workspace, pictures: int) -> Config:
    config = small(workspace.root, data__pictures=pictures, evaluation__split="dev")
    run_all(config)
    return config


def test_grids_of_pictures_that_are_gone_are_pruned_and_compacted(workspace: Workspace) -> None:
    config = with_fewer_pictures(workspace, 30)
    before = grids_of(config)
    partly = [item for item in usage(workspace) if item.unneeded]
    assert sum(item.unneeded for item in partly) > 0
    prune(workspace, unneeded(workspace))
    assert len(shards(workspace)) > 2
    compacted(workspace)
    assert len(shards(workspace)) == 2
    assert not unneeded(workspace) and not any(item.unneeded for item in usage(workspace))
    assert set(run_all(config).values()) == {"fresh"}  # nothing is extracted, nothing trained
    now = grids_of(config)
    assert before.keys() == now.keys() and all(np.array_equal(before[key], now[key]) for key in before)


def grids_of(config: Config) -> dict[str, npt.NDArray[np.float16]]:
    extracted = artifacts(config)["extract"]
    reader = open_grids(extracted, config.machine)
    return {digest: reader.read([digest])[0].copy() for digest in indexed_digests(extracted)}


@pytest.mark.parametrize(
    "place", ["flows.commands.workspace_contents.reindex", "flows.commands.workspace_contents.remove_shard"]
)
def test_a_killed_compaction_loses_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    config = with_fewer_pictures(workspace, 30)
    before = grids_of(config)

    def dies(*_: object) -> None:
        raise Killed

    whole: Callable[..., None] = getattr(housekeeping, place.rpartition(".")[2])
    monkeypatch.setattr(place, dies)
    with pytest.raises(Killed):
        compacted(workspace)
    monkeypatch.setattr(place, whole)
    run_stage(config, "extract")
    assert artifacts(config)["extract"].ledger.counts["grids"] == 30
    assert all(np.array_equal(before[key], now) for key, now in grids_of(config).items())
    prune(workspace, unneeded(workspace))
    compacted(workspace)
    assert len(shards(workspace)) == 2
    assert set(run_all(config).values()) == {"fresh"}


def test_an_extraction_that_is_not_finished_keeps_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(tmp_path)
    config = small(tmp_path)
    run_stage(config, "ingest")

    def dies(*_: object) -> None:
        raise Killed

    publish = Workspace.publish
    monkeypatch.setattr(Workspace, "publish", dies)
    with pytest.raises(Killed):
        run_stage(config, "extract")
    monkeypatch.setattr(Workspace, "publish", publish)
    assert not [item for item in unneeded(workspace) if item.path.suffix == ".h5"]
    assert len(list(workspace.grids.rglob("*.h5"))) == 4
    with pytest.raises(AttendError, match="the extraction of small is not finished: run it first"):
        compacted(workspace)


def test_leftovers_of_damage_and_kills_are_pruned(workspace: Workspace) -> None:
    config = small(workspace.root)
    shard = workspace.root / next(iter(artifacts(config)["extract"].ledger.shared))
    shard.write_bytes(b"")
    run_all(config)
    (workspace.root / "artifacts" / "train" / "0123.partial").mkdir()
    (workspace.root / "artifacts" / "tensorise" / "0123").mkdir()
    found = unneeded(workspace)
    assert {item.what for item in found} == {
        "grids of tiny, set aside",
        "train, not finished",
        "tensorise, without a ledger",
    }
    prune(workspace, found)
    run_all(config)
    assert not unneeded(workspace)


def damaged_ledger(path: Path) -> None:
    path.write_text(path.read_text()[:100])


@pytest.mark.parametrize("damage", [Path.unlink, damaged_ledger])
@pytest.mark.parametrize("lost", ["extract/ledger.json", "extract/index.parquet", "extract/identity.json", "run"])
def test_needed_but_unreadable_files_are_kept(workspace: Workspace, lost: str, damage: Callable[[Path], None]) -> None:
    """Law: no damage to a record makes a grid unneeded."""
    with_fewer_pictures(workspace, 30)
    before = shards(workspace)
    path = workspace.root / "runs" / "small.json"
    if lost != "run":
        stage, name = lost.split("/")
        path = artifacts(small(workspace.root, data__pictures=30, evaluation__split="dev"))[stage].path / name
    elif damage is Path.unlink:
        pytest.skip("a run that was never made needs nothing")
    try:
        damage(path)
    except UnicodeDecodeError:  # Parquet
        path.write_bytes(path.read_bytes()[:100])
    assert not unneeded(workspace)
    with pytest.raises(AttendError, match=r"what is needed is not known: .* cannot be read: run "):
        planned_compactions(workspace)
    assert shards(workspace) == before
    run_all(small(workspace.root, data__pictures=30, evaluation__split="dev"))
    compacted(workspace)
    assert len(shards(workspace)) == 2


@pytest.mark.parametrize("record", ["ledger", "identity", "shard"])
def test_files_of_a_later_version_are_kept_and_reported(workspace: Workspace, record: str) -> None:
    run_all(small(workspace.root, training__seed=7))  # what the first run made is not needed any more
    folder = artifacts(small(workspace.root))["train"].path
    path = {"ledger": folder / "ledger.json", "identity": next(workspace.grids.glob("*/identity.json"))}.get(record)
    if path is None:
        index = next(workspace.grids.glob("*/*.parquet"))
        table = pq.read_table(index)
        metadata = {"attend": json.dumps({**json.loads(table.schema.metadata[b"attend"]), "format": 2})}
        pq.write_table(table.replace_schema_metadata(metadata), index)
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    files = sorted(workspace.root.rglob("*"))
    for command in (usage, planned_compactions):
        with pytest.raises(AttendError, match="has format 2, and this version of attend reads formats up to 1"):
            command(workspace)
    assert sorted(workspace.root.rglob("*")) == files


def test_a_flipped_bit_is_not_compacted_into_a_new_digest(workspace: Workspace) -> None:
    with_fewer_pictures(workspace, 30)
    (planned,) = planned_compactions(workspace)
    content = bytearray(planned.old[0].path.read_bytes())
    content[-1] ^= 1
    planned.old[0].path.write_bytes(content)
    before = shards(workspace)
    with pytest.raises(AttendError, match="does not match its digest: run `attend workspace verify`"):
        compacted(workspace)
    assert shards(workspace) == before


def test_a_removed_stage_is_no_longer_needed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was cut off, and its section was taken out then."""
    config = small(workspace.root, tuning={"epochs": 1, "batch_pictures": 8})
    for name in ("ingest", "extract-frozen", "tensorise", "train-frozen", "tune"):
        run_stage(config, name)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tasks.grids.extract.Extract.run", interrupted)
        run_stage(config, "extract")
    with pytest.raises(AttendError, match="is not finished"):
        compacted(workspace)
    register_all(small(workspace.root))
    compacted(workspace)
    assert {item.what for item in unneeded(workspace)} == {"tune"}


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_nightly_runs_for_ever_stay_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each night trains anew; versions beyond the policy go, with their runs and artifacts, and the champion never."""
    workspace, sizes = tmp_path / "workspace", []
    flags = ["--workspace", str(workspace)]
    prune_command = ["workspace", "prune", "--keep-versions", "2", "--keep-days", "0", *flags]
    for night in range(8):
        register_all(small(workspace, training__seed=night, training__epochs=1))
        if night == 5:
            before = sorted(workspace.rglob("*.safetensors"))
            _, out, _ = attend(monkeypatch, capsys, *prune_command)
            assert "1 versions, " in out and "would be removed: add --yes" in out
            assert sorted(workspace.rglob("*.safetensors")) == before
        code, out, err = attend(monkeypatch, capsys, *prune_command, "--yes")
        assert code == 0, err
        sizes.append(sum(path.stat().st_size for path in workspace.rglob("*") if path.is_file()))
    client = tracking.connect(workspace)
    versions = {int(version.version) for version in client.search_model_versions("name = 'small'")}
    aliases = {int(version) for version in client.get_registered_model("small").aliases.values()}
    assert versions == aliases | {7, 8} and len(versions) <= 4
    assert sizes[-1] < 1.1 * sizes[4]
    captioner = load_captioner(*find(None, workspace))
    assert captioner.caption([pictures(workspace)[0].read_bytes()])[0].error is None
    assert set(register_all(small(workspace, training__seed=7, training__epochs=1)).values()) == {"fresh"}


@pytest.mark.parametrize("state", ["junk", "locked", "gone"])
def test_a_store_that_cannot_be_read_frees_nothing(registered: Path, tmp_path: Path, state: str) -> None:
    """A version is not there only where MLflow's database says so."""
    workspace = Workspace(tmp_path / "workspace")
    shutil.copytree(registered, workspace.root)
    (workspace.root / "runs" / "small.json").unlink()  # the registered version alone needs them
    assert not unneeded(workspace)  # also where the workspace was copied
    database = workspace.root / "mlflow.db"
    if state == "locked":
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("begin exclusive")
            assert not unneeded(workspace)
        return
    if state == "junk":
        database.write_bytes(b"junk" * 1000)
    else:
        database.unlink()
    assert not unneeded(workspace)


def test_versions_that_share_files_with_one_that_stays_are_kept(registered: Path, tmp_path: Path) -> None:
    """As MLflow's own way to promote a version to another model makes them."""
    workspace = tmp_path / "workspace"
    shutil.copytree(registered, workspace)
    register_all(trained(workspace))  # version 2, whose files are in this workspace
    client = tracking.connect(workspace)
    source = client.get_model_version("small", "2")
    client.copy_model_version("models:/small/2", "prod")
    client.set_registered_model_alias("prod", "live", "1")
    client.create_model_version("theirs", "runs:/nothing/model") if client.create_registered_model("theirs") else None
    for alias in ("champion", "previous", "challenger"):
        client.delete_registered_model_alias("small", alias)
    remove_versions(workspace, old_versions(workspace, 0, 0))
    assert load_captioner("models:/prod@live") is not None
    assert logged_model_of(client, client.get_model_version("prod", "1")) == str(source.source).removeprefix("models:/")
    assert files_of(client, client.get_model_version("theirs", "1")) is None
