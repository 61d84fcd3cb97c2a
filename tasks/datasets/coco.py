"""Adapter for COCO: `captions_*.json` files and image folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.datasets.base import NamedOptions, Row, needs_text, parse_split, require_folder
from tasks.datasets.caption_columns import unused_marks
from tasks.datasets.documents import read_json, require_field, require_objects
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.picture_finder import PictureFinder
from tasks.datasets.table import usual_images

_Images = dict[str, tuple[str, str, object]]  # id -> (file name, position in the document, split)
_Captions = dict[str, list[tuple[int, str]]]  # image id -> (caption id, caption)

_READ = ("id", "image_id", "caption")  # fields of an annotation
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

    def usual_folder(self) -> Path:
        path = self.path.expanduser()
        return usual_images(path.parent if path.is_file() else require_folder(path, "data.path"))

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        finder = PictureFinder.of(self.image_folder(generated))
        for path in self.annotation_files():
            yield from self._file_rows(path, finder, faults)

    def _file_rows(self, path: Path, finder: PictureFinder, faults: Faults) -> Iterator[Row]:
        match = None if self.path.expanduser().is_file() else _FILE_NAME.fullmatch(path.name)
        split = None if match is None else parse_split(match["split"], str(path))
        images, captions = self._document(path, faults)
        # In the folder named after the file, or else in one named after its split.
        inside = {name: f"{match['images']}/{name}" if match else name for name, *_ in images.values()}
        pictures = finder.find(inside.values())
        if match is not None and not any(pictures.values()):
            inside = {name: f"{match['split']}/{name}" for name in inside}
            pictures = finder.find(inside.values())
        level = self.level_of_splits(pictures)
        for identifier, (name, where, split_name) in images.items():
            texts = tuple(text for _, text in sorted(captions.get(identifier, [])))
            with faults.of_row():
                picture = finder.one(name, pictures[inside[name]], where)
                picture_split = parse_split(split_name, where) if isinstance(split_name, str) and split_name else None
                yield Row(picture, texts, split or picture_split or self.split_in(name, picture, level, where), where)

    def _document(self, path: Path, faults: Faults) -> tuple[_Images, _Captions]:
        """Return the pictures and captions of a document, by the pictures' ids."""
        document = read_json(path)
        images: _Images = {}
        captions: _Captions = {}
        unclear: set[str] = set()  # ids of several pictures, whose captions may be of any of them
        for index, image in enumerate(require_objects(document, "images", str(path))):
            where = f"{path}: images[{index}]"
            with faults.of_row():
                name = require_field(image, "file_name", str, where)
                identifier = _id(image, "id", where)
                if identifier in images:
                    unclear |= {identifier} if images[identifier][0] != name else set()
                    raise AttendError(f"{where}.id: {identifier} is already the id of {images[identifier][1]}")
                images[identifier] = (name, where, image.get("split"))
        annotations = require_objects(document, "annotations", str(path))
        fields = dict.fromkeys(field for annotation in annotations for field in annotation if field not in _READ)
        marks = {field: [item[field] for item in annotations if item.get(field) not in (None, "")] for field in fields}
        for note in unused_marks(marks, has_split=True, kind="field", of_texts=True):  # such as VizWiz's is_rejected
            log.warning(f"{path}: annotations: their {note}")
        if annotations and not any("caption" in annotation for annotation in annotations):
            raise AttendError(
                f"{path}: annotations: have no field caption; there are: {', '.join(fields)}: name theirs `caption`"
            )
        for index, annotation in enumerate(annotations):
            where = f"{path}: annotations[{index}]"
            with faults.of_row():
                image_id = _id(annotation, "image_id", where)
                if image_id not in images or image_id in unclear:
                    what = "the id of several images" if image_id in unclear else "not the id of any image in images"
                    raise AttendError(f"{where}.image_id: {image_id} is {what}")
                text = needs_text(annotation.get("caption"), where, "caption")
                number = annotation.get("id")
                captions.setdefault(image_id, []).append((number if isinstance(number, int) else index, text))
        return {key: image for key, image in images.items() if key not in unclear}, captions


def _id(item: dict[str, object], field: str, where: str) -> str:
    """Return the id in a field, as a text; AttendError if it is neither a whole number nor a text."""
    value = item.get(field)
    return value if isinstance(value, str) else str(require_field(item, field, int, where))
