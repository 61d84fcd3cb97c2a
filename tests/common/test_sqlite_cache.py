"""The cache in an SQLite file."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.common.sqlite_cache import SqliteCache


def test_a_group_may_write_to_it_where_the_umask_lets_it(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        SqliteCache(tmp_path / "cache.sqlite", "pair (a, b)").write("insert into pair values (?, ?)", [(1, 2)])
    finally:
        os.umask(before)
    assert (tmp_path / "cache.sqlite").stat().st_mode & 0o020
    assert SqliteCache(tmp_path / "cache.sqlite", "pair (a, b)").read("select b from pair", [()]) == [(2,)]
