"""Flickr8k and Flickr30k as published: `NAME.jpg#K<TAB>caption` lines, and lists of names for the splits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import (
    DatasetOptions,
    Row,
    existing_file,
    existing_folder,
    first_folder,
    numbered_lines,
)


def read_tokens(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Picture name -> (`file:line` of its first caption, its captions in the order of their numbers)."""
    found: dict[str, dict[int, str]] = {}
    where: dict[str, str] = {}
    for number, line in numbered_lines(path):
        head, tab, caption = line.partition("\t")
        name, sharp, index = head.rpartition("#")
        if not tab:
            raise AttendError(f"{path}:{number}: no tab between picture and caption: expected NAME.jpg#K<TAB>caption")
        if not sharp or not index.strip().isdigit():
            raise AttendError(f"{path}:{number}: picture: {head!r} does not end in #K, the caption's number")
        if not caption.strip():
            raise AttendError(f"{path}:{number}: caption: is empty")
        captions = found.setdefault(name, {})
        if int(index) in captions:
            raise AttendError(f"{path}:{number}: picture: {head!r} has a caption already")
        captions[int(index)] = caption.strip()
        where.setdefault(name, f"{path}:{number}")
    return {name: (where[name], [captions[k] for k in sorted(captions)]) for name, captions in found.items()}


class Flickr8k(DatasetOptions):
    """Flickr8k's folder: `Flickr8k.token.txt`, `Flickr_8k.{train,dev,test}Images.txt`, and the pictures."""

    adapter: Literal["flickr8k"] = "flickr8k"

    def _token_file(self) -> Path:
        return existing_file(existing_folder(self.path, "data.path") / "Flickr8k.token.txt", "data.path")

    def _split_files(self) -> dict[str, Path]:
        folder = existing_folder(self.path, "data.path")
        files = {split: folder / f"Flickr_8k.{split}Images.txt" for split in ("train", "dev", "test")}
        return {split: path for split, path in files.items() if path.is_file()}

    def annotation_files(self) -> list[Path]:
        return [self._token_file(), *self._split_files().values()]

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return existing_folder(self.images, "data.images")
        folder = existing_folder(self.path, "data.path")
        names = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset")
        return first_folder([folder / name for name in names], "data.path")

    def rows(self, generated: Path) -> Iterator[Row]:
        captions = read_tokens(self._token_file())
        splits = self._split_files()
        if not splits:
            yield from (Row(name, tuple(texts), None, where) for name, (where, texts) in captions.items())
        listed: dict[str, str] = {}
        for split, path in splits.items():
            for number, line in numbered_lines(path):
                name, where = line.strip(), f"{path}:{number}"
                if name in listed:
                    raise AttendError(f"{where}: {name} is listed already, at {listed[name]}")
                listed[name] = where
                if name not in captions:
                    raise AttendError(f"{where}: {name} has no caption in {self._token_file()}")
                yield Row(name, tuple(captions[name][1]), split, where)


class Flickr30k(DatasetOptions):
    """Flickr30k's `results_20130124.token` with the folder `flickr30k-images`; it has no splits of its own."""

    adapter: Literal["flickr30k"] = "flickr30k"

    def _token_file(self) -> Path:
        path = self.path.expanduser()
        return existing_file(path / "results_20130124.token" if path.is_dir() else path, "data.path")

    def annotation_files(self) -> list[Path]:
        return [self._token_file()]

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return existing_folder(self.images, "data.images")
        folder = self._token_file().parent
        return first_folder([folder / name for name in ("flickr30k-images", "flickr30k_images", "images")], "data.path")

    def rows(self, generated: Path) -> Iterator[Row]:
        for name, (where, captions) in read_tokens(self._token_file()).items():
            yield Row(name, tuple(captions), None, where)
