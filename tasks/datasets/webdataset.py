"""Adapter for WebDataset tar files as img2dataset writes them: `000000012.jpg` with `000000012.txt` or `.json`."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field

from tasks.common.errors import AttendError
from tasks.datasets.base import (
    PICTURE_SUFFIXES,
    Row,
    UnpackedOptions,
    needs_text,
    parse_split,
    require_folder,
)
from tasks.datasets.documents import parse_text
from tasks.datasets.faults import REFUSE, Faults

_TRAILER = 1024  # number of zero bytes at the end of a tar file


class WebDataset(UnpackedOptions):
    """A folder of .tar files, in which a picture and its caption share a name up to the first dot."""

    adapter: Literal["webdataset"] = "webdataset"
    caption_field: str = Field("", description="field of the sample's .json with the caption; empty for the .txt")
    split_field: str = Field("", description="field of the sample's .json with the split; empty if it has none")

    def annotation_files(self) -> list[Path]:
        folder = require_folder(self.path, "data.path")
        paths = sorted(folder.glob("*.tar"))
        if not paths:
            raise AttendError(f"data.path: {folder}: no .tar file in it")
        return paths

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        generated.mkdir(parents=True, exist_ok=True)
        for path in self.annotation_files():
            for key, members in samples(path):
                with faults.of_row():
                    yield self._row(path, key, members, generated)

    def _row(self, path: Path, key: str, members: dict[str, bytes], generated: Path) -> Row:
        where = f"{path}: {key}"
        picture_suffix = next((suffix for suffix in members if f".{suffix}" in PICTURE_SUFFIXES), None)
        if picture_suffix is None:
            raise AttendError(f"{where}: has no picture among its files ({', '.join(sorted(members))})")
        fields = json_fields(members, where) if self.caption_field or self.split_field else {}
        if self.caption_field:
            text = needs_text(fields.get(self.caption_field), f"{where}.json", self.caption_field)
        elif "txt" in members:
            try:
                text = needs_text(members["txt"].decode("utf-8-sig"), f"{where}.txt", "caption")
            except UnicodeDecodeError:
                raise AttendError(f"{where}.txt: is not UTF-8 text: save it as UTF-8") from None
        else:
            raise AttendError(f"{where}: has no .txt with its caption; set data.caption_field to a field of its .json")
        split = parse_split(str(fields.get(self.split_field)), f"{where}.json") if self.split_field else None
        name = f"{path.stem}-{key.replace('/', '-')}.{picture_suffix}"
        row = Row(name, (text,), split, where)
        (generated / name).write_bytes(members[picture_suffix])
        return row


def samples(path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each sample of a tar file in order: its key, and the bytes of its files by lower-case suffix."""
    key, members = "", dict[str, bytes]()
    size = path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(max(size - _TRAILER, 0))
        if stream.read() != bytes(_TRAILER):  # tarfile reports no error for a file cut off between two members
            raise AttendError(f"{path}: is not a valid tar file: it does not end like one: was it cut short?")
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                if not member.isfile():
                    continue
                if member.offset_data + member.size > size:  # more than a file that is not compressed can hold
                    raise AttendError(f"{path}: {member.name}: is said to have {member.size:,} bytes: was it damaged?")
                member_path = PurePosixPath(member.name)
                stem, _, suffix = member_path.name.partition(".")
                member_key = (member_path.parent / stem).as_posix()
                if member_key != key and members:
                    yield key, members
                    members = {}
                key = member_key
                file = tar.extractfile(member)
                assert file is not None
                members[suffix.lower()] = file.read()
    except (tarfile.TarError, EOFError, ValueError, MemoryError) as error:
        raise AttendError(f"{path}: is not a valid tar file: {error or 'a part has no end'}") from None
    if members:
        yield key, members


def json_fields(members: dict[str, bytes], where: str) -> dict[str, object]:
    """Return the object in a sample's .json; raise AttendError where it has none. where: the sample, for messages."""
    if "json" not in members:
        raise AttendError(f"{where}: has no .json, which data.caption_field or data.split_field reads")
    fields = parse_text(members["json"], f"{where}.json")
    if not isinstance(fields, dict):
        raise AttendError(f"{where}.json: is not an object")
    return fields
