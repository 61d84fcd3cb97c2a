"""Read grids by content digest from the shards of a store, which are mapped into memory."""

from __future__ import annotations

import math
import mmap
import resource
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from tasks.common.errors import AttendError
from tasks.grids.store import GridRow, Grids, GridStore, MappedFile, map_shard

_RESIDENT = 2**29  # bytes of grids that may be read before all mapped pages are released
_OTHER_FILES = 256  # files that this process may open besides the shards
_ADVISED = 2**20  # bytes per madvise call: Linux reads no more than its read-ahead of a longer range


class _LazyShard:
    """A shard that is mapped into memory on first use, after a download if it is only in the storage."""

    def __init__(self, store: GridStore, number: int, expected: dict[int, str]) -> None:
        """Store which shard to map; expected: row -> its digest in the reader's index."""
        self._store, self._number, self._expected = store, number, expected
        self._lock = Lock()
        self._mapped: MappedFile | None = None

    def get(self) -> MappedFile:
        """Return the mapped shard. Raises AttendError if its rows hold other pictures than expected."""
        with self._lock:
            mapped = self._mapped  # read once: another thread may drop it at any time
            if mapped is None:
                mapped = map_shard(self._store, self._number)
                held = dict(enumerate(mapped.digests))
                if any(held.get(row) != digest for row, digest in self._expected.items()):
                    raise AttendError(
                        f"{self._store.folder}: shard {self._number} holds grids of other pictures than the index "
                        "says: another machine wrote it meanwhile: move the folder away, and run `attend run`"
                    )
                self._mapped = mapped
        if self._store.remote is not None:
            self._store.remote.record_use(self, len(mapped.file))
        return mapped

    def prefetch(self) -> bool:
        """Return whether the shard is mapped; if not, start downloading and mapping it in the background."""
        remote = self._store.remote
        if self._mapped is None and remote is not None:
            remote.prefetch_pool.submit(self.get)
        return self._mapped is not None

    def release_pages(self) -> None:
        """Allow the system to drop the shard's pages from this process; the mapping stays valid."""
        mapped = self._mapped
        if mapped is not None:
            mapped.file.madvise(mmap.MADV_DONTNEED)

    def drop(self) -> None:
        """Forget the mapping; `get` maps the shard again."""
        self._mapped = None


class GridReader:
    """A reader of grids by content digest, from shards that are mapped into memory.

    Raises AttendError for a shard that is missing or truncated, or whose identity is not the store's: in the
    constructor, or, if shards are downloaded from a storage, when a shard is first used.
    """

    def __init__(self, store: GridStore, rows: dict[str, GridRow]) -> None:
        self._rows = rows
        expected: dict[int, dict[int, str]] = defaultdict(dict)
        for digest, row in rows.items():
            expected[row.shard][row.row] = digest
        numbers = sorted(expected)
        self._shards = {number: _LazyShard(store, number, expected[number]) for number in numbers}
        _allow_open_files(len(numbers), store)
        mapped_now = numbers if store.remote is None else numbers[:1]  # other shards in a storage are fetched on use
        shapes = {self._shards[number].get().grids.shape[1:] for number in mapped_now}
        if len(shapes) > 1:
            raise AttendError(f"{store.folder}: shards hold grids of different shapes: {sorted(shapes)}")
        self.shape: tuple[int, int, int] = shapes.pop() if shapes else (0, 0, 0)
        # limit: bytes of a storage's grids that are cached on this machine. size: bytes of all grids of this reader.
        self.limit = None if store.remote is None else store.remote.limit
        self.size = 2 * len(rows) * math.prod(self.shape)
        self._bytes_read = 0  # since the pages were last released

    def __contains__(self, digest: str) -> bool:
        return digest in self._rows

    def row(self, digest: str) -> GridRow:
        """Return the shard and row of a picture's grid."""
        return self._rows[digest]

    def read(self, digests: Sequence[str]) -> Grids:
        """Return a copy of the grids, float16 (len(digests), height, width, channels), in the order of `digests`."""
        out = np.empty((len(digests), *self.shape), dtype=np.float16)
        for index, digest in enumerate(digests):
            out[index] = self.mapped(digest)
        return out

    def mapped(self, digest: str) -> Grids:
        """Return one picture's grid, float16 (height, width, channels), as a read-only view of the mapped file."""
        row = self._rows[digest]
        self._bytes_read += 2 * math.prod(self.shape)
        if self._bytes_read > _RESIDENT:
            self._release_pages()
        grid: Grids = self._shards[row.shard].get().grids[row.row]
        return grid

    def _release_pages(self) -> None:
        """Release all mapped pages, so that this process needs no more memory for a large cache than for a small one.

        The system's page cache keeps them while it has room: reading them again then needs no disk access.
        """
        self._bytes_read = 0
        for shard in self._shards.values():
            shard.release_pages()

    def prefetch(self, digests: Sequence[str]) -> None:
        """Start reading these pictures' grids from disk before they are needed; adjacent rows are read together."""
        size = 2 * math.prod(self.shape)
        for shard, first, count in _runs(sorted(self._rows[digest] for digest in digests)):
            if not self._shards[shard].prefetch():
                continue
            mapped = self._shards[shard].get()
            begin = (mapped.offset + first * size) // mmap.PAGESIZE * mmap.PAGESIZE
            end = mapped.offset + (first + count) * size
            for start in range(begin, end, _ADVISED):
                mapped.file.madvise(mmap.MADV_WILLNEED, start, min(_ADVISED, end - start))


def _allow_open_files(files: int, store: GridStore) -> None:
    """Ensure that this process may open `files` more files, one per shard; raise AttendError if it may not."""
    needed = len(list(Path("/dev/fd").iterdir())) + files + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        except (ValueError, OSError):
            raise AttendError(
                f"{store.folder}: its {files} shards cannot be open at once: raise `ulimit -Hn`, which is {hard}, "
                "or extract with a larger machine.shard_rows"
            ) from None


def _runs(rows: Sequence[GridRow]) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, first row, number of rows) for each run of consecutive rows; `rows` are sorted."""
    first = 0
    for index in range(1, len(rows) + 1):
        continues = index < len(rows) and rows[index] == GridRow(rows[index - 1].shard, rows[index - 1].row + 1)
        if not continues:
            yield rows[first].shard, rows[first].row, index - first
            first = index
