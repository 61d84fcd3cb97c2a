"""Read and write the grid cache. Only it and `datasets/foreign_hdf5.py` use h5py.

There is one store per backbone identity, shared by all data sets, with one row per distinct image content:

    grids/<identity>/identity.json
    grids/<identity>/shard-00000.h5        dataset `grid`, float16 (rows, height, width, channels), contiguous
    grids/<identity>/shard-00000.parquet   digest, row, width and height of the original; written last

The Parquet file holds the size and SHA-256 of its HDF5 file; an HDF5 file without one is not a shard. Shards are
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

from tasks.common.errors import AttendError, check_format
from tasks.common.files import atomic_file, digest_of_file, flush, write_atomically
from tasks.common.object_storage import Remote
from tasks.grids.identity import FORMAT, Identity
from tasks.pipeline.ledger import FileRecord, canonical

_PAGE = 4096
_FETCH_ATTEMPTS = 5  # to fetch and map a shard, which other processes may remove in between
_ABANDONED_SECONDS = 3600.0  # age from which a partial download is assumed to be a killed process's
_REMEDY = "run `attend run` to extract its pictures again"
_INDEX_SCHEMA = pa.schema([("digest", pa.string()), ("row", pa.int32()), ("width", pa.int32()), ("height", pa.int32())])
Grids = npt.NDArray[np.float16]


class DamagedIndexError(AttendError):
    """The Parquet index of a shard cannot be read."""


@dataclass(frozen=True, order=True)
class GridRow:
    """The position of a picture's grid: shard number and row. Rows sort as they are in the files."""

    shard: int
    row: int


@dataclass(frozen=True)
class Shard:
    """A published shard, as its Parquet file describes it.

    path: the HDF5 file. identity: the digest of the store's identity. record: size and SHA-256 of the HDF5 file.
    digests: the names of its grids, in row order.
    """

    number: int
    path: Path
    identity: str
    record: FileRecord
    digests: list[str]

    @property
    def index(self) -> Path:
        """Return the path of the Parquet index."""
        return self.path.with_suffix(".parquet")

    def damage(self, verify: bool = False) -> str | None:
        """Return a message about what is wrong with the HDF5 file; None if it matches its record.

        verify: check its SHA-256 too, not only its size.
        """
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
    """A complete, unpublished shard: its HDF5 file under a temporary name, and its Parquet index in memory."""

    shard: Shard  # as it will be published
    hdf5: Path  # the HDF5 file's path until then
    index: bytes  # the content of the Parquet file


