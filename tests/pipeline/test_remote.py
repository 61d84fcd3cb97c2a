"""A workspace in object storage: what one machine made another finds, nothing half of it, and in a bounded folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tasks.common.errors import AttendError
from tasks.common.object_storage import Remote, StorageError
from tasks.config.machine import MachineConfig
from tasks.config.schema import Config
from tasks.data.manifest import read_pictures
from tasks.grids.extraction import make_shard
from tasks.grids.index import open_grids, read_identity
from tasks.grids.reader import GridReader
from tasks.grids.store import GridStore
from tasks.pipeline.ledger import LEDGER
from tasks.pipeline.workspace import Workspace
from tasks.training.outputs import HISTORY
from tests.support import artifacts, plan, run_all, run_stage, small

AWS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 server of this process; a bucket's URL."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="grids")
        yield "s3://grids"
    server.stop()


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/storage"
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def on_machine(url: str, folder: Path, **changes: Any) -> Config:
    """The same config on a machine that keeps what it uses in `folder`; the pictures are on all of them."""
    return small(Path("unused"), machine__workspace=url, machine__cache=str(folder), **changes)


def states(config: Config) -> dict[str, str]:
    return {status.stage.name: status.state for status in plan(config, "evaluate")}


def test_artifacts_of_one_machine_are_found_by_another(url: str, tmp_path: Path) -> None:
    first, second = on_machine(url, tmp_path / "one"), on_machine(url, tmp_path / "two")
    ran = run_all(first)
    assert set(ran.values()) == {"missing"}
    assert set(states(second).values()) == {"fresh"}
    assert not list(second.workspace.glob("grids/*/*.h5"))  # not fetched before it is needed
    run_all(small(tmp_path / "alone"))
    alone = artifacts(small(tmp_path / "alone"), "evaluate")
    assert {kind: item.products for kind, item in artifacts(second, "evaluate").items()} == {
        kind: item.products for kind, item in alone.items()
    }
    third = on_machine(url, tmp_path / "two", training__epochs=3)
    assert run_all(third)["train"] == "missing" and list(second.workspace.glob("grids/*/*.h5"))


def test_only_new_pictures_are_extracted_elsewhere(url: str, tmp_path: Path) -> None:
    run_all(on_machine(url, tmp_path / "one"))
    more = on_machine(url, tmp_path / "two", data__pictures=80)
    run_all(more)
    assert artifacts(more, "extract")["extract"].ledger.counts["extracted"] == 20


def test_without_its_ledger_nothing_is_there(url: str, tmp_path: Path) -> None:
    first, second = on_machine(url, tmp_path / "one"), on_machine(url, tmp_path / "two")
    run_all(first)
    remote = Remote.for_cache(first.workspace)
    assert remote is not None
    found = artifacts(first, "evaluate")["train"]
    name = f"{found.path.relative_to(first.workspace).as_posix()}/{LEDGER}"
    assert remote.read(name) is not None
    filesystem, root = fsspec.core.url_to_fs(url)
    filesystem.rm_file(f"{root}/{name}")
    assert states(second)["train"] == "missing"
    run_all(second)
    assert remote.read(name) is not None


def test_an_upload_that_fails_is_done_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, other = on_machine(url, tmp_path / "one"), on_machine(url, tmp_path / "two")
    for stage in ("ingest", "extract", "tensorise"):
        run_stage(config, stage)
    put = Remote.put

    def cut_off(self: Remote, file: Path, name: str) -> None:
        if file.name == HISTORY:
            raise StorageError("gone")
        put(self, file, name)

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(Remote, "put", cut_off)
        run_stage(config, "train")
    assert states(other)["train"] == "missing"
    run_stage(config, "train")
    assert states(config)["train"] == states(other)["train"] == "fresh"
    assert LEDGER not in artifacts(config, "train")["train"].ledger.files


def test_damaged_local_files_are_fetched_again(url: str, tmp_path: Path) -> None:
    config = on_machine(url, tmp_path / "one")
    run_all(config)
    found = artifacts(config, "evaluate")
    before = found["train"].products
    (found["train"].path / "weights.safetensors").unlink()
    shard = next(config.workspace.glob("grids/*/shard-00000.h5"))
    shard.write_bytes(shard.read_bytes()[:100])
    again = on_machine(url, tmp_path / "one", training__epochs=3)
    ran = run_all(again)
    assert ran["train"] == "stale" and artifacts(again, "extract")["extract"].ledger.counts["extracted"] in (0, 60)
    assert len(list(config.workspace.glob("grids/*/shard-*.parquet"))) == 4  # none was extracted anew
    assert states(config)["train"] == "fresh" and artifacts(config, "train")["train"].products == before
    assert (found["train"].path / "weights.safetensors").exists()


def test_a_shard_of_other_pictures_is_refused(url: str, tmp_path: Path) -> None:
    """As where two machines published one at once, and the storage let both."""
    config = on_machine(url, tmp_path / "one")
    run_all(config)
    extracted = artifacts(config, "extract")["extract"]
    folder = next(config.workspace.glob("grids/*"))
    one, other = (folder / f"shard-0000{number}.parquet" for number in (0, 1))
    one.write_bytes(other.read_bytes())
    (folder / "shard-00000.h5").unlink()
    with pytest.raises(AttendError, match="grids of other pictures than the index says"):
        open_grids(extracted, config.machine)


def test_damaged_grids_are_refused(url: str, tmp_path: Path) -> None:
    first, second = on_machine(url, tmp_path / "one"), on_machine(url, tmp_path / "two", training__epochs=3)
    run_all(first)
    remote = Remote.for_cache(first.workspace)
    assert remote is not None
    filesystem, root = fsspec.core.url_to_fs(url)
    far = next(iter(first.workspace.glob("grids/*"))).relative_to(first.workspace).as_posix()
    for name in remote.names(far):
        if name.endswith(".h5"):
            content = bytearray(remote.read(f"{far}/{name}") or b"")
            content[-1] ^= 1
            filesystem.pipe_file(f"{root}/{far}/{name}", bytes(content))
    run_stage(second, "tensorise")
    with pytest.raises(AttendError, match="does not match its digest"):
        run_stage(second, "train")


def test_two_machines_cannot_make_the_same_shard(url: str, tmp_path: Path) -> None:
    first, second = on_machine(url, tmp_path / "one"), on_machine(url, tmp_path / "two", data__pictures=30)
    for config in (first, second):
        run_stage(config, "ingest")

    def meanwhile(jobs: Any, publish: Any) -> None:
        run_stage(first, "extract")
        publish(make_shard(jobs[0]))

    with pytest.raises(AttendError, match="another machine adds to the same grids"):
        run_stage(second, "extract", executor=meanwhile)
    run_stage(second, "extract")  # all it wants is there by now
    assert artifacts(second, "extract")["extract"].ledger.counts["extracted"] == 0


def test_no_more_is_kept_here_than_allowed(url: str, tmp_path: Path) -> None:
    run_all(on_machine(url, tmp_path / "one"))
    shard = 73_728  # bytes of a file
    few = on_machine(url, tmp_path / "two", machine__cache_gib=2.5 * shard / 2**30, training__epochs=3)
    run_stage(few, "tensorise")
    with pytest.raises(AttendError, match=r"training\.block=64"):
        run_stage(few, "train")
    blocks = on_machine(url, tmp_path / "two", machine__cache_gib=2.5 * shard / 2**30, training__block=4)
    run_all(blocks)
    assert artifacts(blocks, "train")["train"].ledger.counts["epochs"] == 2
    before = sum(path.stat().st_size for path in blocks.workspace.glob("grids/*/*.h5"))
    assert blocks.machine.cache_gib is not None
    assert 0 < before <= blocks.machine.cache_gib * 2**30


def test_a_reader_gives_what_was_written_whatever_is_evicted(tmp_path: Path) -> None:
    config = on_machine(f"file://{tmp_path}/storage", tmp_path / "one")
    run_all(config)
    extracted = artifacts(config, "extract")["extract"]
    everything = open_grids(extracted, config.machine)
    digests = [p.digest for p in read_pictures(artifacts(config, "ingest")["ingest"].path, "train")]
    expected = everything.read(digests)
    tight = on_machine(f"file://{tmp_path}/storage", tmp_path / "two", machine__cache_gib=1e-9)
    states(tight)
    reader = open_grids(artifacts(tight, "extract")["extract"], tight.machine)
    assert isinstance(reader, GridReader)
    order = np.random.default_rng(0).permutation(len(digests))
    reader.prefetch([digests[at] for at in order[:10]])
    for at in order:
        np.testing.assert_array_equal(reader.read([digests[at]])[0], expected[at])
    assert len(list(tight.workspace.glob("grids/*/*.h5"))) == 1


def test_a_storage_that_does_not_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**AWS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    config = on_machine("s3://nowhere/x", tmp_path / "one")
    with pytest.raises(StorageError, match=r"s3://nowhere/x/.*run again"):
        run_stage(config, "ingest")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(AttendError, match=r"machine\.workspace: what://x"):
        run_stage(on_machine("what://x", tmp_path / "two"), "ingest")


def test_a_bucket_is_not_made(s3: str, tmp_path: Path) -> None:
    with pytest.raises(AttendError, match=r"s3://mistyped/x/.*run again") as refused:
        run_stage(on_machine("s3://mistyped/x", tmp_path / "one"), "ingest")
    assert not isinstance(refused.value, StorageError)  # which would be tried again


def test_the_folder_can_go(url: str, tmp_path: Path) -> None:
    """It is a cache: what it held is in the storage."""
    config = on_machine(url, tmp_path / "one")
    run_all(config)
    shutil.rmtree(tmp_path / "one")
    fresh = on_machine(url, tmp_path / "new")
    assert set(states(fresh).values()) == {"fresh"}
    found = artifacts(fresh, "extract")["extract"]
    store = GridStore(Workspace(fresh.workspace).grids, read_identity(found))
    store.open()
    assert len(store.rows()[0]) == found.ledger.counts["grids"] == 60


@pytest.mark.parametrize("left", ["", "[]", '{"url": "memory://x"}', '{"url": "memory://x", "limit": "much"}'])
def test_settings_of_a_cache_that_cannot_be_read_are_reported(tmp_path: Path, left: str) -> None:
    (tmp_path / "remote.json").write_text(left)
    with pytest.raises(AttendError, match=r"remote.json: does not say which storage this folder is a cache of"):
        Workspace(tmp_path)


def test_saved_cache_settings_stay(tmp_path: Path) -> None:
    """A command that only names the URL, beside a run."""
    url, cache = f"file://{tmp_path}/storage", tmp_path / "cache"

    def limit(gib: float | None) -> int:
        known = Remote.for_cache(MachineConfig(workspace=url, cache=cache, cache_gib=gib).folder)
        assert known is not None
        return known.limit // 2**30

    assert [limit(gib) for gib in (None, 5, None, 7, None)] == [100, 5, 5, 7, 7]


def test_two_machines_that_publish_at_once_leave_one_whole_artifact(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has uploaded its files when the second uploads its own, and its ledger; they differ in every byte."""
    first, second = on_machine(url, tmp_path / "one"), on_machine(url, tmp_path / "two")
    for stage in ("ingest", "extract", "tensorise"):
        run_stage(first, stage)
    create = Remote.create
    interleaved: list[str] = []

    def late(self: Remote, content: bytes, name: str) -> bool:
        if name.startswith("artifacts/train/") and not interleaved:
            interleaved.append(name)
            with monkeypatch.context() as patch:  # other weights, as another processor's rounding gives
                patch.setattr("tasks.training.loop.TrainingLoop.schedule", lambda _: 0.3)
                run_stage(second, "train")
        return create(self, content, name)

    monkeypatch.setattr(Remote, "create", late)
    run_stage(first, "train")
    assert interleaved
    one, two = (artifacts(config, "train")["train"] for config in (first, second))
    assert one.ledger == two.ledger
    assert states(on_machine(url, tmp_path / "three"))["train"] == "fresh"
    assert (
        Workspace(tmp_path / "three").damage(artifacts(on_machine(url, tmp_path / "three"), "train")["train"]) is None
    )
