"""Adapter for COCO: `captions_*.json` files and image folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import DatasetOptions, Row, needs_text, parse_split, require_folder
from tasks.datasets.documents import read_json, require_field, require_objects

_FILE_NAME = re.compile(r"captions_(?P<images>(?P<split>train|val|test)\w*)\.json")


class Coco(DatasetOptions):
    """A COCO folder: `annotations/captions_train2017.json`, `train2017/` and so on; the split val becomes dev."""

    adapter: Literal["coco"] = "coco"

    def annotation_files(self) -> list[Path]:
        folder = require_folder(self.path, "data.path")
        paths = [path for path in sorted(folder.rglob("captions_*.json")) if _FILE_NAME.fullmatch(path.name)]
        if not paths:
            raise AttendError(f"data.path: {folder}: no captions_train*.json or captions_val*.json in it")
        return paths

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return require_folder(self.images, "data.images")
        folder = require_folder(self.path, "data.path")
        return folder / "images" if (folder / "images").is_dir() else folder

    def rows(self, generated: Path) -> Iterator[Row]:
        for path in self.annotation_files():
            yield from self._file_rows(path)

    def _file_rows(self, path: Path) -> Iterator[Row]:
        match = _FILE_NAME.fullmatch(path.name)
        assert match is not None
        document = read_json(path)
        images: dict[int, tuple[str, int]] = {}  # id -> (file name, index in the document)
        captions: dict[int, list[tuple[int, str]]] = {}  # image id -> (caption id, caption)
        for index, image in enumerate(require_objects(document, "images", str(path))):
            where = f"{path}: images[{index}]"
            name = require_field(image, "file_name", str, where)
            identifier = require_field(image, "id", int, where)
            if identifier in images:
                raise AttendError(f"{where}.id: {identifier} is already the id of images[{images[identifier][1]}]")
            images[identifier] = (name, index)
        for index, annotation in enumerate(require_objects(document, "annotations", str(path))):
            where = f"{path}: annotations[{index}]"
            image_id = require_field(annotation, "image_id", int, where)
            if image_id not in images:
                raise AttendError(f"{where}.image_id: {image_id} is not the id of any image in images")
            text = needs_text(annotation.get("caption"), where, "caption")
            captions.setdefault(image_id, []).append((require_field(annotation, "id", int, where), text))
        split = parse_split(match["split"], str(path))
        for identifier, (name, index) in images.items():
            texts = tuple(text for _, text in sorted(captions.get(identifier, [])))
            yield Row(f"{match['images']}/{name}", texts, split, f"{path}: images[{index}]")
