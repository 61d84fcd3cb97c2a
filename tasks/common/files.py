"""Files written whole or not at all, and their digests."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def digest_of_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """fsync a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """A file to write in the place of `path`, which it becomes when the block ends well: never a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old text or the new, never a part."""
    with write_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def drop_temporaries(folders: Iterable[Path]) -> None:
    """Remove what processes that were killed in `write_atomically` left in these folders."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            with contextlib.suppress(ValueError, PermissionError):
                try:
                    os.kill(int(path.name.split(".")[-2]), 0)
                except ProcessLookupError:
                    path.unlink(missing_ok=True)
