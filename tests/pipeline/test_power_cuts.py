"""The model of a disk that loses its power, by which bench/soak/power_cuts.py finds files that are not flushed."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import pytest

from bench.soak.disk import Call, Disk, Left, write_out
from bench.soak.power_cuts import Alone, looked_at
from bench.soak.recording import read, record
from tasks.common.files import digest_of_file
from tests.support import small

NEW, OLD = b"new" * 5000, b"old" * 4000
ZEROS = bytes(len(NEW))


def left_after(calls: list[Call], times: int = 200) -> list[dict[str, bytes | None]]:
    """Return what many power cuts after the last call leave."""
    disk = Disk()
    for call in calls:
        disk.apply(call)
    return [disk.cut(random.Random(seed)).files for seed in range(times)]


def written(path: str, data: bytes, flushed: bool = True) -> list[Call]:
    """Return the calls that write a new file."""
    calls = [Call("create", path), Call("truncate", path, 0), Call("write", path, 0, data)]
    return [*calls, Call("fsync", path)] if flushed else calls


def test_a_file_flushed_before_its_rename_is_old_or_new() -> None:
    calls = [*written("a", OLD), *written(".tmp", NEW), Call("rename", ".tmp", target="a")]
    seen = left_after(calls)
    assert {left["a"] for left in seen} == {OLD, NEW}
    assert all(left.get(".tmp", NEW) == NEW for left in seen)
    assert {left["a"] for left in left_after([*calls, Call("mkdir", "b"), Call("fsync", "b")])} == {NEW}


def test_a_file_not_flushed_before_its_rename_may_be_lost() -> None:
    calls = [*written("a", OLD), *written(".tmp", NEW, flushed=False), Call("rename", ".tmp", target="a")]
    seen = {left["a"] for left in left_after(calls)}
    assert {OLD, NEW, b"", ZEROS} <= seen
    # Another file's flush makes the new name safe, and not the data.
    seen = {left["a"] for left in left_after([*calls, *written("c", NEW)])}
    assert OLD not in seen and {NEW, b"", ZEROS} <= seen


def test_names_are_left_in_order() -> None:
    calls = [call for number in range(5) for call in written(f"{number}", NEW, flushed=False)]
    names = {tuple(sorted(left)) for left in left_after(calls)}
    assert names == {tuple(f"{number}" for number in range(count)) for count in range(6)}


def test_a_file_overwritten_in_place_has_old_and_new_pages() -> None:
    calls = [*written("a", OLD), Call("write", "a", 0, NEW[: len(OLD)])]
    seen = {left["a"] for left in left_after(calls)}
    assert {OLD, NEW[: len(OLD)]} < seen and b"" not in seen
    for data in seen:
        assert data is not None
        for page in range(0, len(OLD), 4096):
            assert data[page : page + 4096] in (OLD[page : page + 4096], NEW[: len(OLD)][page : page + 4096])
    assert {left["a"] for left in left_after([*calls, Call("fdatasync", "a")])} == {NEW[: len(OLD)]}


def test_files_below_a_renamed_folder_move_with_it() -> None:
    calls = [Call("mkdir", "f"), *written("f/a", OLD), *written("fa", OLD)]
    calls += [Call("rename", "f", target="g"), Call("fsync", "g")]
    assert left_after(calls, 1) == [{"g": None, "g/a": OLD, "fa": OLD}]


def test_a_linked_file_has_its_data_under_both_names() -> None:
    calls = [*written("a", OLD), Call("link", "b", target="a"), Call("remove", "a"), *written("c", NEW)]
    assert {left.get("b") for left in left_after(calls)} == {OLD}
    assert all("a" not in left for left in left_after(calls))


def test_an_unlinked_file_may_be_there_again() -> None:
    seen = [set(left) for left in left_after([*written("a", OLD), Call("remove", "a")])]
    assert {"a"} in seen and set() in seen


def test_the_damaged_are_named(tmp_path: Path) -> None:
    disk = Disk()
    for call in [*written(f"{tmp_path}/disk/a", OLD), *written(f"{tmp_path}/disk/b", NEW, flushed=False)]:
        disk.apply(call)
    lefts = [disk.cut(random.Random(seed)) for seed in range(100)]
    for left in lefts:
        b = left.files.get(f"{tmp_path}/disk/b", NEW)
        assert left.damaged == (set() if b == NEW else {f"{tmp_path}/disk/b"})
    assert any(left.damaged for left in lefts)
    write_out(lefts[0].files, tmp_path / "disk")
    assert (tmp_path / "disk" / "a").read_bytes() == OLD


def test_damaged_weights_that_are_called_fresh_are_counted(finished_copy: Path) -> None:
    folder = finished_copy.parent
    config = small(finished_copy).model_dump(mode="json", exclude={"data": {"path"}})
    (folder / "killed.yaml").write_text(json.dumps(config), encoding="utf-8")
    digests = {path: digest_of_file(path) for path in folder.rglob("*") if path.is_file()}
    counts = looked_at(folder, Left({}, set()), Alone([], digests, {}, {}), "here")
    assert counts["stages found fresh"] == 6 and not counts["damaged and called fresh"]
    (weights,) = finished_copy.rglob("train/*/weights.safetensors")
    weights.write_bytes(bytes(weights.stat().st_size))  # no run was killed: only its size is looked at
    counts = looked_at(folder, Left({}, {str(weights)}), Alone([], digests, {}, {}), "here")
    assert counts["damaged and called fresh"] == counts["of them files of artifacts and shards"] == 1


PROGRAM = """
import os, pathlib, shutil, sqlite3, sys, threading
root = pathlib.Path(sys.argv[1])
(root / "in").mkdir()
def write():
    (root / "in" / "text").write_text("a) = 'b'\\n\\0\\u00e4\\"<>")
thread = threading.Thread(target=write)
thread.start()
thread.join()
os.chdir(root)
with open("log", "ab") as file:
    file.write(b"first ")
with open("log", "ab") as file:
    file.write(b"second")
    os.fsync(file.fileno())
shutil.copyfile(root / "log", root / "in" / "copy")
with open(root / "log", "r+b") as file:
    file.seek(2)
    file.write(b"XX")
(root / "in").rename(root / "out")
(root / "gone").touch()
(root / "gone").unlink()
with sqlite3.connect(root / "data.db") as data:
    data.execute("create table t (x)")
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_record_leads_to_the_files(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    done = record([sys.executable, "-c", PROGRAM, str(root)], log, {})
    assert done.returncode == 0, done.stderr
    calls, disk = read(log, root)
    found = {path: None if node.folder else bytes(node.data) for path, node in disk.names.items()}
    assert found == {str(path): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}
    flushed = {Path(call.path).name for call in calls if call.kind in ("fsync", "fdatasync")}
    assert {"log", "data.db"} <= flushed
