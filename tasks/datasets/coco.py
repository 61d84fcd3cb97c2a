"""COCO's `captions_*.json` with its image folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import DatasetOptions, Row, existing_folder, needs_text, split_named
from tasks.datasets.documents import field_of, list_in, read_json

_NAME = re.compile(r"captions_(?P<images>(?P<split>train|val|test)\w*)\.json")


class Coco(DatasetOptions):
    """COCO's folder: `annotations/captions_train2017.json`, `train2017/`, and so on; val becomes dev."""

    adapter: Literal["coco"] = "coco"

    def annotation_files(self) -> list[Path]:
        folder = existing_folder(self.path, "data.path")
        found = [path for path in sorted(folder.rglob("captions_*.json")) if _NAME.fullmatch(path.name)]
        if not found:
            raise AttendError(f"data.path: {folder}: no captions_train*.json or captions_val*.json in it")
        return found

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return existing_folder(self.images, "data.images")
        folder = existing_folder(self.path, "data.path")
        return folder / "images" if (folder / "images").is_dir() else folder

    def rows(self, generated: Path) -> Iterator[Row]:
        for path in self.annotation_files():
            yield from self._rows_of(path)

    def _rows_of(self, path: Path) -> Iterator[Row]:
        match = _NAME.fullmatch(path.name)
        assert match is not None
        document = read_json(path)
        images: dict[int, tuple[str, int]] = {}
        captions: dict[int, list[tuple[int, str]]] = {}
        for index, image in enumerate(list_in(document, "images", str(path))):
            where = f"{path}: images[{index}]"
            name = field_of(image, "file_name", str, where)
            identifier = field_of(image, "id", int, where)
            if identifier in images:
                raise AttendError(f"{where}.id: {identifier} is the id of images[{images[identifier][1]}] already")
            images[identifier] = (name, index)
        for index, annotation in enumerate(list_in(document, "annotations", str(path))):
            where = f"{path}: annotations[{index}]"
            image_id = field_of(annotation, "image_id", int, where)
            if image_id not in images:
                raise AttendError(f"{where}.image_id: {image_id} is the id of no picture in images")
            text = needs_text(annotation.get("caption"), where, "caption")
            captions.setdefault(image_id, []).append((field_of(annotation, "id", int, where), text))
        split = split_named(match["split"], str(path))
        for identifier, (name, index) in images.items():
            texts = tuple(text for _, text in sorted(captions.get(identifier, [])))
            yield Row(f"{match['images']}/{name}", texts, split, f"{path}: images[{index}]")
