"""The grid cache: the only code that knows HDF5.

One store for each backbone identity, shared by all data sets, one row for each distinct image content:

    grids/<identity>/identity.json
    grids/<identity>/shard-00000.h5        dataset `grid`, float16 (rows, height, width, channels), contiguous
    grids/<identity>/shard-00000.parquet   digest, row, width and height of the original; written last

The Parquet file carries size and SHA-256 of its HDF5 file: a shard without it does not exist. Shards are
immutable. Readers map the grids into memory by the dataset's offset in the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file, flush, write_atomically, write_whole
from tasks.common.object_storage import Remote
from tasks.grids.identity import FORMAT, Identity
from tasks.pipeline.ledger import FileRecord, canonical

_PAGE = 4096
_TRIES, _ABANDONED = 5, 3600.0  # of fetching a shard that others remove; seconds after which nobody fetches
_AGAIN = "run `attend run` to extract its pictures again"
_INDEX = pa.schema([("digest", pa.string()), ("row", pa.int32()), ("width", pa.int32()), ("height", pa.int32())])
Grids = npt.NDArray[np.float16]


@dataclass(frozen=True, order=True)
class Row:
    """Where a picture's grid lies; in order as in the files."""

    shard: int
    row: int


@dataclass(frozen=True)
class Shard:
    """A published shard, as its Parquet file tells it."""

    number: int
    path: Path
    identity: str
    record: FileRecord
    digests: list[str]

    def damage(self, verify: bool = False) -> str | None:
        """What is wrong with the HDF5 file, in words; None where it is as recorded."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return f"{self.path}: is gone"
        if size < self.record.size:
            return f"{self.path}: is truncated: {size} of {self.record.size} bytes"
        if size != self.record.size or (verify and digest_of_file(self.path) != self.record.sha256):
            return f"{self.path}: does not match its digest"
        return None


@dataclass(frozen=True)
class Draft:
    """A shard's two files, written whole but not published."""

    number: int
    path: Path  # of the HDF5 file, once it is published
    hdf5: Path
    index: bytes  # of the Parquet file
    record: FileRecord
    digests: list[str]


