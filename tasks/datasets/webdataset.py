"""Adapter for WebDataset tar files as img2dataset writes them: `000000012.jpg` with `000000012.txt` or `.json`."""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field

from tasks.common.errors import AttendError
from tasks.datasets.base import (
    PICTURE_SUFFIXES,
    Row,
    UnpackedOptions,
    folder_split,
    needs_text,
    parse_split,
    require_folder,
)
from tasks.datasets.documents import parse_text
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.records import captions_in
from tasks.datasets.texts import Lines, captions_of

TEXTS = ("txt", "caption", "caption.txt")  # suffixes of a sample's text, by priority
_LARGEST = 1 << 30  # bytes of a file in a compressed tar
_TRAILER = 1024  # number of zero bytes at the end of a tar file


class WebDataset(UnpackedOptions):
    """A .tar file (also .tar.gz), or a folder of them; a picture and its caption have the same name without suffix."""

    adapter: Literal["webdataset"] = "webdataset"
    caption_field: str = Field(
        "", description="field of a sample's .json that contains the caption; empty to read the .txt or .caption"
    )
    split_field: str = Field(
        "", description="field of a sample's .json that contains the split; empty if there is none"
    )
    lines: Lines = "captions"

    def annotation_files(self) -> list[Path]:
        if self.path.expanduser().is_file() and is_tar(self.path):
            return [self.path.expanduser()]
        folder = require_folder(self.path, "data.path")
        paths = tar_files(folder)
        if not paths:
            raise AttendError(f"data.path: {folder}: no .tar file in it")
        return paths

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        generated.mkdir(parents=True, exist_ok=True)
        written: set[str] = set()
        files = self.annotation_files()
        root = files[0].parent if self.path.expanduser().is_file() else self.path.expanduser()
        for path in files:
            split = tar_split(path, root)
            prefix = "-".join([*path.relative_to(root).parts[:-1], _stem(path)])
            for key, members in samples(path):
                with faults.of_row():
                    row, picture = self._row(f"{path}: {key}", f"{prefix}-{key.replace('/', '-')}", members, split)
                    if row.name in written:  # the picture would get the captions of two samples
                        raise AttendError(f"{row.where}: {row.name} is another sample's too: rename one of them")
                    written.add(row.name)
                    (generated / row.name).write_bytes(picture)
                    yield row

    def _row(self, where: str, name: str, members: dict[str, bytes], split: str | None) -> tuple[Row, bytes]:
        """Return a sample, and the file of its picture. name: of this file, without its suffix. split: of the tar."""
        pictures = picture_suffixes(members)
        if not pictures:
            raise AttendError(f"{where}: has no picture among its files ({', '.join(sorted(members))})")
        fields = json_fields(members, where) if self.caption_field or self.split_field else {}
        text = next((suffix for suffix in TEXTS if suffix in members), None)
        if self.caption_field:
            texts = captions_in(fields.get(self.caption_field), None, f"{where}.json", self.caption_field)
        elif text is not None:
            texts = captions_of(_decoded(members[text], f"{where}.{text}"), self.lines)
        else:
            raise AttendError(
                f"{where}: has no .txt with its caption next to it: pack the files in the order of their names (tar "
                "--sort=name), or set data.caption_field to a field of its .json"
            )
        if self.split_field:
            split = parse_split(str(fields.get(self.split_field)), f"{where}.json")
        return Row(f"{name}.{pictures[0]}", tuple(texts), split, where), members[pictures[0]]


def tar_files(folder: Path) -> list[Path]:
    """Return the tar files of a folder, including compressed ones, and of folders in it that are named as splits."""
    shown = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    inner = [path for path in shown if folder_split([path.name]) is not None]
    return sorted(path for parent in (folder, *inner) for path in parent.iterdir() if is_tar(path))


def is_tar(path: Path) -> bool:
    """Return whether a file is a tar file by its name."""
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz")) and not path.name.startswith(".")


