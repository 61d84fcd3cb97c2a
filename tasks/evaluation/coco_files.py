"""Captions and references in the file formats of the COCO caption toolkit.

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
from tasks.common.log import log
from tasks.common.wording import counted
from tasks.data.manifest import Picture
from tasks.datasets.documents import parse_json, read_json, require_field, require_objects
from tasks.evaluation.caption_and_score import read_predictions
from tasks.metrics import ScoredCaption
from tasks.metrics.ptb import tokenize

ImageId = int | str


def read_results(path: Path) -> dict[ImageId, str]:
    """Read a results file: image id -> caption.

    Raise AttendError, which names the entry, if an entry is malformed or its image has a caption already.
    """
    document = parse_json(path)
    if not isinstance(document, list):
        raise AttendError(f'{path}: must be a JSON list of {{"image_id", "caption"}}')
    captions: dict[ImageId, str] = {}
    for index, entry in enumerate(document):
        where = f"{path}: [{index}]"
        image = _image_id(entry, where)
        if image in captions:
            raise AttendError(f"{where}.image_id: {image} has a caption already")
        captions[image] = require_field(entry, "caption", str, where)
    return captions


def read_references(path: Path) -> dict[ImageId, list[str]]:
    """Read an annotations file: image id -> its captions, at least one.

    Raise AttendError, which names the entry or the image, if an entry is malformed, its image id is not in `images`, or
    an image has no caption.
    """
    document = read_json(path)
    images = [
        _image_id(image, f"{path}: images[{index}]", "id")
        for index, image in enumerate(require_objects(document, "images", str(path)))
    ]
    references: dict[ImageId, list[str]] = {image: [] for image in images}
    for index, entry in enumerate(require_objects(document, "annotations", str(path))):
        where = f"{path}: annotations[{index}]"
        image = _image_id(entry, where)
        if image not in references:
            raise AttendError(f"{where}.image_id: no entry of images has the id {image}")
        references[image].append(require_field(entry, "caption", str, where))
    for image, captions in references.items():
        if not captions:
            raise AttendError(f"{path}: image {image} has no caption: remove it from images")
    return references


def corpus_of(predictions: Path, references: Path | None) -> list[ScoredCaption]:
    """Return the captions to score, with their references.

    predictions: a results file, with its references in the annotations file `references`, or attend's
    predictions.parquet, which contains its references. As in the toolkit, only images that have a result are scored.
    Raise AttendError if a file is malformed or has no captions, if `references` is missing or not needed, or if a
    result's image is not among the annotations.
    """
    if predictions.suffix == ".parquet":
        if references is not None:
            raise AttendError(f"{references}: {predictions.name} contains its references: leave this file out")
        corpus = list(read_predictions(predictions).values())
        if not corpus:
            raise AttendError(f"{predictions}: has no caption")
        return corpus
    if references is None:
        raise AttendError(f"{predictions}: also give the annotations that it is scored against")
    captions, annotated = read_results(predictions), read_references(references)
    if not captions:
        raise AttendError(f"{predictions}: has no caption")
    names = {} if captions.keys() <= annotated.keys() else _names_of(references)
    found: list[ScoredCaption] = []
    renamed: dict[ImageId, ImageId] = {}
    scored: set[ImageId] = set()
    for image, caption in captions.items():
        matched = image if image in annotated else names.get(_plain(image), names.get(str(image)))
        if matched is None:
            raise AttendError(f"{predictions}: image {image} is not among the images of {references}")
        if matched in scored:
            raise AttendError(f"{predictions}: image {image} is the image {matched} of {references}, captioned already")
        scored.add(matched)
        if matched != image:
            renamed[image] = matched
        found.append(ScoredCaption(tokenize(caption), [tokenize(text) for text in annotated[matched]]))
    if renamed:
        image, matched = next(iter(renamed.items()))
        log.info(
            f"{predictions}: {counted(len(renamed), 'image')} found by another form of the id or by the file's name, "
            f"such as {image!r} for {matched!r}"
        )
    return found


def export(captions: Mapping[str, str], pictures: Sequence[Picture], folder: Path) -> None:
    """Write results.json and annotations.json of captioned pictures into a folder.

    captions: digest -> caption. pictures: the source of names and references; pictures without a caption are left out.
    Raise AttendError if the folder cannot be written to.
    """
    names = {picture.digest: picture.name for picture in pictures if picture.digest in captions}
    references = {picture.digest: picture.captions for picture in pictures if picture.digest in captions}
    ids = image_ids(names)
    results = [{"image_id": ids[digest], "caption": captions[digest]} for digest in names]
    pairs = [(digest, text) for digest, texts in references.items() for text in texts]
    annotations = [
        {"id": number, "image_id": ids[digest], "caption": text} for number, (digest, text) in enumerate(pairs, 1)
    ]
    images = [{"id": ids[digest], "file_name": name} for digest, name in names.items()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in (("results", results), ("annotations", {"images": images, "annotations": annotations})):
            (folder / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise AttendError(f"{folder}: {error.strerror}") from None


def image_ids(names: Mapping[str, str]) -> dict[str, ImageId]:
    """Return digest -> image id, for digest -> file name.

    As in COCO, the ids are the numbers at the end of the names. If a name has none, or two names have the same, the ids
    are the names.
    """
    matches = {digest: re.search(r"(\d+)\.\w+$", name) for digest, name in names.items()}
    numbers = {digest: int(match[1]) for digest, match in matches.items() if match}
    if len(set(numbers.values())) == len(names):
        return dict(numbers)
    return dict(names)


def _image_id(entry: Any, where: str, name: str = "image_id") -> ImageId:
    """Return the image id in the entry's field `name`; if it has none, raise AttendError, which begins with `where`."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if isinstance(value, float) and value.is_integer():  # pandas writes a column with missing values as floats
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise AttendError(f"{where}.{name}: must be a whole number or a string")
    return value


def _names_of(path: Path) -> dict[str, ImageId]:
    """Return the images of an annotations file by other names that results may use for them.

    These are the id as text without leading zeros, and the file's name with and without its suffix. Names shared by two
    images are left out.
    """
    names: dict[str, set[ImageId]] = {}
    for image in require_objects(read_json(path), "images", str(path)):
        file = image.get("file_name")
        other_names = [] if not isinstance(file, str) else [Path(file).name, Path(file).stem]
        for name in (_plain(image["id"]), *other_names):
            names.setdefault(name, set()).add(image["id"])
    return {name: next(iter(images)) for name, images in names.items() if len(images) == 1}


def _plain(image: ImageId) -> str:
    """Return an id as text, a number without leading zeros."""
    text = str(image).strip()
    return str(int(text)) if text.isdecimal() else text