class GridStore:
    """A store: the shards of one identity, in a folder below `grids`, a workspace's folder of grids."""

    def __init__(self, grids: Path, identity: Identity) -> None:
        self.identity = identity
        self.folder = grids / identity.digest[:20]
        self.remote = Remote.for_cache(grids.parent)

    def open(self) -> None:
        """Create the folder if it does not exist, and download missing shard indexes if there is a storage.

        Raises AttendError if the folder holds grids of another identity.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "identity.json"
        if not path.exists():
            write_atomically(path, json.dumps(self.identity.as_dict, indent=1, sort_keys=True))
        elif Identity.read(path) != self.identity:
            raise AttendError(f"{path}: is the identity of other grids: move the folder away, and run again")
        if self.remote is not None:
            self.remote.save_settings(self.folder.parents[1])
            remote_files = self._remote_files()
            if path.name not in remote_files:
                self.remote.put(path, self._remote_name(path.name))
            missing = [name for name in remote_files if name.endswith(".parquet") and not (self.folder / name).exists()]
            get = self.remote.get
            # list() waits for all downloads, and raises the error of a failed one.
            list(self.remote.prefetch_pool.map(lambda name: get(self._remote_name(name), self.folder / name), missing))

    def _remote_name(self, *names: str) -> str:
        """Return the name in the storage of the folder, or of a file in it."""
        return "/".join(("grids", self.folder.name, *names))

    def _remote_files(self) -> set[str]:
        """Return the names of this store's files in the storage; empty if there is no storage."""
        return self.remote.names(self._remote_name()) if self.remote is not None else set()

    def fetch(self, shard: Shard) -> None:
        """Download a shard's HDF5 file from the storage, if there is one, unless it is intact on this machine.

        The least recently used shards are removed if the cache has no room for it. Raises AttendError if the storage's
        file is missing or damaged.
        """
        if self.remote is None:
            return
        if shard.damage() is not None:
            self.remote.make_room(self.folder.parents[1], shard.record.size)
            name = self._remote_name(_remote_hdf5_name(shard.record))
            try:
                self.remote.get(name, shard.path)
            except FileNotFoundError:
                raise AttendError(
                    f"{self.remote.url}/{name}: is gone, and this machine has no copy: {_REMEDY}"
                ) from None
            if shard.damage(verify=True) is not None:
                shard.path.unlink()
                raise AttendError(f"{self.remote.url}/{name}: does not match its digest: remove it, and {_REMEDY}")
        with contextlib.suppress(FileNotFoundError):  # another process removed it to make room
            os.utime(shard.path)  # the time of the last use

    def shards(self) -> list[Shard]:
        """Return the published shards, ordered by number. Raises DamagedIndexError for one that cannot be read."""
        return [read_shard(path) for path in self.indexes()]

    def indexes(self) -> list[Path]:
        """Return the Parquet indexes of the published shards, ordered by number."""
        return sorted(self.folder.glob("shard-*.parquet"), key=_shard_number)

    def rows(self, only: Collection[int] | None = None) -> tuple[dict[str, GridRow], list[str]]:
        """Return digest -> row for all intact shards, and a message for each damaged one.

        only: numbers of the shards to read; None for all.
        """
        rows: dict[str, GridRow] = {}
        damages = []
        remote_files = self._remote_files()
        for index in self.indexes():
            number = _shard_number(index)
            if only is not None and number not in only:
                continue
            try:
                shard = read_shard(index)
            except DamagedIndexError as error:
                damages.append(str(error))
                continue
            damage = None if _remote_hdf5_name(shard.record) in remote_files else shard.damage()
            if damage is None and shard.identity != self.identity.digest:
                damage = f"{shard.path}: holds grids of another identity"
            if damage is not None:
                damages.append(damage)
                continue
            for row, digest in enumerate(shard.digests):
                rows.setdefault(digest, GridRow(shard.number, row))
        return rows, damages

    def next_number(self) -> int:
        """Return the number that follows the highest one in use; 0 in an empty store."""
        return max(map(_shard_number, self.folder.glob("shard-*")), default=-1) + 1

    def draft(
        self, slabs: Sequence[Grids], digests: Sequence[str], sizes: Sequence[tuple[int, int]], number: int
    ) -> Draft:
        """Write a shard's HDF5 file under a temporary name, and upload it if there is a storage.

        slabs: the shard's grids, in parts of float16 (n, h, w, C). digests: the names of the grids. sizes: (width,
        height) of the originals. number: the shard's number. Raises AttendError if the disk has no room. No error
        leaves a file behind.
        """
        path = self.folder / f"shard-{number:05d}.h5"
        needed, free = sum(slab.nbytes for slab in slabs), shutil.disk_usage(self.folder).free
        if free < needed + 2**20:
            raise AttendError(
                f"{path}: the disk is full: {needed / 2**20:.0f} MiB are needed, {free / 2**20:.0f} are free; "
                "make room and run again, published shards are kept"
            )
        name = f".{number:05d}-{secrets.token_hex(4)}"  # two workers may write the same shard
        hdf5 = self.folder / f"{name}.h5.tmp"
        try:
            _write_hdf5(hdf5, slabs, self.identity.digest)
            record = FileRecord.of(hdf5)
            index = _index_of(digests, sizes, record, self.identity.digest)
            flush(hdf5)
            if self.remote is not None:
                self.remote.put(hdf5, self._remote_name(_remote_hdf5_name(record)))
        except BaseException:
            hdf5.unlink(missing_ok=True)
            raise
        return Draft(Shard(number, path, self.identity.digest, record, list(digests)), hdf5, index)

    def publish(self, draft: Draft) -> Shard:
        """Publish a draft as a shard of the store. The caller holds the store's lock.

        Raises AttendError if the shard's number is taken, on this machine or by another machine in the storage, or if
        the draft's HDF5 file is not in this workspace.
        """
        shard, index = draft.shard, draft.shard.index
        if index.exists():
            raise AttendError(f"{index}: exists already, and is not overwritten: run again")
        if not draft.hdf5.exists() and _remote_hdf5_name(shard.record) not in self._remote_files():
            raise AttendError(
                f"{draft.hdf5}: is missing: the worker that wrote it has another workspace: "
                "set machine.workspace to a path or URL that all workers can reach"
            )
        if self.remote is not None and not self.remote.create(draft.index, self._remote_name(index.name)):
            draft.hdf5.unlink(missing_ok=True)
            raise AttendError(
                f"{self.remote.url}/{self._remote_name(index.name)}: another machine adds to the same grids: "
                "run again when it has finished"
            )
        if draft.hdf5.exists():  # another machine's file is only in the storage
            draft.hdf5.rename(shard.path)
        with atomic_file(index) as temporary:
            temporary.write_bytes(draft.index)
        flush(self.folder)
        if self.remote is not None:
            self.remote.make_room(self.folder.parents[1], 0)
        return shard

    def clean(self, verify: Collection[Path] = ()) -> list[str]:
        """Set damaged shards aside and remove the files of killed writers; return a message for each damaged shard.

        verify: HDF5 files whose SHA-256 is checked too, not only their size. The caller holds the store's lock.
        """
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.fetched"):  # readers hold no lock: a recent file may be a download in progress
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
        remote_files = self._remote_files()
        for path in self.folder.glob("shard-*.h5"):
            if not path.with_suffix(".parquet").exists():  # its writer was killed between its two renames
                path.unlink()
        damages = []
        for index in self.indexes():
            try:
                shard = read_shard(index)
                damage = shard.damage(verify=shard.path in verify)
                if damage is not None and _remote_hdf5_name(shard.record) in remote_files:
                    shard.path.unlink(missing_ok=True)
                    continue  # it is downloaded again when needed
            except DamagedIndexError as error:
                damage = str(error)
            if damage is not None:
                damages.append(damage)
                set_aside(index)
        return damages


