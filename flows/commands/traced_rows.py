"""Rows about photographs in a workspace's SQLite databases: the caches of digests, and Prefect's records of runs."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path

from flows.operations.prefect_settings import environment
from tasks.data.fingerprints import DATABASE as FINGERPRINTS
from tasks.datasets.base import WORKSPACE_FILE

# Tables of Prefect's server whose rows may show a photograph: history, which nothing depends on.
_PREFECT_TABLES = ("artifact", "artifact_collection", "events", "event_resources", "log")


def change_rows(workspace: Path, digests: Collection[str], names: Collection[str], delete: bool) -> dict[Path, int]:
    """Count the rows about photographs in the caches and in Prefect's database, or delete them."""
    ends = {name[start:] for name in names for start in (0, *(at.end() for at in re.finditer("/", name)))}

    def has_digest(text: str) -> bool:
        return text in digests

    def lists_name(text: str) -> bool:  # a folder that is listed again costs a moment
        return not ends.isdisjoint(text.split("\0"))

    prefect = Path(environment(workspace)["PREFECT_HOME"]) / "prefect.db"
    rules: list[tuple[Path, Collection[str], Callable[[str], bool]]] = [
        (workspace / WORKSPACE_FILE, ("digest",), has_digest),
        (workspace / WORKSPACE_FILE, ("listing",), lists_name),
        (workspace / FINGERPRINTS, (), has_digest),
        (prefect, _PREFECT_TABLES, _named(digests, names)),
    ]
    changed: dict[Path, int] = {}
    for path, tables, matches in rules:
        changed[path] = changed.get(path, 0) + _matching(path, tables, matches, delete)
    return changed


def _named(digests: Collection[str], names: Collection[str]) -> Callable[[str], bool]:
    """Return a function that says whether a record of Prefect's, Markdown or JSON, names a photograph.

    Names without an ending are not searched for: `1` would be in every record.
    """
    words = [*digests, *(name for name in names if Path(name).suffix)]
    spellings = {spelled for word in words for spelled in (word, json.dumps(word)[1:-1], word.replace("|", "\\|"))}
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, sorted(spellings)))})(?![\w.-])")
    return lambda text: pattern.search(text) is not None


def _matching(path: Path, tables: Collection[str], matches: Callable[[str], bool], delete: bool) -> int:
    """Count, or delete, the rows of a database with a text that matches. tables: empty for all of them.

    The database is written anew after a deletion, because deleted rows would stay in its free pages. One that is
    damaged, or is none, has no rows: caches may be lost at any time.
    """
    if not path.exists():
        return 0
    found = 0
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path, timeout=20)) as database:
        database.create_function("matches", 1, lambda value: isinstance(value, str) and matches(value))
        database.execute("pragma secure_delete = on")
        for table, condition in _conditions(database):
            if not tables or table in tables:
                (number,) = database.execute(f'select count(*) from "{table}" where {condition}').fetchone()
                found += number
                if delete and number:
                    with database:
                        database.execute(f'delete from "{table}" where {condition}')
        if delete:
            database.execute("vacuum")
            database.execute("pragma wal_checkpoint(truncate)")
    return found


def _conditions(database: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return each table with the SQL condition that a text of it `matches`."""
    conditions = []
    for (table,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
        columns = [row[1] for row in database.execute(f'pragma table_info("{table}")')]
        conditions.append((table, " or ".join(f'matches("{column}")' for column in columns)))
    return conditions


def tables_with(path: Path, digests: Collection[str]) -> list[str]:
    """Return the tables of a database of which a text has one of the digests."""

    def has_digest(text: str) -> bool:
        return any(digest in text for digest in digests)

    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path, timeout=20)) as database:
        tables = [table for table, _ in _conditions(database)]
        return [table for table in tables if _matching(path, (table,), has_digest, delete=False)]
    return []
