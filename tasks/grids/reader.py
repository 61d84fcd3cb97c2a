"""Grids by content digest, out of the shards of a store, mapped into memory."""

from __future__ import annotations

import copy
import math
import mmap
import resource
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from tasks.common.errors import AttendError
from tasks.grids.store import Grids, GridStore, Mapped, Row, map_shard

_RESIDENT = 2**29  # bytes of grids that may have become resident before all are let go
_OTHER_FILES = 256
_ADVISED = 2**20  # bytes asked for at once: of a longer piece Linux reads no more than its read-ahead


class _Mapping:
    """A shard that is mapped into memory when it is asked for, and fetched before that where it is not here."""

    def __init__(self, store: GridStore, number: int, meant: dict[int, str]) -> None:
        """meant: row -> the digest that the reader's index has for it."""
        self._store, self._number, self._meant = store, number, meant
        self._lock = Lock()
        self._mapped: Mapped | None = None

    def get(self) -> Mapped:
        with self._lock:
            mapped = self._mapped = self._mapped or self._checked(map_shard(self._store, self._number))
        if self._store.remote is not None:
            self._store.remote.holds(self, len(mapped.file))
        return mapped

    def _checked(self, mapped: Mapped) -> Mapped:
        if any(row >= len(mapped.digests) or mapped.digests[row] != digest for row, digest in self._meant.items()):
            raise AttendError(
                f"{self._store.folder}: shard {self._number} holds grids of other pictures than the index says: "
                "another machine wrote it meanwhile: move the folder away, and run `attend run`"
            )
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
        meant: dict[int, dict[int, str]] = defaultdict(dict)
        for digest, row in rows.items():
            meant[row.shard][row.row] = digest
        numbers = sorted(meant)
        self._maps = {number: _Mapping(store, number, meant[number]) for number in numbers}
        looked = numbers if store.remote is None else numbers[:1]
        _allow_open(len(numbers), store)
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


def _allow_open(files: int, store: GridStore) -> None:
    """Let this process have so many files more open: each shard is one. AttendError where the system does not."""
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


def _runs(rows: Sequence[Row]) -> Iterator[tuple[int, int, int]]:
    """Rows in order -> (shard, first row, how many) of those that follow each other."""
    first = 0
    for at in range(1, len(rows) + 1):
        whole = at < len(rows) and rows[at] == Row(rows[at - 1].shard, rows[at - 1].row + 1)
        if not whole:
            yield rows[first].shard, rows[first].row, at - first
            first = at