def _write_hdf5(path: Path, slabs: Sequence[Grids], identity: str) -> None:
    # Contiguous and page-aligned, so that the grids can be mapped by their offset in the file; without time stamps, so
    # that the same grids give the same bytes.
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
    """Return the content of a shard's Parquet file. record: of its HDF5 file. identity: the identity's digest."""
    metadata = {"format": FORMAT, "identity": identity, "size": record.size, "sha256": record.sha256}
    table = pa.table(
        {
            "digest": list(digests),
            "row": list(range(len(digests))),
            "width": [width for width, _ in sizes],
            "height": [height for _, height in sizes],
        },
        schema=_INDEX_SCHEMA.with_metadata({"attend": canonical(metadata)}),
    )
    out = pa.BufferOutputStream()
    pq.write_table(table, out, write_page_checksum=True)
    return bytes(out.getvalue())


def _shard_number(path: Path) -> int:
    """Return the number in the name of a shard's file; -1 if it has none."""
    number = path.name.removeprefix("shard-").partition(".")[0]
    return int(number) if number.isascii() and number.isdecimal() else -1


def _remote_hdf5_name(record: FileRecord) -> str:
    """Return the file name of a shard's HDF5 file in the storage."""
    return f"{record.sha256}.h5"


def set_aside(index: Path) -> None:
    """Rename a shard's two files to `.damaged`, index first, so that it leaves the store but is not lost."""
    for path in (index, index.with_suffix(".h5")):
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_name(path.name + ".damaged"))


def remove_shard(path: Path) -> None:
    """Remove a shard's two files, index first: the HDF5 file alone is not a shard."""
    path.with_suffix(".parquet").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def read_shard(index: Path) -> Shard:
    """Return the shard that a Parquet index describes.

    Raises DamagedIndexError if the index is damaged, and AttendError if it is of a later format.
    """
    try:
        table = pq.read_table(index, page_checksum_verification=True)
        metadata: dict[str, Any] = json.loads(table.schema.metadata[b"attend"])
        check_format(metadata["format"], FORMAT, str(index))
        record = FileRecord(metadata["size"], metadata["sha256"])
        path = index.with_suffix(".h5")
        return Shard(_shard_number(index), path, metadata["identity"], record, table.column("digest").to_pylist())
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError):
        raise DamagedIndexError(f"{index}: is damaged: run `attend workspace verify`, which sets it aside") from None


class MappedFile(NamedTuple):
    """A shard's HDF5 file, mapped into memory.

    offset: the byte of the file at which the grids begin. grids: float16 (rows, height, width, channels), a view of the
    mapped file. digests: the names of the rows, in order.
    """

    file: mmap.mmap
    offset: int
    grids: Grids
    digests: list[str]


def map_shard(store: GridStore, number: int) -> MappedFile:
    """Map a shard into memory, after downloading it if it is only in the storage.

    Raises AttendError if it is missing, damaged, or of another identity than the store's.
    """
    index = store.folder / f"shard-{number:05d}.parquet"
    if not index.exists():
        raise AttendError(f"{index}: is gone: {_REMEDY}")
    shard = read_shard(index)
    for _ in range(_FETCH_ATTEMPTS):
        in_use = contextlib.nullcontext() if store.remote is None else store.remote.protect(shard.path)
        with in_use, contextlib.suppress(FileNotFoundError):  # another process removed the file to make room
            store.fetch(shard)
            return _map_file(store, shard)
    raise AttendError(f"{shard.path}: is removed as soon as it is fetched: set a larger machine.cache_gib")


def _map_file(store: GridStore, shard: Shard) -> MappedFile:
    """Map a shard's HDF5 file into memory.

    Raises FileNotFoundError if there is a storage and the file is not on this machine (any more), and AttendError if it
    is damaged or not of this store.
    """
    damage = shard.damage()
    if damage is not None:
        if store.remote is not None and not shard.path.exists():
            raise FileNotFoundError
        raise AttendError(f"{damage}: {_REMEDY}")
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
    return MappedFile(mapped, offset, grids, shard.digests)


def stores(grids: Path) -> Iterator[GridStore]:
    """Yield every store below a workspace's folder of grids. Raises AttendError for an identity that cannot be read."""
    for path in sorted(grids.glob("*/identity.json")):
        yield GridStore(grids, Identity.read(path))


def folder_size(folder: Path) -> int:
    """Return the total size in bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