class GridStore:
    """The shards of one identity below a folder of grids."""

    def __init__(self, grids: Path, identity: Identity) -> None:
        self.identity = identity
        self.folder = identity.folder(grids)
        self.remote = Remote.of(grids.parent)

    def open(self) -> None:
        """Make the folder, or check that it holds grids of this identity; have the indexes here of all shards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        told = self.folder / "identity.json"
        if not told.exists():
            write_atomically(told, json.dumps(self.identity.told, indent=1, sort_keys=True))
        elif json.loads(told.read_text(encoding="utf-8")) != self.identity.told:
            raise AttendError(f"{told}: is the identity of other grids: move the folder away")
        if self.remote is not None:
            there = self.remote.names(self._far())
            if told.name not in there:
                self.remote.put(told, self._far(told.name))
            missing = [name for name in there if name.endswith(".parquet") and not (self.folder / name).exists()]
            get = self.remote.get
            list(self.remote.ahead.map(lambda name: get(self._far(name), self.folder / name), missing))

    def _far(self, *names: str) -> str:
        """What the folder, or a file of it, is called in the storage."""
        return "/".join(("grids", self.folder.name, *names))

    def _in_storage(self) -> set[str]:
        """The files that the storage has of this store; none where there is no storage."""
        return self.remote.names(self._far()) if self.remote is not None else set()

    def fetch(self, shard: Shard) -> None:
        """Have a shard's grids here, in the place of those used longest ago where there is no room."""
        if self.remote is None:
            return
        if shard.damage() is not None:
            self.remote.make_room(self.folder.parents[1], shard.record.size)
            name = self._far(_far_name(shard.record))
            try:
                self.remote.get(name, shard.path)
            except FileNotFoundError:
                raise AttendError(f"{self.remote.url}/{name}: is gone, and is not here: {_AGAIN}") from None
            if shard.damage(verify=True) is not None:
                shard.path.unlink()
                raise AttendError(f"{self.remote.url}/{name}: does not match its digest: remove it, and {_AGAIN}")
        with contextlib.suppress(FileNotFoundError):  # another reader made room
            os.utime(shard.path)

    def shards(self) -> list[Shard]:
        """The published shards, by number."""
        return [read_shard(path) for path in sorted(self.folder.glob("shard-*.parquet"), key=_number)]

    def rows(self, without: Collection[int] = ()) -> tuple[dict[str, Row], list[str]]:
        """Digest -> row over all sound shards, and what is wrong with the others, in words.

        without: numbers of shards to leave out.
        """
        rows: dict[str, Row] = {}
        damages = []
        there = self._in_storage()
        for shard in self.shards():
            if shard.number in without:
                continue
            damage = None if _far_name(shard.record) in there else shard.damage()
            if damage is None and shard.identity != self.identity.digest:
                damage = f"{shard.path}: holds grids of another identity"
            if damage is not None:
                damages.append(damage)
                continue
            for row, digest in enumerate(shard.digests):
                rows.setdefault(digest, Row(shard.number, row))
        return rows, damages

    def next_number(self) -> int:
        return max(map(_number, self.folder.glob("shard-*")), default=-1) + 1

    def write(self, slabs: Sequence[Grids], digests: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Shard:
        """Publish a shard with the next number; as `draft`. The caller holds the store's lock."""
        return self.publish(self.draft(slabs, digests, sizes, self.next_number()))

    def draft(
        self, slabs: Sequence[Grids], digests: Sequence[str], sizes: Sequence[tuple[int, int]], number: int
    ) -> Draft:
        """Write a shard's files.

        slabs: its grids, (n, h, w, C) float16. sizes: (width, height) of the originals. AttendError where the disk has
        no room; nothing is left behind.
        """
        path = self.folder / f"shard-{number:05d}.h5"
        needed, free = sum(slab.nbytes for slab in slabs), shutil.disk_usage(self.folder).free
        if free < needed + 2**20:
            raise AttendError(
                f"{path}: the disk is full: {needed / 2**20:.0f} MiB are needed, {free / 2**20:.0f} are free; "
                "make room and run again, published shards are kept"
            )
        name = f".{number:05d}-{secrets.token_hex(4)}"  # two workers may make the same shard
        hdf5 = self.folder / f"{name}.h5.tmp"
        try:
            _write_hdf5(hdf5, slabs, self.identity.digest)
            record = FileRecord(hdf5.stat().st_size, digest_of_file(hdf5))
            index = _index_of(digests, sizes, record, self.identity.digest)
            flush(hdf5)
            if self.remote is not None:
                self.remote.put(hdf5, self._far(_far_name(record)))
        except BaseException:
            hdf5.unlink(missing_ok=True)
            raise
        return Draft(number, path, hdf5, index, record, list(digests))

    def publish(self, draft: Draft) -> Shard:
        """Make a draft a shard of the store. The caller holds the store's lock.

        AttendError where another machine took the number in the storage.
        """
        index = draft.path.with_suffix(".parquet")
        if index.exists():
            raise AttendError(f"{index}: is there already, and is not written over: run again")
        if not draft.hdf5.exists() and _far_name(draft.record) not in self._in_storage():
            raise AttendError(
                f"{draft.hdf5}: was made on a machine that does not have this workspace: give one that all workers see"
            )
        if self.remote is not None and not self.remote.create(draft.index, self._far(index.name)):
            draft.hdf5.unlink(missing_ok=True)
            raise AttendError(
                f"{self.remote.url}/{self._far(index.name)}: another machine adds to the same grids: "
                "run again when it has finished"
            )
        if draft.hdf5.exists():  # another machine's is in the storage alone
            draft.hdf5.rename(draft.path)
        with write_whole(index) as temporary:
            temporary.write_bytes(draft.index)
        flush(self.folder)
        if self.remote is not None:
            self.remote.make_room(self.folder.parents[1], 0)
        return Shard(draft.number, draft.path, self.identity.digest, draft.record, draft.digests)

    def clean(self, read: Collection[Path] = ()) -> list[str]:
        """Set damaged shards aside and drop what a killed writer left; returns what was wrong.

        read: the shards whose digests are checked too. The caller holds the store's lock.
        """
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.fetched"):  # readers hold no lock
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        there = self._in_storage()
        for path in self.folder.glob("shard-*.h5"):
            if not path.with_suffix(".parquet").exists():  # killed between its two renames
                path.unlink()
        found = []
        for index in sorted(self.folder.glob("shard-*.parquet")):
            try:
                shard = read_shard(index)
                damage = shard.damage(verify=shard.path in read)
                if damage is not None and _far_name(shard.record) in there:
                    shard.path.unlink(missing_ok=True)
                    continue  # it is fetched again when it is needed
            except AttendError as error:
                damage = str(error)
            if damage is not None:
                found.append(damage)
                set_aside(index)
        return found


def _write_hdf5(path: Path, slabs: Sequence[Grids], identity: str) -> None:
    # Contiguous, page-aligned and without time stamps: it can be mapped by offset, and the same grids
    # give the same bytes.
    with h5py.File(
        path, "w", libver="latest", alignment_threshold=_PAGE, alignment_interval=_PAGE, track_order=False
    ) as file:
        file.attrs["format"] = FORMAT
        file.attrs["identity"] = identity
        shape = (sum(len(slab) for slab in slabs), *slabs[0].shape[1:])
        grid = file.create_dataset("grid", shape, np.float16, track_times=False, fill_time="never")
        first = 0
        for slab in slabs:
            grid[first : first + len(slab)] = slab
            first += len(slab)


def _index_of(digests: Sequence[str], sizes: Sequence[tuple[int, int]], record: FileRecord, identity: str) -> bytes:
    told = {"format": FORMAT, "identity": identity, "size": record.size, "sha256": record.sha256}
    table = pa.table(
        {
            "digest": list(digests),
            "row": list(range(len(digests))),
            "width": [width for width, _ in sizes],
            "height": [height for _, height in sizes],
        },
        schema=_INDEX.with_metadata({"attend": canonical(told)}),
    )
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    return bytes(out.getvalue())


def _number(path: Path) -> int:
    """Of a file of a shard; -1 where its name has none."""
    number = path.name.removeprefix("shard-").partition(".")[0]
    return int(number) if number.isdigit() else -1


def _far_name(record: FileRecord) -> str:
    """What a shard's HDF5 file is called in the storage."""
    return f"{record.sha256}.h5"


def set_aside(index: Path) -> None:
    """Rename a shard to `.damaged`, index first: it does not count any more, and is not lost."""
    for path in (index, index.with_suffix(".h5")):
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_name(path.name + ".damaged"))


