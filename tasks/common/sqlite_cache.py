"""A cache in an SQLite file that may be lost at any time: missing values are computed again."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class SqliteCache:
    """A cache in a file, which is created when the first row is written, and removed if it is damaged.

    Its folder is not created, so that merely looking at a data set leaves no workspace behind.
    """

    def __init__(self, path: Path, *tables: str) -> None:
        """path: the file. tables: name and columns of each, such as `digest (path text primary key, size)`."""
        self._path, self._tables = path, tables

    def read(self, query: str, arguments: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Run a query once for each tuple of arguments and return all rows; none if the file cannot be read."""
        if not self._path.exists():
            return []
        try:
            with contextlib.closing(self._connect()) as connection:
                return [row for values in arguments for row in connection.execute(query, values)]
        except sqlite3.OperationalError:  # locked, or in a read-only folder
            return []
        except sqlite3.DatabaseError:  # damaged: start with an empty one
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            return []

    def write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement once for each row; if the file is not writable, nothing is cached."""
        with (
            contextlib.suppress(sqlite3.DatabaseError, OSError),
            contextlib.closing(self._connect()) as connection,
            connection,
        ):
            connection.executemany(statement, rows)

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():
            self._path.touch()  # with the umask's permissions: SQLite's own never let a group write
        connection = sqlite3.connect(self._path, timeout=20)
        for table in self._tables:
            connection.execute(f"create table if not exists {table}")
        return connection
