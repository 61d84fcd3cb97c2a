"""A workspace in object storage, at any URL that fsspec supports, and its local folder, a cache of limited size.

    URL/artifacts/<stage>/<key>/ledger.json         uploaded last, and never over another intact one
    URL/artifacts/<stage>/<key>/<publication>/...   the files that the ledger names, from a single upload
    URL/grids/<identity>/<SHA-256>.h5               the grids of a shard, named by the file's digest
    URL/grids/<identity>/shard-00000.parquet        the shard's index, uploaded after its grids; created once and never
                                                    overwritten

A complete file is never overwritten with other content, so a cached file need not be compared with the storage.
Machines share no lock. If two produce the same artifact, the first one is kept. If two write a shard with the same
number, the second is refused if the storage can create a file exclusively (S3 can); if it cannot, readers refuse a
shard that does not match its index. Locks, checkpoints and cached digests stay in the folder.
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
from typing import NamedTuple, Protocol, TypeVar

from tasks.common.errors import AttendError, TransientError, reason_of
from tasks.common.files import write_atomically

_SETTINGS_FILE = "remote.json"  # in the cache's folder: the URL, and the limit in bytes
_BUCKET_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})  # makedirs would create a bucket there
_DEFAULT_LIMIT = 100 * 2**30  # bytes
Answer = TypeVar("Answer")


class _Settings(NamedTuple):
    """The contents of a cache's settings file."""

    url: str
    limit: int


_configured: dict[Path, tuple[str, int | None]] = {}  # folder of a cache -> URL and limit, from this process's config


class StorageError(TransientError):
    """A failure of the storage, which may pass within a minute."""


class MappedShard(Protocol):
    """A shard mapped into memory, which `drop` releases."""

    def drop(self) -> None: ...


