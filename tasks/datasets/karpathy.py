"""Adapter for Karpathy's `dataset_{coco,flickr8k,flickr30k}.json`: names, splits and captions in one document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tasks.common.errors import AttendError
from tasks.datasets.base import DatasetOptions, Row, needs_text, parse_split, require_file
from tasks.datasets.documents import read_json, require_field, require_objects
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.picture_finder import PictureFinder
from tasks.datasets.table import usual_images


class Karpathy(DatasetOptions):
    """Karpathy's `dataset_*.json` and the folder of its `filepath`/`filename`; the split `restval` joins train."""

    adapter: Literal["karpathy"] = "karpathy"

    def annotation_files(self) -> list[Path]:
        path = self.path.expanduser()
        if not path.is_dir():
            return [require_file(path, "data.path")]
        documents = sorted(path.glob("dataset_*.json"))
        if len(documents) != 1:
            raise AttendError(f"data.path: {path}: has {len(documents)} files dataset_*.json: give the file to read")
        return documents

    def usual_folder(self) -> Path:
        return usual_images(self.annotation_files()[0].parent)

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        (path,) = self.annotation_files()
        images: dict[str, tuple[str, tuple[str, ...], str]] = {}  # name -> (position, captions, split)
        for index, image in enumerate(require_objects(read_json(path), "images", str(path))):
            where = f"{path}: images[{index}]"
            with faults.of_row():
                name = require_field(image, "filename", str, where)
                sentences = require_objects(image, "sentences", where)
                captions = tuple(
                    needs_text(sentence.get("raw"), f"{where}.sentences[{number}]", "raw")
                    for number, sentence in enumerate(sentences)
                )
                split = parse_split(require_field(image, "split", str, where), where)
                name = f"{image['filepath']}/{name}" if image.get("filepath") else name
                if name in images:
                    raise AttendError(
                        f"{where}: {name} has an entry already, at {images[name][0]}: remove one of the two"
                    )
                images[name] = where, captions, split
        finder = PictureFinder.of(self.image_folder(generated))
        for name, pictures in finder.find(images).items():
            where, captions, split = images[name]
            with faults.of_row():
                yield Row(finder.one(name, pictures, where), captions, split, where)
