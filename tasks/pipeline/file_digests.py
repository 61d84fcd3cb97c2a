"""Content digests of files, remembered by size and modification time so that a second look costs a stat."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tasks.common.files import digest_of_file
from tasks.common.progress import track
from tasks.datasets.base import Found
from tasks.pipeline.ledger import digest_of

# A file changed twice within one tick of the clock keeps its modification time: as git does, a digest taken
# this soon after the last change is not remembered.
_SETTLED_SECONDS = 2.0
_FEW = 1000  # files that are looked up one by one


class Digests:
    """SHA-256 of files, remembered in an sqlite file of the workspace. Losing that file costs time only."""

    def __init__(self, remembered: Path) -> None:
        self._file = remembered

    def of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Digest of each path; OSError where one cannot be read."""
        wanted = list(paths)
        known = self._known(wanted)
        digests: dict[Path, str] = {}
        unknown: list[tuple[Path, int, int]] = []
        for path in wanted:
            stat = path.stat()
            entry = known.get(_text(path))
            if entry is not None and entry[:2] == (stat.st_size, stat.st_mtime_ns):
                digests[path] = entry[2]
            else:
                unknown.append((path, stat.st_size, stat.st_mtime_ns))
        if unknown:
            with ThreadPoolExecutor(8) as pool:
                found = pool.map(digest_of_file, [path for path, _, _ in unknown])
                if len(unknown) >= 10_000:
                    found = track(found, total=len(unknown), label="hashing pictures")
                fresh = dict(zip((path for path, _, _ in unknown), found, strict=True))
            settled = _settled()
            rows = [(_text(path), size, mtime, fresh[path]) for path, size, mtime in unknown if mtime < settled]
            self._write("insert or replace into digest values (?, ?, ?, ?)", rows)
            digests |= fresh
        return digests

    def of_pictures(self, folder: Path, found: list[Found]) -> str:
        """One digest of the names and contents of all pictures of a folder, as `find_pictures` found them.

        Remembered by their names, sizes and times together: a second look at 120,000 reads one row.
        """
        place = _text(folder)
        listing = "\0".join(f"{name}\0{size}\0{mtime}" for name, size, mtime in found)
        told = hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
        known = self._read("select digest from listing where folder = ? and listing = ?", [(place, told)])
        if known:
            return str(known[0][0])
        digests = self.of(folder / item.name for item in found)
        digest = digest_of([[item.name, digests[folder / item.name]] for item in found])
        if all(item.mtime_ns < _settled() for item in found):
            self._write("insert or replace into listing values (?, ?, ?)", [(place, told, digest)])
        return digest

    def _known(self, paths: list[Path]) -> dict[str, tuple[int, int, str]]:
        if len(paths) < _FEW:
            query = "select path, size, mtime_ns, sha256 from digest where path = ?"
            rows = self._read(query, [(_text(path),) for path in paths])
        else:
            rows = self._read("select path, size, mtime_ns, sha256 from digest", [()])
        return {path: (size, mtime, digest) for path, size, mtime, digest in rows}

    def _connect(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._file, timeout=20)
        connection.execute("create table if not exists digest (path text primary key, size, mtime_ns, sha256)")
        connection.execute("create table if not exists listing (folder text primary key, listing, digest)")
        return connection

    def _read(self, query: str, arguments: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not self._file.exists():
            return []
        try:
            with contextlib.closing(self._connect()) as connection:
                return [row for given in arguments for row in connection.execute(query, given)]
        except sqlite3.OperationalError:  # locked, or the folder cannot be written: it still answers, only slower
            return []
        except sqlite3.DatabaseError:  # damaged: begin again
            self._file.unlink(missing_ok=True)
            return []

    def _write(self, query: str, rows: list[tuple[Any, ...]]) -> None:
        try:
            with contextlib.closing(self._connect()) as connection, connection:
                connection.executemany(query, rows)
        except (sqlite3.DatabaseError, OSError):
            pass  # a read-only workspace still answers, only slower


def _text(path: Path) -> str:
    """A path as sqlite can keep it, whatever bytes it is of."""
    return os.fsencode(path.absolute()).decode("utf-8", "backslashreplace")


def _settled() -> int:
    return time.time_ns() - int(_SETTLED_SECONDS * 1e9)
