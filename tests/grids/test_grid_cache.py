"""The grid cache: what is written is read back, by this program and without it; what is damaged is refused."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import AttendError
from tasks.grids.identity import Identity
from tasks.grids.reader import GridReader
from tasks.grids.store import GridStore
from tests.support import store_with, write_shard


def test_read_back_in_any_order(tmp_path: Path) -> None:
    store, grids = store_with(tmp_path)
    reader = GridReader(store, store.rows()[0])
    wanted = ["1-2", "0-0", "1-0", "0-0"]
    assert np.array_equal(reader.read(wanted), np.stack([grids[digest] for digest in wanted]))
    assert "1-1" in reader and "9-9" not in reader


def test_readable_with_h5py_and_pyarrow_alone(tmp_path: Path) -> None:
    store, grids = store_with(tmp_path)
    table = pq.read_table(store.folder / "shard-00001.parquet").to_pylist()
    with h5py.File(store.folder / "shard-00001.h5") as file:
        assert file["grid"].chunks is None and file["grid"].id.get_offset() % 4096 == 0
        for row in table:
            assert np.array_equal(file["grid"][row["row"]], grids[row["digest"]])
            assert (row["width"], row["height"]) == (10, 20)


def test_the_same_grids_give_the_same_bytes(tmp_path: Path) -> None:
    first, _ = store_with(tmp_path / "a")
    second, _ = store_with(tmp_path / "b")
    for name in ("shard-00000.h5", "shard-00001.h5", "shard-00000.parquet"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()


def test_a_truncated_shard_is_refused_and_then_set_aside(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path)
    rows, _ = store.rows()
    path = store.folder / "shard-00001.h5"
    os.truncate(path, 9000)
    with pytest.raises(AttendError, match=r"shard-00001.h5: is truncated: 9000 of \d+ bytes: run `attend run`"):
        GridReader(store, rows)
    assert list(store.rows()[0]) == ["0-0", "0-1", "0-2"]
    assert len(store.clean()) == 1
    assert (store.folder / "shard-00001.h5.damaged").exists()
    assert store.next_number() == 2


def test_a_flipped_bit_is_found_by_verifying(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path)
    path = store.folder / "shard-00000.h5"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert [shard.damage() for shard in store.shards()] == [None, None]
    assert "does not match its digest" in str(store.shards()[0].damage(verify=True))


def test_grids_of_another_identity_are_refused(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path)
    other = GridStore(tmp_path, Identity("tiny", "random:1", 64, "squash", None, "float32", 1))
    other.open()
    for suffix in (".h5", ".parquet"):
        (other.folder / f"shard-00000{suffix}").write_bytes((store.folder / f"shard-00000{suffix}").read_bytes())
    with pytest.raises(AttendError, match="grids of another backbone"):
        GridReader(other, store.rows()[0])
    assert other.rows()[0] == {}


def test_a_damaged_index_is_refused_in_one_line(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path)
    (store.folder / "shard-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(AttendError, match=r"shard-00000.parquet: is damaged"):
        store.shards()


def test_a_killed_writer_leaves_nothing_that_counts(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path)
    (store.folder / ".00002.h5.tmp").write_bytes(b"half")
    (store.folder / "shard-00002.h5").write_bytes(b"renamed, its index not yet")
    assert len(store.shards()) == 2
    store.clean()
    assert sorted(path.suffix for path in store.folder.glob("*00002*")) == []


def test_a_full_disk_is_reported_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = store_with(tmp_path)
    before = sorted(store.folder.iterdir())
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(AttendError, match=r"the disk is full: .* run again, published shards are kept"):
        write_shard(store, [np.zeros((1, 2, 3, 5), np.float16)], ["x"], [(1, 1)])
    assert sorted(store.folder.iterdir()) == before


def test_shards_beyond_five_digits_follow_each_other(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path, shards=1)
    for suffix in (".h5", ".parquet"):
        (store.folder / "shard-00000").with_suffix(suffix).rename(store.folder / f"shard-99999{suffix}")
    values = np.zeros((1, 2, 3, 512), np.float16)
    for digest in ("a", "b", "c"):
        write_shard(store, [values], [digest], [(1, 1)])
    assert [shard.number for shard in store.shards()] == [99999, 100000, 100001, 100002]
    assert store.rows()[0].keys() == {"0-0", "0-1", "0-2", "a", "b", "c"}


def test_a_shard_is_not_written_over(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path, shards=1)
    draft = store.draft([np.zeros((1, 2, 3, 512), np.float16)], ["other"], [(1, 1)], 0)
    with pytest.raises(AttendError, match=r"shard-00000.parquet: exists already"):
        store.publish(draft)
    assert list(store.rows()[0]) == ["0-0", "0-1", "0-2"]


def test_more_shards_than_files_a_process_may_open_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, grids = store_with(tmp_path, shards=40, rows=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 20, hard))
    try:
        with monkeypatch.context() as patch, pytest.raises(AttendError, match=r"40 shards .* raise `ulimit -Hn`"):
            patch.setattr(resource, "setrlimit", _refused)
            GridReader(store, store.rows()[0])
        reader = GridReader(store, store.rows()[0])
        assert np.array_equal(reader.read(list(grids)), np.stack(list(grids.values())))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _refused(*_: object) -> None:
    raise ValueError
