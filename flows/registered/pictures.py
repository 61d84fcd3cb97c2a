"""Pictures to caption: files, folders, patterns, or the encoded pictures in a column of a Parquet file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.datasets.base import picture_files
from tasks.pipeline.file_digests import Digests

_NAMES = ("file_name", "url", "key", "name", "path", "id")  # columns that name a picture, the first there
_BATCH = 64


class Named(NamedTuple):
    """A picture's name, the SHA-256 of its bytes, and these."""

    name: str
    digest: str
    data: bytes


class Pictures(Protocol):
    """Pictures in an order that a second look repeats."""

    def __len__(self) -> int: ...

    def named(self) -> Iterator[tuple[str, str | None]]:
        """Name and digest of each; None where it cannot be read."""
        ...

    def batches(self, wanted: set[str]) -> Iterator[list[Named]]:
        """One picture of each wanted digest, but of those that cannot be read."""
        ...


class Files:
    """Picture files; digests are remembered by size and time."""

    def __init__(self, files: list[Path], root: Path | None, remembered: Path) -> None:
        """root: whose part of the names is left out."""
        self._files, self._root, self._remembered = files, root, remembered

    @cached_property
    def _digests(self) -> dict[Path, str]:
        digests = Digests(self._remembered)
        try:
            return digests.of(self._files)
        except OSError:  # one cannot be read, or is gone since it was listed
            found: dict[Path, str] = {}
            for file in self._files:
                with suppress(OSError):
                    found |= digests.of([file])
            return found

    def __len__(self) -> int:
        return len(self._files)

    def _name(self, file: Path) -> str:
        name = (file.relative_to(self._root) if self._root else file).as_posix()
        return os.fsencode(name).decode("utf-8", "replace")  # one that is not UTF-8 could not be written

    def named(self) -> Iterator[tuple[str, str | None]]:
        return ((self._name(file), self._digests.get(file)) for file in self._files)

    def batches(self, wanted: set[str]) -> Iterator[list[Named]]:
        one = {digest: file for file, digest in reversed(self._digests.items()) if digest in wanted}
        files = sorted(one.values())
        with ThreadPoolExecutor(8) as pool:
            ahead: list[list[Future[Named | None]]] = []
            for at in range(0, len(files), _BATCH):
                ahead.append([pool.submit(self._read, file) for file in files[at : at + _BATCH]])
                if len(ahead) > 1:
                    yield _read(ahead.pop(0))
            for part in ahead:
                yield _read(part)

    def _read(self, file: Path) -> Named | None:
        try:
            return Named(self._name(file), self._digests[file], file.read_bytes())
        except OSError:
            return None


def _read(part: list[Future[Named | None]]) -> list[Named]:
    return [named for item in part if (named := item.result()) is not None]


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

    def named(self) -> Iterator[tuple[str, str | None]]:
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
        number = 0
        for batch in self._batches():
            part = []
            for row in batch.to_pylist():
                image = row[self._image]
                data = (image.get("bytes") if isinstance(image, dict) else image) or b""
                key = row[self._key] if self._key else None
                part.append(Named(f"row {number}" if key is None else str(key), hashlib.sha256(data).hexdigest(), data))
                number += 1
            yield part

    def _batches(self) -> Iterator[pa.RecordBatch]:
        columns = [self._image] + ([self._key] if self._key else [])
        try:
            yield from self._file.iter_batches(_BATCH, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise AttendError(f"{self._path}: is damaged: {' '.join(str(error).split())[:120]}") from None


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
        try:
            found = sorted(file for file in anchor.glob(pattern) if file.is_file())
        except ValueError as error:  # `**` within a name
            raise AttendError(f"{path}: is no pattern: {error}") from None
    else:
        raise AttendError(f"{path}: no such picture")
    if not found:
        raise AttendError(f"{path}: no picture in this folder" if path.is_dir() else f"{path}: no such picture")
    return found
