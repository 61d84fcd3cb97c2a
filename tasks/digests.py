"""Content digests of files, remembered by size and modification time so that a second look costs a stat."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.ledger import digest_of_file
from tasks.progress import track

# A file changed twice within one tick of the clock keeps its modification time: as git does, a digest taken
# this soon after the last change is not remembered.
_SETTLED_SECONDS = 2.0


class Digests:
    """SHA-256 of files, remembered in an sqlite file of the workspace. Losing that file costs time only."""

    def __init__(self, remembered: Path) -> None:
        self._file = remembered

    def of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Digest of each path; OSError where one cannot be read."""
        known = self._known()
        digests: dict[Path, str] = {}
        unknown: list[tuple[Path, int, int]] = []
        for path in paths:
            stat = path.stat()
            entry = known.get(str(path.absolute()))
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
            self._remember(unknown, fresh)
            digests |= fresh
        return digests

    def _connect(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._file, timeout=20)
        connection.execute("create table if not exists digest (path text primary key, size, mtime_ns, sha256)")
        return connection

    def _known(self) -> dict[str, tuple[int, int, str]]:
        if not self._file.exists():
            return {}
        try:
            with self._connect() as connection:
                rows = connection.execute("select path, size, mtime_ns, sha256 from digest").fetchall()
        except sqlite3.DatabaseError:  # damaged: begin again
            self._file.unlink(missing_ok=True)
            return {}
        return {path: (size, mtime, digest) for path, size, mtime, digest in rows}

    def _remember(self, stats: list[tuple[Path, int, int]], digests: dict[Path, str]) -> None:
        settled = time.time_ns() - int(_SETTLED_SECONDS * 1e9)
        rows = [(str(path.absolute()), size, mtime, digests[path]) for path, size, mtime in stats if mtime < settled]
        try:
            with self._connect() as connection:
                connection.executemany("insert or replace into digest values (?, ?, ?, ?)", rows)
        except (sqlite3.DatabaseError, OSError):
            pass  # a read-only workspace still answers, only slower
