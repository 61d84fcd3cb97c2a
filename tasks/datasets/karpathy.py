"""Karpathy's `dataset_{coco,flickr8k,flickr30k}.json`: pictures, splits and captions in one document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import DatasetOptions, Row, existing_file, existing_folder, needs_text, split_named
from tasks.datasets.documents import field_of, list_in, read_json


class Karpathy(DatasetOptions):
    """The document and the folder that its `filepath`/`filename` are relative to. `restval` joins train."""

    adapter: Literal["karpathy"] = "karpathy"

    def _document(self) -> Path:
        path = self.path.expanduser()
        if not path.is_dir():
            return existing_file(path, "data.path")
        found = sorted(path.glob("dataset_*.json"))
        if len(found) != 1:
            raise AttendError(f"data.path: {path}: has {len(found)} files dataset_*.json: name the one to read")
        return found[0]

    def annotation_files(self) -> list[Path]:
        return [self._document()]

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return existing_folder(self.images, "data.images")
        folder = self._document().parent
        return folder / "images" if (folder / "images").is_dir() else folder

    def rows(self, generated: Path) -> Iterator[Row]:
        path = self._document()
        for index, image in enumerate(list_in(read_json(path), "images", str(path))):
            where = f"{path}: images[{index}]"
            name = field_of(image, "filename", str, where)
            sentences = list_in(image, "sentences", where)
            captions = tuple(
                needs_text(sentence.get("raw"), f"{where}.sentences[{number}]", "raw")
                for number, sentence in enumerate(sentences)
            )
            split = split_named(field_of(image, "split", str, where), where)
            yield Row(f"{image['filepath']}/{name}" if image.get("filepath") else name, captions, split, where)
