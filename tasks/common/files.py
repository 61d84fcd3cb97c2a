"""Files written atomically, and their digests."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_LONGEST_NAME, _LONGEST_PATH = 255, 3000  # bytes of a file's name and of its whole path


def check_name(name: str) -> str:
    """Return a relative path from outside; ValueError, with the reason, if no file can have it."""
    encoded = check_text(name).encode()
    if b"\0" in encoded:
        raise ValueError("holds a NUL character, which no file's name has")
    if max(map(len, encoded.split(b"/"))) > _LONGEST_NAME or len(encoded) > _LONGEST_PATH:
        raise ValueError(f"is too long: a file's name has {_LONGEST_NAME} bytes at most, its path {_LONGEST_PATH:,}")
    return name


def check_path(path: str) -> str:
    """Return a path from outside, which may begin with `~`; ValueError if no file can have it."""
    check_name(path)
    try:
        Path(path).expanduser()
    except RuntimeError:
        raise ValueError("begins with ~ and no user of this machine") from None
    return path


def check_text(text: str) -> str:
    """Return a text from outside; ValueError if it cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half a surrogate pair ({ascii(text[error.start])[1:-1]}), which is no text") from None
    return text


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 digest (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Flush a file or folder to the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_all(folder: Path) -> None:
    """Flush every file and folder below a folder to the disk, and the folder itself."""
    # In threads: the disk takes many small files, such as generated pictures, several times as fast.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(flush, [folder, *folder.rglob("*")]))


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, and rename it to `path` if the block ends without an exception.

    So `path` never has a part of the new content. If the block fails, the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees either the old text or the new one, never a part."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_folder(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that a kill never leaves a part of it under its name."""
    renamed = folder.with_name(f".removed-{folder.name}-{secrets.token_hex(4)}")
    folder.rename(renamed)
    shutil.rmtree(renamed)


def free_name(path: Path) -> Path:
    """Return the path or, if it is taken, the first free one with a number appended."""
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def drop_temporaries(folders: Iterable[Path]) -> None:
    """Remove from these folders the temporary files of processes that were killed in `atomic_file`."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            # ValueError: the name has no process id. PermissionError: the process is another user's, and is alive.
            with contextlib.suppress(ValueError, PermissionError):
                try:
                    os.kill(int(path.name.split(".")[-2]), 0)
                except ProcessLookupError:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Make all of this process's `tempfile` functions write below a folder during the block.

    This is for libraries with large temporary files whose location cannot be set: the files of a killed process are
    then found and removed.
    """
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
