"""Pictures to caption: files, the files of folders and patterns, or encoded pictures in a column of a Parquet file."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError, reason_of
from tasks.common.log import log
from tasks.common.threads import run_ahead
from tasks.datasets.base import OTHER_PICTURES, picture_files
from tasks.datasets.huggingface import holds_pictures
from tasks.pipeline.file_digests import Digests

_NAME_COLUMNS = ("file_name", "url", "key", "name", "path", "id")  # the first one in the file names the pictures
_BATCH = 64  # pictures, or rows of a Parquet file, read at once


class EncodedPicture(NamedTuple):
    """A picture: its name, the SHA-256 of its encoded bytes, and those bytes."""

    name: str
    digest: str
    data: bytes


class PictureFiles:
    """Picture files. Their digests are cached by size and modification time.

    Their order is always the same. folder: the folder that their names are relative to.
    """

    def __init__(self, files: list[Path], root: Path | None, digest_store: Path) -> None:
        """Initialize. root: folder that the names are relative to. digest_store: sqlite file with the digests."""
        self._files, self._root, self._digest_store = files, root, digest_store

    @property
    def folder(self) -> str:
        return _as_text(self._root.absolute() if self._root else Path.cwd())

    @cached_property
    def _digests(self) -> dict[Path, str]:
        return Digests(self._digest_store).of_readable(self._files)[0]

    def __len__(self) -> int:
        return len(self._files)

    def _name(self, file: Path) -> str:
        return _as_text(file.relative_to(self._root) if self._root else file)

    def named(self) -> Iterator[tuple[str, str | None]]:
        """Yield the name and digest of each picture; the digest is None if the picture cannot be read."""
        return ((self._name(file), self._digests.get(file)) for file in self._files)

    def files(self) -> dict[str, tuple[Path, str]]:
        """Return the first file with each content and its name, by the SHA-256 of the content."""
        return {digest: (file, self._name(file)) for file, digest in reversed(self._digests.items())}

    def batches(self, digests: set[str]) -> Iterator[list[EncodedPicture]]:
        """Yield batches with one picture for each wanted digest; unreadable ones are left out."""
        # Reversed, so that the first of several files with the same content is taken.
        file_by_digest = {digest: file for file, digest in reversed(self._digests.items()) if digest in digests}
        files = sorted(file_by_digest.values())
        with ThreadPoolExecutor(8) as pool:
            starts = range(0, len(files), _BATCH)
            read = (list(pool.map(self._read, files[start : start + _BATCH])) for start in starts)
            for batch in run_ahead(read, 1):  # reads the next batch while one is captioned
                yield [picture for picture in batch if picture is not None]

    def _read(self, file: Path) -> EncodedPicture | None:
        try:
            return EncodedPicture(self._name(file), self._digests[file], file.read_bytes())
        except OSError:
            return None


class ParquetPictures:
    """The encoded pictures in a binary column of a Parquet file, or in a column of Hugging Face's `{bytes, path}`.

    It has the same methods as `PictureFiles`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise AttendError(f"{path}: is not a Parquet file: {reason_of(error)}") from None
        schema = self._file.schema_arrow
        binary = [field.name for field in schema if holds_pictures(field.type)]
        if len(binary) != 1:
            has = f"several: {', '.join(binary)}" if binary else f"none among {', '.join(schema.names)}"
            raise AttendError(f"{path}: needs one binary column of encoded pictures, but has {has}")
        self._image_column = binary[0]
        self._name_column = next((name for name in _NAME_COLUMNS if name in schema.names), None)

    @property
    def folder(self) -> str:
        return _as_text(self._path.absolute())

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def named(self) -> Iterator[tuple[str, str | None]]:
        return ((picture.name, picture.digest) for batch in self._read_batches() for picture in batch)

    def batches(self, digests: set[str]) -> Iterator[list[EncodedPicture]]:
        remaining = set(digests)
        for pictures in self._read_batches():
            batch = []
            for picture in pictures:
                if picture.digest in remaining:
                    remaining.discard(picture.digest)
                    batch.append(picture)
            if batch:
                yield batch

    def _read_batches(self) -> Iterator[list[EncodedPicture]]:
        """Yield the pictures of all rows in batches; the picture of a row without bytes is empty."""
        columns = [self._image_column] + ([self._name_column] if self._name_column else [])
        number = 0
        try:
            for record_batch in self._file.iter_batches(_BATCH, columns=columns):
                batch = []
                for row in record_batch.to_pylist():
                    image = row[self._image_column]
                    data = (image.get("bytes") if isinstance(image, dict) else image) or b""
                    value = row[self._name_column] if self._name_column else None
                    name = f"row {number}" if value is None else str(value)
                    batch.append(EncodedPicture(name, hashlib.sha256(data).hexdigest(), data))
                    number += 1
                yield batch
        except (pa.ArrowException, OSError, ValueError) as error:
            raise AttendError(f"{self._path}: is damaged: {reason_of(error)}") from None


Pictures = PictureFiles | ParquetPictures


def _as_text(path: Path) -> str:
    """Return a path as text with invalid UTF-8 replaced, because the output must be UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf-8", "replace")


def open_pictures(sources: list[str], workspace: Path) -> Pictures:
    """Return the pictures of the sources: files, folders, patterns, or one Parquet file.

    Raises AttendError for a source without pictures, and for a web address, because nothing is downloaded.
    """
    for source in sources:
        if "://" in source:
            raise AttendError(f"{source}: is a web address: download the picture and give the file")
    paths = [Path(source).expanduser() for source in sources]
    if any(path.suffix == ".parquet" for path in paths):
        if len(paths) > 1:
            raise AttendError(f"{paths[0]}: a Parquet file must be the only argument")
        return ParquetPictures(paths[0])
    files = [file for path in paths for file in _files(path)]
    root = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    return PictureFiles(list(dict.fromkeys(files)), root, workspace / "digests.sqlite")


def _files(path: Path) -> list[Path]:
    """Return the pictures of a folder or a pattern, or the one file; raise AttendError if there are none."""
    if path.is_dir():
        files = picture_files(path)
        others = Counter(file.suffix.lower() for file in path.rglob("*") if file.suffix.lower() in OTHER_PICTURES)
        others -= Counter(file.suffix.lower() for file in files)  # some contain a readable picture despite their suffix
        if others:
            kinds = ", ".join(f"{number:,} {suffix}" for suffix, number in others.items())
            log.warning(f"{path}: pictures that are not read are left out: {kinds}: convert them to JPEG")
    elif path.is_file():
        return [path]
    elif any(wildcard in str(path) for wildcard in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(anchor)) if path.is_absolute() else str(path)
        try:
            files = sorted(file for file in anchor.glob(pattern) if file.is_file())
        except ValueError as error:  # for example `**` within a name
            raise AttendError(f"{path}: is not a valid pattern: {error}") from None
    else:
        raise AttendError(f"{path}: no such picture or folder")
    if not files:
        raise AttendError(f"{path}: no picture in this folder" if path.is_dir() else f"{path}: no such picture")
    return files