def tar_split(path: Path, root: Path) -> str | None:
    """Return the split in the name of a tar file, or of a folder below `root`; None if there is none."""
    return folder_split([_stem(path), *path.relative_to(root).parts[:-1]])


def picture_suffixes(members: dict[str, bytes]) -> list[str]:
    """Return the suffixes of a sample's pictures; the first picture is read."""
    return [suffix for suffix in members if f".{suffix}" in PICTURE_SUFFIXES]


def _stem(path: Path) -> str:
    """Return the name of a tar file without its suffix, such as `2024.01` for `2024.01.tar.gz`."""
    return re.sub(r"\.(tar|tar\.gz|tgz)$", "", path.name, flags=re.IGNORECASE)


def _decoded(data: bytes, where: str) -> str:
    try:
        return needs_text(data.decode("utf-8-sig"), where, "caption")
    except UnicodeDecodeError:
        raise AttendError(f"{where}: is not UTF-8 text: save it as UTF-8") from None


def samples(path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each sample of a tar file in order: its key, and the bytes of its files by lower-case suffix.

    A sample's files have the same name up to the first dot, as in WebDataset, or up to the last if keys have dots.
    """
    is_plain = path.name.lower().endswith(".tar")
    key, members = "", dict[str, bytes]()
    try:
        size = path.stat().st_size
        if is_plain:
            with path.open("rb") as stream:
                stream.seek(max(size - _TRAILER, 0))
                if stream.read() != bytes(_TRAILER):  # tarfile reports no error for a file cut off between two members
                    raise AttendError(f"{path}: is not a valid tar file: it does not end like one: was it cut short?")
        with tarfile.open(path) as tar:
            names = [member.name for member in tar if _is_part(member)]
        has_dots = _has_dots(names)
        with tarfile.open(path) as tar:
            for member in tar:
                if not _is_part(member):
                    continue
                if member.size > (size - member.offset_data if is_plain else _LARGEST):
                    raise AttendError(f"{path}: {member.name}: is said to have {member.size:,} bytes: was it damaged?")
                member_key, suffix = _split_name(member.name, has_dots)
                if member_key != key and members:
                    yield key, members
                    members = {}
                key = member_key
                file = tar.extractfile(member)
                assert file is not None
                members[suffix] = file.read()
    except (tarfile.TarError, EOFError, OSError, ValueError, MemoryError, zlib.error) as error:
        raise AttendError(f"{path}: is not a valid tar file: {error or 'a part has no end'}") from None
    if members:
        yield key, members


def _is_part(member: tarfile.TarInfo) -> bool:
    """Return whether a member is a file of a sample, and not a hidden one or one of macOS."""
    return member.isfile() and not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(member.name).parts)


def _split_name(name: str, has_dots: bool) -> tuple[str, str]:
    """Return the key and the lower-case suffix of a member. has_dots: whether keys contain dots."""
    path = PurePosixPath(name)
    stem, _, suffix = path.name.rpartition(".") if has_dots else path.name.partition(".")
    return (path.parent / stem).as_posix(), suffix.lower()


def _has_dots(names: list[str]) -> bool:
    """Return whether keys contain dots: cut at the first dot, some would have no picture with a plain suffix."""
    parts = [_split_name(name, has_dots=False) for name in names]
    pictures = [(key, suffix) for key, suffix in parts if f".{suffix.rpartition('.')[2]}" in PICTURE_SUFFIXES]
    plain = {key for key, suffix in pictures if "." not in suffix}
    return any(key not in plain for key, _ in pictures)


def json_fields(members: dict[str, bytes], where: str) -> dict[str, object]:
    """Return the object in a sample's .json; raise AttendError if it has none. where: the sample, for messages."""
    if "json" not in members:
        raise AttendError(f"{where}: has no .json, which data.caption_field or data.split_field reads")
    fields = parse_text(members["json"], f"{where}.json")
    if not isinstance(fields, dict):
        raise AttendError(f"{where}.json: is not an object")
    return fields
