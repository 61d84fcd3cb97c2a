"""Pictures to caption: files, folders, patterns, or the encoded pictures in a column of a Parquet file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.datasets.base import picture_files
from tasks.digests import Digests
from tasks.errors import AttendError

_NAMES = ("file_name", "url", "key", "name", "path", "id")  # columns that name a picture, the first there
_BATCH = 64


class Named(NamedTuple):
    """A picture's name, the SHA-256 of its bytes, and these; None where they could not be read, and why."""

    name: str
    digest: str
    data: bytes | None
    why: str = ""


class Pictures(Protocol):
    """Pictures in an order that a second look repeats."""

    def __len__(self) -> int: ...

    def named(self) -> Iterator[tuple[str, str]]:
        """Name and digest of each."""
        ...

    def batches(self, wanted: set[str]) -> Iterator[list[Named]]:
        """One picture of each wanted digest."""
        ...


class Files:
    """Picture files; digests are remembered by size and time."""

    def __init__(self, files: list[Path], root: Path | None, remembered: Path) -> None:
        """root: whose part of the names is left out."""
        self._files, self._root, self._remembered = files, root, remembered

    @cached_property
    def _digests(self) -> dict[Path, str]:
        return Digests(self._remembered).of(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _name(self, file: Path) -> str:
        return (file.relative_to(self._root) if self._root else file).as_posix()

    def named(self) -> Iterator[tuple[str, str]]:
        return ((self._name(file), self._digests[file]) for file in self._files)

    def batches(self, wanted: set[str]) -> Iterator[list[Named]]:
        one = {self._digests[file]: file for file in reversed(self._files) if self._digests[file] in wanted}
        files = sorted(one.values())
        with ThreadPoolExecutor(8) as pool:
            ahead: list[list[Future[Named]]] = []
            for at in range(0, len(files), _BATCH):
                ahead.append([pool.submit(self._read, file) for file in files[at : at + _BATCH]])
                if len(ahead) > 1:
                    yield [item.result() for item in ahead.pop(0)]
            for part in ahead:
                yield [item.result() for item in part]

    def _read(self, file: Path) -> Named:
        name, digest = self._name(file), self._digests[file]
        try:
            return Named(name, digest, file.read_bytes())
        except OSError as error:
            return Named(name, digest, None, f"cannot be read: {error.strerror}")


class Column:
    """The rows of a Parquet file: a binary column (or one of Hugging Face's {bytes, path}) of encoded pictures."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise AttendError(f"{path}: is no Parquet file: {' '.join(str(error).split())[:120]}") from None
        schema = self._file.schema_arrow
        binary = [field.name for field in schema if _holds_bytes(field.type)]
        if len(binary) != 1:
            found = f"has these: {', '.join(binary)}" if binary else f"has: {', '.join(schema.names)}"
            raise AttendError(f"{path}: needs one binary column of encoded pictures, {found}")
        self._image = binary[0]
        self._key = next((name for name in _NAMES if name in schema.names), None)

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def named(self) -> Iterator[tuple[str, str]]:
        return ((item.name, item.digest) for rows in self._rows() for item in rows)

    def batches(self, wanted: set[str]) -> Iterator[list[Named]]:
        left = set(wanted)
        for rows in self._rows():
            part = []
            for item in rows:
                if item.digest in left:
                    left.discard(item.digest)
                    part.append(item)
            if part:
                yield part

    def _rows(self) -> Iterator[list[Named]]:
        columns = [self._image] + ([self._key] if self._key else [])
        number = 0
        for batch in self._file.iter_batches(_BATCH, columns=columns):
            part = []
            for row in batch.to_pylist():
                data = row[self._image]
                data = (data or {}).get("bytes") if isinstance(data, dict) or data is None else data
                name = str(row[self._key]) if self._key else f"row {number}"
                digest = hashlib.sha256(data or b"").hexdigest()
                part.append(Named(name, digest, data, "" if data else "is empty"))
                number += 1
            yield part


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _holds_bytes(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def open_pictures(given: list[str], workspace: Path) -> Pictures:
    """What the arguments name; AttendError for what is not there, or is an address: nothing is fetched."""
    for text in given:
        if "://" in text:
            raise AttendError(f"{text}: is an address: fetch the picture, and give the file")
    paths = [Path(text).expanduser() for text in given]
    if any(path.suffix == ".parquet" for path in paths):
        if len(paths) > 1:
            raise AttendError(f"{paths[0]}: a Parquet file is given alone")
        return Column(paths[0])
    files = [file for path in paths for file in _files(path)]
    root = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    return Files(list(dict.fromkeys(files)), root, workspace / "digests.sqlite")


def _files(path: Path) -> list[Path]:
    """The pictures of a folder, of a pattern, or one."""
    if path.is_dir():
        found = picture_files(path)
    elif path.is_file():
        return [path]
    elif any(sign in str(path) for sign in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(anchor)) if path.is_absolute() else str(path)
        found = sorted(file for file in anchor.glob(pattern) if file.is_file())
    else:
        raise AttendError(f"{path}: no such picture")
    if not found:
        raise AttendError(f"{path}: no picture in this folder" if path.is_dir() else f"{path}: no such picture")
    return found