def remove_shard(path: Path) -> None:
    """Remove a shard's two files, index first: without it the other does not count."""
    path.with_suffix(".parquet").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def read_shard(index: Path) -> Shard:
    """The shard that a Parquet index describes; AttendError where that file is damaged."""
    try:
        table = pq.read_table(index)
        told: dict[str, Any] = json.loads(table.schema.metadata[b"attend"])
        if told["format"] != FORMAT:
            raise AttendError(f"{index}: is of format {told['format']}, this program reads {FORMAT}")
        record = FileRecord(told["size"], told["sha256"])
        path = index.with_suffix(".h5")
        return Shard(_number(index), path, told["identity"], record, table.column("digest").to_pylist())
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        raise AttendError(f"{index}: is damaged") from None


class Mapped(NamedTuple):
    """A shard's file in memory, where its grids begin in it, and they: (rows, height, width, channels) float16.

    digests: of its rows, in order.
    """

    file: mmap.mmap
    offset: int
    grids: Grids
    digests: list[str]


def map_shard(store: GridStore, number: int) -> Mapped:
    """A shard in memory, fetched where it is not here; AttendError where it is not as recorded."""
    index = store.folder / f"shard-{number:05d}.parquet"
    if not index.exists():
        raise AttendError(f"{index}: is gone: {_AGAIN}")
    shard = read_shard(index)
    for _ in range(_TRIES):
        kept = contextlib.nullcontext() if store.remote is None else store.remote.using(shard.path)
        with kept, contextlib.suppress(FileNotFoundError):  # another process made room meanwhile
            store.fetch(shard)
            return _mapped(store, shard)
    raise AttendError(f"{shard.path}: is removed as soon as it is fetched: set a larger machine.cache_gib")


def _mapped(store: GridStore, shard: Shard) -> Mapped:
    damage = shard.damage()
    if damage is not None:
        if store.remote is not None and not shard.path.exists():
            raise FileNotFoundError
        raise AttendError(f"{damage}: {_AGAIN}")
    with h5py.File(shard.path, "r") as file:
        if file.attrs.get("identity") != store.identity.digest:
            raise AttendError(f"{shard.path}: holds grids of another backbone or transform than the one asked for")
        grid = file["grid"]
        offset, shape = grid.id.get_offset(), grid.shape
        if offset is None or grid.dtype != np.float16:
            raise AttendError(f"{shard.path}: `grid` is not contiguous float16: it was not written by this program")
    with shard.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    grids: Grids = np.frombuffer(mapped, np.float16, math.prod(shape), offset).reshape(shape)
    return Mapped(mapped, offset, grids, shard.digests)


class hdf5_arrays(contextlib.AbstractContextManager[dict[str, Any]]):  # noqa: N801 -- used as a function
    """The arrays at the top of an HDF5 file that others wrote, by name, not read yet; OSError where it is none."""

    def __init__(self, path: Path) -> None:
        self._file = h5py.File(path, "r")

    def __enter__(self) -> dict[str, Any]:
        return {name: item for name, item in self._file.items() if isinstance(item, h5py.Dataset)}

    def __exit__(self, *raised: object) -> None:
        self._file.close()


def stores(grids: Path) -> Iterator[GridStore]:
    """Every store below a folder of grids."""
    for told in sorted(grids.glob("*/identity.json")):
        yield GridStore(grids, Identity(**json.loads(told.read_text(encoding="utf-8"))))


def bytes_in(folder: Path) -> int:
    """Bytes that the files below a folder take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
