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
import copy
import json
import math
import mmap
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import AttendError
from tasks.identity import FORMAT, Identity
from tasks.ledger import FileRecord, canonical, digest_of_file, flush, write_atomically, write_whole
from tasks.remote import Remote, make_room

_PAGE = 4096
_RESIDENT = 2**29  # bytes of grids that may have become resident before all are let go
_ADVISED = 2**20  # bytes asked for at once: of a longer piece Linux reads no more than its read-ahead
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
            for name in there:
                if name.endswith(".parquet") and not (self.folder / name).exists():
                    self.remote.get(self._far(name), self.folder / name)

    def _far(self, *names: str) -> str:
        """What the folder, or a file of it, is called in the storage."""
        return "/".join(("grids", self.folder.name, *names))

    def damage(self, shard: Shard, verify: bool = False) -> str | None:
        """What is wrong with a shard's file, in words; None where it is as recorded, here or in the storage."""
        if self.remote is not None and not shard.path.exists():
            there = _far_name(shard.record) in self.remote.names(self._far())
            return None if there else f"{shard.path}: is gone, and is not at {self.remote.url}"
        return shard.damage(verify)

    def fetch(self, shard: Shard) -> None:
        """Have a shard's grids here, in the place of those used longest ago where there is no room."""
        if self.remote is None:
            return
        if not shard.path.exists():
            make_room(self.folder.parents[1], shard.record.size, self.remote.limit)
            self.remote.get(self._far(_far_name(shard.record)), shard.path)
            if shard.damage(verify=True) is not None:
                shard.path.unlink()
                raise AttendError(f"{self.remote.url}/{self._far(_far_name(shard.record))}: does not match its digest")
        os.utime(shard.path)

    def shards(self) -> list[Shard]:
        """The published shards, by number."""
        return [read_shard(path) for path in sorted(self.folder.glob("shard-*.parquet"))]

    def rows(self, without: Collection[int] = ()) -> tuple[dict[str, Row], list[str]]:
        """Digest -> row over all sound shards, and what is wrong with the others, in words.

        without: numbers of shards to leave out.
        """
        rows: dict[str, Row] = {}
        damages = []
        for shard in self.shards():
            if shard.number in without:
                continue
            damage = self.damage(shard)
            if damage is None and shard.identity != self.identity.digest:
                damage = f"{shard.path}: holds grids of another identity"
            if damage is not None:
                damages.append(damage)
                continue
            for row, digest in enumerate(shard.digests):
                rows.setdefault(digest, Row(shard.number, row))
        return rows, damages

    def next_number(self) -> int:
        taken = [int(path.name[6:11]) for path in self.folder.glob("shard-*") if path.name[6:11].isdigit()]
        return max(taken, default=-1) + 1

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
        if self.remote is not None and not self.remote.create(draft.index, self._far(index.name)):
            draft.hdf5.unlink(missing_ok=True)
            raise AttendError(
                f"{self.remote.url}/{self._far(index.name)}: another machine adds to the same grids: "
                "run again when it has finished"
            )
        if self.remote is None or draft.hdf5.exists():  # another machine's draft is in the storage alone
            draft.hdf5.rename(draft.path)
        with write_whole(index) as temporary:
            temporary.write_bytes(draft.index)
        flush(self.folder)
        if self.remote is not None:
            make_room(self.folder.parents[1], 0, self.remote.limit)
        return Shard(draft.number, draft.path, self.identity.digest, draft.record, draft.digests)

    def rewrite(self, live: Collection[str], shard_rows: int) -> set[int]:
        """Write the live rows of shards that hold others too to new shards; the numbers of the old ones, still there.

        live: digests. The caller holds the store's lock, and removes the old ones once nobody reads them.
        """
        kept: set[str] = set()
        old = []
        for shard in self.shards():
            if all(digest in live for digest in shard.digests) and kept.isdisjoint(shard.digests):
                kept.update(shard.digests)
            else:
                old.append(shard)
        rows: list[tuple[Grids, str, tuple[int, int]]] = []
        for shard in old:
            sizes = pq.read_table(shard.path.with_suffix(".parquet"), columns=["width", "height"]).to_pylist()
            reader = GridReader(self, {digest: Row(shard.number, row) for row, digest in enumerate(shard.digests)})
            for digest, size in zip(shard.digests, sizes, strict=True):
                if digest in live and digest not in kept:
                    kept.add(digest)
                    rows.append((reader.read([digest])[0], digest, (size["width"], size["height"])))
                if len(rows) == shard_rows:
                    self._write_rows(rows)
                    rows = []
        if rows:
            self._write_rows(rows)
        return {shard.number for shard in old}

    def _write_rows(self, rows: list[tuple[Grids, str, tuple[int, int]]]) -> None:
        self.write([grid[None] for grid, _, _ in rows], [row[1] for row in rows], [row[2] for row in rows])

    def clean(self, read: Collection[Path] = ()) -> list[str]:
        """Set damaged shards aside and drop what a killed writer left; returns what was wrong.

        read: the shards whose digests are checked too. The caller holds the store's lock.
        """
        for path in self.folder.glob(".*.tmp"):
            path.unlink()
        for path in self.folder.glob("shard-*.h5"):
            if not path.with_suffix(".parquet").exists():  # killed between its two renames
                path.unlink()
        found = []
        for index in sorted(self.folder.glob("shard-*.parquet")):
            try:
                shard = read_shard(index)
                damage = self.damage(shard, verify=shard.path in read)
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
        return Shard(int(index.stem[6:]), path, told["identity"], record, table.column("digest").to_pylist())
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        raise AttendError(f"{index}: is damaged") from None


