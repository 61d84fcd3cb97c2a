"""WebDataset tars, as img2dataset writes them: `000000012.jpg` beside `000000012.txt` or `000000012.json`."""

from __future__ import annotations

import json
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
    existing_folder,
    needs_text,
    split_named,
)

_END = 1024  # bytes of zeros that a tar ends in


class WebDataset(UnpackedOptions):
    """A folder of .tar files whose samples are a picture and its caption, sharing a name up to the first dot."""

    adapter: Literal["webdataset"] = "webdataset"
    caption_field: str = Field("", description="field of the sample's .json that holds the caption; empty for its .txt")
    split_field: str = Field("", description="field of the sample's .json that names its split, where there is one")

    def annotation_files(self) -> list[Path]:
        folder = existing_folder(self.path, "data.path")
        found = sorted(folder.glob("*.tar"))
        if not found:
            raise AttendError(f"data.path: {folder}: no .tar file in it")
        return found

    def rows(self, generated: Path) -> Iterator[Row]:
        generated.mkdir(parents=True, exist_ok=True)
        for path in self.annotation_files():
            for key, members in _samples(path):
                yield self._row(path, key, members, generated)

    def _row(self, path: Path, key: str, members: dict[str, bytes], generated: Path) -> Row:
        where = f"{path}: {key}"
        picture = next((suffix for suffix in members if f".{suffix}" in PICTURE_SUFFIXES), None)
        if picture is None:
            raise AttendError(f"{where}: has no picture among its files ({', '.join(sorted(members))})")
        told = _json(members, where) if self.caption_field or self.split_field else {}
        if self.caption_field:
            text = needs_text(told.get(self.caption_field), f"{where}.json", self.caption_field)
        elif "txt" in members:
            text = needs_text(members["txt"].decode("utf-8", errors="replace"), f"{where}.txt", "caption")
        else:
            raise AttendError(f"{where}: has no .txt with its caption; set data.caption_field to a field of its .json")
        split = split_named(str(told.get(self.split_field)), f"{where}.json") if self.split_field else None
        name = f"{path.stem}-{key.replace('/', '-')}.{picture}"
        (generated / name).write_bytes(members[picture])
        return Row(name, (text,), split, where)


def _samples(path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Each sample of a tar in order: its key, and its files' bytes by lower-case suffix."""
    key, members = "", dict[str, bytes]()
    with path.open("rb") as whole:
        whole.seek(max(path.stat().st_size - _END, 0))
        if whole.read() != bytes(_END):  # tarfile takes what was cut between two files for a whole one
            raise AttendError(f"{path}: is no sound tar: it does not end as one does: was it cut short?")
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                if not member.isfile():
                    continue
                place = PurePosixPath(member.name)
                stem, _, suffix = place.name.partition(".")
                name = (place.parent / stem).as_posix()
                if name != key and members:
                    yield key, members
                    members = {}
                key = name
                file = tar.extractfile(member)
                assert file is not None
                members[suffix.lower()] = file.read()
    except (tarfile.TarError, EOFError) as error:
        raise AttendError(f"{path}: is no sound tar: {error}") from None
    if members:
        yield key, members


def _json(members: dict[str, bytes], where: str) -> dict[str, object]:
    if "json" not in members:
        raise AttendError(f"{where}: has no .json, which data.caption_field or data.split_field reads")
    try:
        told = json.loads(members["json"])
    except ValueError as error:
        raise AttendError(f"{where}.json: is not JSON: {error}") from None
    if not isinstance(told, dict):
        raise AttendError(f"{where}.json: is not an object")
    return told
