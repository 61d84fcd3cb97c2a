"""Adapters for Flickr8k and Flickr30k: lines `NAME.jpg#K<TAB>caption`, and lists of picture names for the splits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import (
    SPLITS,
    DatasetOptions,
    Row,
    first_folder,
    numbered_lines,
    require_file,
    require_folder,
)
from tasks.datasets.faults import REFUSE, Faults

_NUMBER = re.compile("[0-9]{1,9}")


def read_tokens(path: Path, faults: Faults) -> dict[str, tuple[str, list[str]]]:
    """Return, for each picture name, `file:line` of its first caption, and its captions in the order of their numbers.

    Malformed lines and repeated caption numbers are faults.
    """
    captions_by_name: dict[str, dict[int, str]] = {}
    where: dict[str, str] = {}
    for number, line in numbered_lines(path):
        with faults.of_row():
            name, index, caption = _parse_line(line, f"{path}:{number}")
            captions = captions_by_name.setdefault(name, {})
            if index in captions:
                raise AttendError(f"{path}:{number}: picture: {name}#{index} already has a caption")
            captions[index] = caption
            where.setdefault(name, f"{path}:{number}")
    return {name: (where[name], [captions[k] for k in sorted(captions)]) for name, captions in captions_by_name.items()}


def _parse_line(line: str, where: str) -> tuple[str, int, str]:
    """Return a line's picture, the number of its caption, and the caption. Raise AttendError if it is malformed."""
    key, tab, caption = line.partition("\t")
    name, sharp, index = key.rpartition("#")
    if not tab:
        raise AttendError(f"{where}: no tab between picture and caption: expected NAME.jpg#K<TAB>caption")
    if not sharp or not _NUMBER.fullmatch(index.strip()):
        raise AttendError(f"{where}: picture: {key!r} does not end in #K, the caption's number")
    if not caption.strip():
        raise AttendError(f"{where}: caption: is empty")
    return name, int(index), caption.strip()


class Flickr8k(DatasetOptions):
    """A Flickr8k folder: `Flickr8k.token.txt`, `Flickr_8k.{train,dev,test}Images.txt`, and the pictures."""

    adapter: Literal["flickr8k"] = "flickr8k"

    def _token_file(self) -> Path:
        return require_file(require_folder(self.path, "data.path") / "Flickr8k.token.txt", "data.path")

    def _split_files(self) -> dict[str, Path]:
        """Return the list of picture names of each split, if there is one."""
        folder = require_folder(self.path, "data.path")
        files = {split: folder / f"Flickr_8k.{split}Images.txt" for split in SPLITS}
        return {split: path for split, path in files.items() if path.is_file()}

    def annotation_files(self) -> list[Path]:
        return [self._token_file(), *self._split_files().values()]

    def usual_folder(self) -> Path:
        folder = require_folder(self.path, "data.path")
        names = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset")
        return first_folder([folder / name for name in names], "data.path")

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        captions = read_tokens(self._token_file(), faults)
        splits = self._split_files()
        if not splits:
            yield from _rows_without_splits(captions, faults)
        listed: dict[str, str] = {}
        for split, path in splits.items():
            for number, line in numbered_lines(path):
                name, where = line.strip(), f"{path}:{number}"
                with faults.of_row():
                    if name in listed:
                        raise AttendError(f"{where}: {name} is already listed at {listed[name]}")
                    listed[name] = where
                    if name not in captions:
                        raise AttendError(f"{where}: {name} has no caption in {self._token_file()}")
                    yield Row(name, tuple(captions[name][1]), split, where)


class Flickr30k(DatasetOptions):
    """Flickr30k's `results_20130124.token` and its folder `flickr30k-images`, which come without splits."""

    adapter: Literal["flickr30k"] = "flickr30k"

    def _token_file(self) -> Path:
        path = self.path.expanduser()
        return require_file(path / "results_20130124.token" if path.is_dir() else path, "data.path")

    def annotation_files(self) -> list[Path]:
        return [self._token_file()]

    def usual_folder(self) -> Path:
        folder = self._token_file().parent
        return first_folder([folder / name for name in ("flickr30k-images", "flickr30k_images", "images")], "data.path")

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        yield from _rows_without_splits(read_tokens(self._token_file(), faults), faults)


def _rows_without_splits(captions: dict[str, tuple[str, list[str]]], faults: Faults) -> Iterator[Row]:
    """Yield the row of each picture. captions: as `read_tokens` returns them."""
    for name, (where, texts) in captions.items():
        with faults.of_row():
            yield Row(name, tuple(texts), None, where)
