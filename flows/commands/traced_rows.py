"""Rows about photographs in a workspace's SQLite databases: caches by digest, and Prefect's records of runs."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from flows.operations.prefect_settings import environment
from tasks.data.fingerprints import DATABASE as FINGERPRINTS
from tasks.datasets.base import WORKSPACE_FILE

# Tables of Prefect's server whose rows may name a photograph; they are history, which nothing depends on.
_PREFECT_TABLES = ("artifact", "artifact_collection", "events", "event_resources", "log")


def change_rows(workspace: Path, names_by_digest: Mapping[str, Collection[str]], delete: bool) -> dict[Path, int]:
    """Count the rows about photographs in the caches and in Prefect's database, or delete them.

    names_by_digest: the names of each photograph, by its digest.
    """
    names = {name for names in names_by_digest.values() for name in names}
    ends = {name[start:] for name in names for start in (0, *(at.end() for at in re.finditer("/", name)))}

    def in_cache(text: str) -> bool:  # a digest, or a folder's listing with a name, which is quickly recomputed
        return text in names_by_digest or not ends.isdisjoint(text.split("\0"))

    prefect = Path(environment(workspace)["PREFECT_HOME"]) / "prefect.db"
    rows = {
        workspace / WORKSPACE_FILE: rows_by_table(workspace / WORKSPACE_FILE, in_cache, delete=delete),
        workspace / FINGERPRINTS: rows_by_table(workspace / FINGERPRINTS, in_cache, delete=delete),
        prefect: rows_by_table(prefect, _named(names_by_digest, names), _PREFECT_TABLES, delete),
    }
    return {path: sum(numbers.values()) for path, numbers in rows.items()}


def _named(digests: Collection[str], names: Collection[str]) -> Callable[[str], bool]:
    """Return a function that returns whether a Prefect record, in Markdown or JSON, names a photograph.

    Names without a suffix are not searched for: `1` would be in every record.
    """
    words = [*digests, *(name for name in names if Path(name).suffix)]
    spellings = {spelled for word in words for spelled in (word, json.dumps(word)[1:-1], word.replace("|", "\\|"))}
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, sorted(spellings)))})(?![\w.-])")
    return lambda text: pattern.search(text) is not None


def rows_by_table(
    path: Path, matches: Callable[[str], bool], tables: Collection[str] = (), delete: bool = False
) -> dict[str, int]:
    """Count, or delete, the rows of each table of a database that have a matching text. tables: empty for all.

    After a deletion the database is rewritten, because deleted rows would stay in its free pages. A damaged database,
    or a file that is not one, has no rows: caches may be lost at any time.
    """
    counts: dict[str, int] = {}
    if not path.exists():
        return counts
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path, timeout=20)) as database:
        database.create_function("matches", 1, lambda value: isinstance(value, str) and matches(value))
        database.execute("pragma secure_delete = on")
        for (table,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
            if tables and table not in tables:
                continue
            columns = [row[1] for row in database.execute(f'pragma table_info("{table}")')]
            condition = " or ".join(f'matches("{column}")' for column in columns)
            (counts[table],) = database.execute(f'select count(*) from "{table}" where {condition}').fetchone()
            if delete and counts[table]:
                with database:
                    database.execute(f'delete from "{table}" where {condition}')
        if delete:
            database.execute("vacuum")
            database.execute("pragma wal_checkpoint(truncate)")
    return counts
