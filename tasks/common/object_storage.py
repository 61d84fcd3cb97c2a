"""A workspace in object storage, at any URL that fsspec knows, and the folder here that is a bounded cache of it.

    URL/artifacts/<stage>/<key>/...                 as in a workspace; ledger.json is uploaded last
    URL/grids/<identity>/<SHA-256>.h5               a shard's grids, by the digest of the file
    URL/grids/<identity>/shard-00000.parquet        its index, uploaded after; made once and never written over

What is whole is not written over, so that a file that is here need not be asked for again. Machines have no lock
between them: of two that make the same artifact the first one's stands, and of two that make a shard of the same number
the second is refused, where the storage can create a file exclusively (S3 can); where it cannot, readers refuse a shard
that is not the one their index means. Locks, checkpoints and digests stay in the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from tasks.common.errors import AttendError, PassingError

TOLD = "remote.json"
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})  # a folder would be made as a bucket
Found = TypeVar("Found")


class StorageError(PassingError):
    """The storage did not do what was asked of it: it may in a minute."""


class Held(Protocol):
    """A shard in memory."""

    def drop(self) -> None: ...


class Remote:
    """The storage at a URL. Names are those of files of the workspace, with slashes."""

    def __init__(self, url: str, limit: int) -> None:
        """limit: bytes of grids that are kept here. AttendError for a URL that fsspec has nothing for."""
        import fsspec

        self.url, self.limit = url.rstrip("/"), limit
        self.ahead = ThreadPoolExecutor(4)
        self._in_use: list[Path] = []
        self._held: OrderedDict[Held, int] = OrderedDict()
        self._lock = Lock()
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise AttendError(f"machine.workspace: {url}: {error}") from None

    @staticmethod
    def of(root: Path) -> Remote | None:
        """What the folder of a workspace is the cache of; None where it is the workspace itself."""
        try:
            told = json.loads((root / TOLD).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _known(told["url"], told["limit"])

    def read(self, name: str) -> bytes | None:
        """A small file; None where there is none."""
        try:
            return self._asked(lambda: bytes(self._files.cat_file(self._place(name))), name, FileNotFoundError)
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> set[str]:
        """The files in a folder."""
        try:
            found = self._asked(lambda: self._files.ls(self._place(folder), detail=False), folder, FileNotFoundError)
        except FileNotFoundError:
            return set()
        return {place.rstrip("/").rpartition("/")[2] for place in found}

    def put(self, file: Path, name: str) -> None:
        """Upload a file; one of that name is the same one."""
        self._asked(lambda: self._files.put_file(str(file), self._within(name)), name)

    def create(self, content: bytes, name: str) -> bool:
        """Upload a small file under a name that nobody else took; False where somebody has other content there."""
        with contextlib.suppress(FileExistsError):
            self._asked(
                lambda: self._files.pipe_file(self._within(name), content, mode="create"), name, FileExistsError
            )
        return self.read(name) == content

    def get(self, name: str, file: Path) -> None:
        """Download to a file, which is there wholly or not at all; FileNotFoundError where there is none."""
        temporary = file.with_name(f".{file.name}.{os.getpid()}-{os.urandom(3).hex()}.fetched")
        try:
            self._asked(lambda: self._files.get_file(self._place(name), str(temporary)), name, FileNotFoundError)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)

    def holds(self, shard: Held, size: int) -> None:
        """A shard is in memory and was used just now; those used longest ago go, where all are more than the limit."""
        with self._lock:
            self._held[shard] = size
            self._held.move_to_end(shard)
            while len(self._held) > 1 and sum(self._held.values()) > self.limit:
                oldest, _ = self._held.popitem(last=False)
                oldest.drop()

    @contextlib.contextmanager
    def using(self, grids: Path) -> Iterator[None]:
        """While the block takes, a file of grids is not removed by this process; afterwards the limit is kept."""
        with self._lock:
            self._in_use.append(grids)
        try:
            yield
        finally:
            with self._lock:
                self._in_use.remove(grids)
            self.make_room(grids.parents[2], 0)

    def make_room(self, root: Path, needed: int) -> None:
        """Remove the grids that were read longest ago, but the last, until so many bytes more are within the limit."""
        there = []
        for path in root.glob("grids/*/shard-*.h5"):
            with contextlib.suppress(FileNotFoundError):  # another process made room too
                told = path.stat()
                there.append((told.st_mtime, told.st_size, path))
        used = sum(size for _, size, _ in there)
        with self._lock:
            in_use = set(self._in_use)
        for _, size, path in sorted(there)[: len(there) - (not needed)]:
            if used + needed > self.limit and path not in in_use:
                path.unlink(missing_ok=True)
                used -= size

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _within(self, name: str) -> str:
        """The place of a file that is to be, in a folder that is there where the storage has such things."""
        place = self._place(name)
        if self.url.partition(":")[0] not in _BUCKETS:
            self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
        return place

    def _asked(self, call: Callable[[], Found], name: str, expected: type[OSError] | tuple[()] = ()) -> Found:
        """What the storage answers; StorageError where it does not, in its own words. expected: raised as it is."""
        try:
            return call()
        except expected:
            raise
        except Exception as error:  # each storage's library, and those it is made of, raise their own
            told = " ".join(str(error).split())[:200] or type(error).__name__
            raise StorageError(
                f"{self.url}/{name}: {told}: see that it can be reached and written, and run again"
            ) from None


@lru_cache(maxsize=8)
def tie(folder: Path, url: str, limit: int | None) -> None:
    """Make a folder the cache of a workspace at a URL; limit: as it was where None, 100 GiB where it was not."""
    if limit is None:
        known = Remote.of(folder)
        if known is not None and known.url == url:
            return
        limit = 100 * 2**30
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{TOLD}.{os.getpid()}.tmp").open("w", encoding="utf-8") as file:
        json.dump({"url": url, "limit": limit}, file)
    Path(file.name).replace(folder / TOLD)


@lru_cache(maxsize=8)
def _known(url: str, limit: int) -> Remote:
    return Remote(url, limit)