class Remote:
    """The storage at a URL. Names are paths of files relative to the workspace, with slashes."""

    def __init__(self, url: str, limit: int) -> None:
        """Connect to the storage; AttendError for a URL that fsspec cannot open.

        limit: bytes of grids that the local cache may hold.
        """
        import fsspec

        self.url, self.limit = url.rstrip("/"), limit
        self.prefetch_pool = ThreadPoolExecutor(4)
        self._in_use: list[Path] = []
        self._mapped: OrderedDict[MappedShard, int] = OrderedDict()
        self._lock = Lock()
        try:
            self._filesystem, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise AttendError(f"machine.workspace: {url}: {error}") from None

    @staticmethod
    def for_cache(root: Path) -> Remote | None:
        """Return the storage whose cache is a workspace's folder; None if the folder is the workspace itself.

        It is known from this process's config, or from the settings that another process saved.
        """
        saved = _saved_settings(root)
        url, limit = _configured.get(root, (None, None))
        if url is None:
            return None if saved is None else _remote(saved.url, saved.limit)
        if limit is None:
            limit = saved.limit if saved is not None and saved.url == url else _DEFAULT_LIMIT
        return _remote(url, limit)

    def save_settings(self, root: Path) -> None:
        """Write the storage's address into a cache's folder, for processes that know only the folder."""
        settings = _Settings(self.url, self.limit)
        if _saved_settings(root) == settings:
            return
        root.mkdir(parents=True, exist_ok=True)
        write_atomically(root / _SETTINGS_FILE, json.dumps(settings._asdict()))

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is no such file."""
        try:
            return self._call(lambda: bytes(self._filesystem.cat_file(self._path(name))), name, FileNotFoundError)
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> set[str]:
        """Return the names of the files in a folder; the empty set if there is no such folder."""
        try:
            paths = self._call(lambda: self._filesystem.ls(self._path(folder), detail=False), folder, FileNotFoundError)
        except FileNotFoundError:
            return set()
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def put(self, file: Path, name: str) -> None:
        """Upload a file. If the storage already has a file with this name, it has the same content."""
        self._call(lambda: self._filesystem.put_file(str(file), self._path_to_write(name)), name)

    def create(self, content: bytes, name: str) -> bool:
        """Upload a small file under a name not yet taken; return False if other content has that name."""
        with contextlib.suppress(FileExistsError):
            self._call(
                lambda: self._filesystem.pipe_file(self._path_to_write(name), content, mode="create"),
                name,
                FileExistsError,
            )
        return self.read(name) == content

    def get(self, name: str, file: Path) -> None:
        """Download to a file, completely or not at all; FileNotFoundError if the storage has no such file."""
        temporary = file.with_name(f".{file.name}.{os.getpid()}-{os.urandom(3).hex()}.fetched")
        try:
            self._call(lambda: self._filesystem.get_file(self._path(name), str(temporary)), name, FileNotFoundError)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)

    def record_use(self, shard: MappedShard, size: int) -> None:
        """Record that a shard of `size` bytes is in memory and has just been used.

        If all shards in memory exceed the limit, the least recently used are dropped, but never the last one.
        """
        with self._lock:
            self._mapped[shard] = size
            self._mapped.move_to_end(shard)
            while len(self._mapped) > 1 and sum(self._mapped.values()) > self.limit:
                oldest, _ = self._mapped.popitem(last=False)
                oldest.drop()

    @contextlib.contextmanager
    def protect(self, grids: Path) -> Iterator[None]:
        """Protect a file of grids from removal by this process during the block, and enforce the limit afterwards."""
        with self._lock:
            self._in_use.append(grids)
        try:
            yield
        finally:
            with self._lock:
                self._in_use.remove(grids)
            self.make_room(grids.parents[2], 0)

    def make_room(self, root: Path, needed: int) -> None:
        """Remove the least recently read files of grids until `needed` more bytes fit within the limit.

        root: the workspace's folder. Files in use stay. With `needed` 0 the file read last stays too, even if large.
        """
        files = []
        for path in root.glob("grids/*/shard-*.h5"):
            with contextlib.suppress(FileNotFoundError):  # another process made room too
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        files.sort()
        used = sum(size for _, size, _ in files)
        with self._lock:
            in_use = set(self._in_use)
        for _, size, path in files if needed else files[:-1]:
            if used + needed > self.limit and path not in in_use:
                path.unlink(missing_ok=True)
                used -= size

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _path_to_write(self, name: str) -> str:
        """Return the path of a file to write; create its folder if the storage has real folders."""
        path = self._path(name)
        if self.url.partition(":")[0] not in _BUCKET_SCHEMES:
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        return path

    def _call(self, operation: Callable[[], Answer], name: str, expected: type[OSError] | tuple[()] = ()) -> Answer:
        """Return the result of an operation on the storage; StorageError, with the storage's message, if it fails.

        name: the file or folder, for the message. expected: the exceptions to raise unchanged.
        """
        try:
            return operation()
        except expected:
            raise
        except Exception as error:  # each storage's library, and the libraries that it uses, raise various exceptions
            message = reason_of(error) or type(error).__name__
            # A missing bucket will not appear within a minute.
            kind = AttendError if isinstance(error, FileNotFoundError) else StorageError
            raise kind(
                f"{self.url}/{name}: {message}: check its address, that it can be reached and written, and its "
                "credentials (S3: AWS_ACCESS_KEY_ID or a role), and run again"
            ) from None


def set_cache(folder: Path, url: str, limit: int | None) -> None:
    """Set, only in this process, that a folder is the cache of the workspace at a URL.

    limit: bytes of grids that the cache may hold; None keeps the limit set or saved before, or 100 GiB the first time.
    """
    url = url.rstrip("/")
    if limit is None and folder in _configured and _configured[folder][0] == url:
        return  # keep a limit that was set in this process
    _configured[folder] = (url, limit)


def _saved_settings(root: Path) -> _Settings | None:
    """Return the settings saved by `save_settings`; None if there are none. Raises AttendError for a damaged file."""
    path = root / _SETTINGS_FILE
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return _Settings(str(saved["url"]), int(saved["limit"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError):
        raise AttendError(
            f"{path}: does not say which storage this folder is a cache of: remove the file, and give the workspace by "
            "its URL"
        ) from None


@lru_cache(maxsize=8)
def _remote(url: str, limit: int) -> Remote:
    """Return this process's only `Remote` for a URL and limit."""
    return Remote(url, limit)
