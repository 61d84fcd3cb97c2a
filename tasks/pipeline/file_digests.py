"""Content digests of files, cached by size and modification time, so that a second look-up costs only a stat."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from tasks.common.errors import TransientError
from tasks.common.files import digest_of_file
from tasks.common.progress import track
from tasks.common.sqlite_cache import SqliteCache
from tasks.common.threads import map_in_threads
from tasks.datasets.base import PictureFile
from tasks.pipeline.ledger import digest_of

# A file changed twice within one tick of the clock keeps its modification time. As in git, a digest computed this soon
# after the last change is therefore not cached.
_SETTLED_SECONDS = 2.0
_MAX_SINGLE_QUERIES = 1000  # for this many files or more, reading the whole table is faster than a query for each


class Digests:
    """SHA-256 digests of files, cached in an sqlite file of the workspace. Losing that file costs only time."""

    def __init__(self, database: Path) -> None:
        """database: path of the sqlite file; it is created when the first digest is stored."""
        self._cache = SqliteCache(
            database,
            "digest (path text primary key, size, mtime_ns, sha256)",
            "listing (folder text primary key, listing, digest)",
        )

    def of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Return the digest of each path.

        Raises OSError if a file cannot be read; if it no longer exists, that error is also a TransientError.
        """
        digests, errors = self.of_readable(paths)
        if errors:
            raise errors[0]
        return digests

    def of_readable(self, paths: Iterable[Path]) -> tuple[dict[Path, str], list[OSError]]:
        """Return the digest of each path that can be read, and an error for each of the others."""
        requested, settled = list(paths), _settled_before()
        cached = self._cached(requested)
        digests: dict[Path, str] = {}
        unknown: list[tuple[Path, int, int]] = []
        errors: list[OSError] = []
        for path in requested:
            try:
                stat = path.stat()
            except OSError as error:
                errors.append(_named(error, path))
                continue
            entry = cached.get(_text(path))
            if entry is not None and entry[:2] == (stat.st_size, stat.st_mtime_ns):
                digests[path] = entry[2]
            else:
                unknown.append((path, stat.st_size, stat.st_mtime_ns))
        if unknown:
            computed = map_in_threads(_digest_or_error, [path for path, _, _ in unknown])
            if len(unknown) >= 10_000:
                computed = track(computed, total=len(unknown), label="hashing pictures")
            rows = []
            for (path, size, mtime), result in zip(unknown, computed, strict=True):
                if isinstance(result, OSError):
                    errors.append(result)
                    continue
                digests[path] = result
                if mtime < settled:
                    rows.append((_text(path), size, mtime, result))
            self._cache.write("insert or replace into digest values (?, ?, ?, ?)", rows)
        return digests, errors

    def of_pictures(self, folder: Path, pictures: list[PictureFile]) -> str:
        """Return one digest of the names and contents of all pictures in a folder, as `find_pictures` lists them.

        It is cached under their names, sizes and times together: the second look-up of 120,000 pictures reads one row.
        """
        folder_text, settled = _text(folder), _settled_before()
        listing = "\0".join(f"{name}\0{size}\0{mtime}" for name, size, mtime in pictures)
        listing_digest = hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
        cached = self._cache.read(
            "select digest from listing where folder = ? and listing = ?", [(folder_text, listing_digest)]
        )
        if cached:
            return str(cached[0][0])
        digests = self.of(folder / picture.name for picture in pictures)
        digest = digest_of([[picture.name, digests[folder / picture.name]] for picture in pictures])
        if all(picture.mtime_ns < settled for picture in pictures):
            self._cache.write(
                "insert or replace into listing values (?, ?, ?)", [(folder_text, listing_digest, digest)]
            )
        return digest

    def _cached(self, paths: list[Path]) -> dict[str, tuple[int, int, str]]:
        """Return the cached (size, modification time in ns, digest) by path, in the form of `_text`."""
        if len(paths) < _MAX_SINGLE_QUERIES:
            query = "select path, size, mtime_ns, sha256 from digest where path = ?"
            rows = self._cache.read(query, [(_text(path),) for path in paths])
        else:
            rows = self._cache.read("select path, size, mtime_ns, sha256 from digest", [()])
        return {path: (size, mtime, digest) for path, size, mtime, digest in rows}


def _digest_or_error(path: Path) -> str | OSError:
    """Return the digest of a file, or the error that occurred."""
    try:
        return digest_of_file(path)
    except OSError as error:
        return _named(error, path)


def _named(error: OSError, path: Path) -> OSError:
    """Return the error, as a TransientError that names the file if the file no longer exists."""
    if isinstance(error, FileNotFoundError):
        return TransientError(f"{path}: is gone since its folder was listed: run again")
    return error


def _text(path: Path) -> str:
    """Return an absolute path as text that sqlite can store, for any bytes in the path."""
    return os.fsencode(path.absolute()).decode("utf-8", "backslashreplace")


def _settled_before() -> int:
    """Return the Unix time in ns before which a file must have been modified for its digest to be cached."""
    return time.time_ns() - int(_SETTLED_SECONDS * 1e9)