class _Mapped(NamedTuple):
    """A shard's file in memory, where its grids begin in it, and they: (rows, height, width, channels) float16."""

    file: mmap.mmap
    offset: int
    grids: Grids


def _map(store: GridStore, number: int) -> _Mapped:
    index = store.folder / f"shard-{number:05d}.parquet"
    if not index.exists():
        raise AttendError(f"{index}: is gone: run `attend run` to extract its pictures again")
    shard = read_shard(index)
    store.fetch(shard)
    damage = shard.damage()
    if damage is not None:
        raise AttendError(f"{damage}: run `attend run` to extract its pictures again")
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
    return _Mapped(mapped, offset, grids)


class _Mapping:
    """A shard that is mapped into memory when it is asked for, and fetched before that where it is not here."""

    def __init__(self, store: GridStore, number: int) -> None:
        self._store, self._number = store, number
        self._lock = Lock()
        self._mapped: _Mapped | None = None

    def get(self) -> _Mapped:
        with self._lock:
            mapped = self._mapped = self._mapped or _map(self._store, self._number)
        if self._store.remote is not None:
            self._store.remote.holds(self, len(mapped.file))
        return mapped

    def ahead(self) -> bool:
        """Have it fetched meanwhile, where it is not in memory; whether it is."""
        remote = self._store.remote
        if self._mapped is None and remote is not None:
            remote.ahead.submit(self.get)
        return self._mapped is not None

    def let_go(self) -> None:
        """Nothing of it need be resident."""
        mapped = self._mapped
        if mapped is not None:
            mapped.file.madvise(mmap.MADV_DONTNEED)

    def drop(self) -> None:
        self._mapped = None


class GridReader:
    """Grids by content digest, mapped into memory out of their shards.

    Refuses, with AttendError, a shard that is gone or truncated, or whose identity is not the one asked for: at once,
    or, where shards are fetched from a storage, when it comes to them.
    """

    def __init__(self, store: GridStore, rows: dict[str, Row]) -> None:
        self._rows = rows
        numbers = sorted({row.shard for row in rows.values()})
        self._maps = {number: _Mapping(store, number) for number in numbers}
        looked = numbers if store.remote is None else numbers[:1]
        shapes = {self._maps[number].get().grids.shape[1:] for number in looked}
        if len(shapes) > 1:
            raise AttendError(f"{store.folder}: shards hold grids of different shapes: {sorted(shapes)}")
        self.shape: tuple[int, int, int] = shapes.pop() if shapes else (0, 0, 0)
        # Bytes that are kept here of grids that lie in a storage, and that there are in all.
        self.limit = None if store.remote is None else store.remote.limit
        self.size = 2 * len(rows) * math.prod(self.shape)
        self._touched = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._rows

    def together_with(self, other: GridReader) -> GridReader:
        """One reader of both; no picture of the other may have a name that one has here. Both have one shape."""
        assert self.shape == other.shape and self._rows.keys().isdisjoint(other._rows)
        both = copy.copy(self)
        after = max(self._maps, default=-1) + 1
        both.limit, both.size = self.limit, self.size + other.size
        both._maps = self._maps | {number + after: mapped for number, mapped in other._maps.items()}
        both._rows = self._rows | {name: Row(row.shard + after, row.row) for name, row in other._rows.items()}
        return both

    def row(self, digest: str) -> Row:
        """Where a picture's grid lies."""
        return self._rows[digest]

    def read(self, digests: Sequence[str]) -> Grids:
        """(len(digests), height, width, channels) float16, in the order asked for."""
        out = np.empty((len(digests), *self.shape), dtype=np.float16)
        for place, digest in enumerate(digests):
            out[place] = self.mapped(digest)
        return out

    def mapped(self, digest: str) -> Grids:
        """(height, width, channels) float16 of one picture, in the mapped file itself: not to be written to."""
        row = self._rows[digest]
        self._touched += 2 * math.prod(self.shape)
        if self._touched > _RESIDENT:
            self._let_go()
        grid: Grids = self._maps[row.shard].get().grids[row.row]
        return grid

    def _let_go(self) -> None:
        """Give mapped pages back: this process holds no more of a large cache than of a small one.

        The system keeps them as long as it has room; touched again, they come back without being read.
        """
        self._touched = 0
        for mapping in self._maps.values():
            mapping.let_go()

    def expect(self, digests: Sequence[str]) -> None:
        """Have the system read these from the disk: they are asked for soon. Grids side by side are read at once."""
        size = 2 * math.prod(self.shape)
        for shard, first, count in _runs(sorted(self._rows[digest] for digest in digests)):
            if not self._maps[shard].ahead():
                continue
            mapped = self._maps[shard].get()
            begin = (mapped.offset + first * size) // mmap.PAGESIZE * mmap.PAGESIZE
            end = mapped.offset + (first + count) * size
            for at in range(begin, end, _ADVISED):
                mapped.file.madvise(mmap.MADV_WILLNEED, at, min(_ADVISED, end - at))


def _runs(rows: Sequence[Row]) -> Iterator[tuple[int, int, int]]:
    """Rows in order -> (shard, first row, how many) of those that follow each other."""
    first = 0
    for at in range(1, len(rows) + 1):
        whole = at < len(rows) and rows[at] == Row(rows[at - 1].shard, rows[at - 1].row + 1)
        if not whole:
            yield rows[first].shard, rows[first].row, at - first
            first = at


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
