"""Captions and references in files of the COCO caption toolkit's formats.

Results: a JSON list of {"image_id", "caption"}. Annotations: a JSON object with "images" ({"id"}) and "annotations"
({"image_id", "caption"}).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.common.errors import AttendError
from tasks.data.manifest import Picture
from tasks.datasets.documents import field_of, list_in, parse_json, read_json
from tasks.evaluation.predictions import read_predictions
from tasks.metrics import Scored
from tasks.metrics.ptb import tokenize

ImageId = int | str


def read_results(path: Path) -> dict[ImageId, str]:
    """Image id -> caption; AttendError names the entry that is none, or an image that comes twice."""
    document = parse_json(path)
    if not isinstance(document, list):
        raise AttendError(f'{path}: results are a JSON list of {{"image_id", "caption"}}')
    found: dict[ImageId, str] = {}
    for index, entry in enumerate(document):
        where = f"{path}: [{index}]"
        image = _image_id(entry, where)
        if image in found:
            raise AttendError(f"{where}.image_id: {image} has a caption already")
        found[image] = field_of(entry, "caption", str, where)
    return found


def read_references(path: Path) -> dict[ImageId, list[str]]:
    """Image id -> its captions; every image of `images` has one at least, or AttendError names it."""
    document = read_json(path)
    images = [
        _image_id(image, f"{path}: images[{index}]", "id")
        for index, image in enumerate(list_in(document, "images", str(path)))
    ]
    found: dict[ImageId, list[str]] = {image: [] for image in images}
    for index, entry in enumerate(list_in(document, "annotations", str(path))):
        where = f"{path}: annotations[{index}]"
        image = _image_id(entry, where)
        if image not in found:
            raise AttendError(f"{where}.image_id: {image} is the id of no picture in images")
        found[image].append(field_of(entry, "caption", str, where))
    for image, captions in found.items():
        if not captions:
            raise AttendError(f"{path}: image {image} has no caption: take it out of images")
    return found


def corpus_of(predictions: Path, references: Path | None) -> list[Scored]:
    """What is to be scored: results beside annotations, or attend's predictions.parquet, which brings its references.

    As in the toolkit, only images that have a result are scored. AttendError for a result without references.
    """
    if predictions.suffix == ".parquet":
        if references is not None:
            raise AttendError(f"{references}: {predictions.name} brings its references: leave it out")
        corpus = list(read_predictions(predictions).values())
        if not corpus:
            raise AttendError(f"{predictions}: has no caption")
        return corpus
    if references is None:
        raise AttendError(f"{predictions}: give the annotations that it is scored against, too")
    captions, true = read_results(predictions), read_references(references)
    if not captions:
        raise AttendError(f"{predictions}: has no caption")
    for image in captions:
        if image not in true:
            raise AttendError(f"{predictions}: image {image} is not among the images of {references}")
    return [Scored(tokenize(caption), [tokenize(text) for text in true[image]]) for image, caption in captions.items()]


def export(captions: Mapping[str, str], pictures: Sequence[Picture], folder: Path) -> None:
    """Write results.json and annotations.json of captioned pictures, digest -> caption, into a folder."""
    names = {picture.digest: picture.name for picture in pictures if picture.digest in captions}
    references = {picture.digest: picture.captions for picture in pictures if picture.digest in captions}
    ids = image_ids(names)
    results = [{"image_id": ids[digest], "caption": captions[digest]} for digest in names]
    written = [(digest, text) for digest, texts in references.items() for text in texts]
    annotations = [
        {"id": place, "image_id": ids[digest], "caption": text} for place, (digest, text) in enumerate(written, 1)
    ]
    images = [{"id": ids[digest], "file_name": name} for digest, name in names.items()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in (("results", results), ("annotations", {"images": images, "annotations": annotations})):
            (folder / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise AttendError(f"{folder}: {error.strerror}") from None


def image_ids(names: Mapping[str, str]) -> dict[str, ImageId]:
    """Digest -> image id, of digest -> name: the number that each name ends in, as COCO's do, else the names."""
    numbers = {digest: re.search(r"(\d+)\.\w+$", name) for digest, name in names.items()}
    found = {digest: int(match[1]) for digest, match in numbers.items() if match}
    if len(set(found.values())) == len(names):
        return dict(found)
    return dict(names)


def _image_id(entry: Any, where: str, name: str = "image_id") -> ImageId:
    value = entry.get(name) if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise AttendError(f"{where}.{name}: is to be a number or a text")
    return value
