"""Adapter for COCO: `captions_*.json` files and image folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import NamedOptions, Row, needs_text, parse_split, require_folder
from tasks.datasets.documents import read_json, require_field, require_objects
from tasks.datasets.faults import REFUSE, Faults

_FILE_NAME = re.compile(r"captions_(?P<images>(?P<split>train|val|test)\w*)\.json")


class Coco(NamedOptions):
    """A COCO folder, `annotations/captions_train2017.json`, `train2017/` and so on (val becomes dev), or one JSON file.

    The pictures of one file are in the folder `images/` beside it, or beside the file itself, and come without splits.
    """

    adapter: Literal["coco"] = "coco"

    def annotation_files(self) -> list[Path]:
        if self.path.expanduser().is_file():
            return [self.path.expanduser()]
        folder = require_folder(self.path, "data.path")
        paths = [path for path in sorted(folder.rglob("captions_*.json")) if _FILE_NAME.fullmatch(path.name)]
        if not paths:
            raise AttendError(f"data.path: {folder}: no captions_train*.json or captions_val*.json in it")
        return paths

    def image_folder(self, generated: Path) -> Path:
        if self.images is not None:
            return require_folder(self.images, "data.images")
        path = self.path.expanduser()
        folder = path.parent if path.is_file() else require_folder(path, "data.path")
        return folder / "images" if (folder / "images").is_dir() else folder

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        for path in self.annotation_files():
            yield from self._file_rows(path, faults)

    def _file_rows(self, path: Path, faults: Faults) -> Iterator[Row]:
        match = None if self.path.expanduser().is_file() else _FILE_NAME.fullmatch(path.name)
        document = read_json(path)
        images: dict[int, tuple[str, int]] = {}  # id -> (file name, index in the document)
        captions: dict[int, list[tuple[int, str]]] = {}  # image id -> (caption id, caption)
        for index, image in enumerate(require_objects(document, "images", str(path))):
            where = f"{path}: images[{index}]"
            with faults.of_row():
                name = require_field(image, "file_name", str, where)
                identifier = require_field(image, "id", int, where)
                if identifier in images:
                    raise AttendError(f"{where}.id: {identifier} is already the id of images[{images[identifier][1]}]")
                images[identifier] = (name, index)
        for index, annotation in enumerate(require_objects(document, "annotations", str(path))):
            where = f"{path}: annotations[{index}]"
            with faults.of_row():
                image_id = require_field(annotation, "image_id", int, where)
                if image_id not in images:
                    raise AttendError(f"{where}.image_id: {image_id} is not the id of any image in images")
                text = needs_text(annotation.get("caption"), where, "caption")
                captions.setdefault(image_id, []).append((require_field(annotation, "id", int, where), text))
        split = None if match is None else parse_split(match["split"], str(path))
        for identifier, (name, index) in images.items():
            texts = tuple(text for _, text in sorted(captions.get(identifier, [])))
            with faults.of_row():
                where = f"{path}: images[{index}]"
                full = f"{match['images']}/{name}" if match else name
                yield Row(full, texts, split or self.split_in(name, where), where)
