"""What a folder or a file of captions holds: the adapter that reads it, and the settings that it needs.

All files that may hold captions are looked into, and the one that looks most like captions is taken.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tasks.common.errors import AttendError
from tasks.common.wording import counted, shortened
from tasks.datasets import ADAPTERS
from tasks.datasets.base import OTHER_PICTURES, PICTURE_SUFFIXES, folder_split, refuse_address, require_file
from tasks.datasets.coco import Coco
from tasks.datasets.coco_tensor_file import is_coco_tensors
from tasks.datasets.documents import parse_json
from tasks.datasets.faults import Faults
from tasks.datasets.image_folder import METADATA, ImageFolder, metadata_files
from tasks.datasets.object_array import array_header
from tasks.datasets.table import IMAGE_FOLDERS, TABLE_SUFFIXES, RecordOptions, Table, is_table, split_tables
from tasks.datasets.table_columns import CAPTION_NAMES, SAMPLE, Columns, Options, examine, folder_of, folders, text_form

_MOST_SUBFOLDERS = 20  # below a folder without captions, that are looked into
_NO_CAPTIONS = ("readme", "license", "requirements")  # names of files that are not looked into
_WORDS = 8  # of a caption: with as many, more do not make it likelier that it is one
_CLOSE = 0.75  # share of the best score from which two files look alike


@dataclass(frozen=True)
class Candidate:
    """A way to read captions. options: the settings of `data`. found: a sample of what they read."""

    file: Path
    options: Options
    found: Columns

    @property
    def score(self) -> float:
        """Return how much this looks like captions: texts of several words, many of them different, of its pictures."""
        named = 1.3 if str(self.found.caption).lower() in CAPTION_NAMES else 1.0
        titled = 1.2 if "caption" in self.file.stem.lower() else 1.0
        words = min(self.found.words, _WORDS) / _WORDS
        return self.found.share * words * (0.5 + 0.5 * self.found.variety) * named * titled

    def has_form_of(self, other: Candidate) -> bool:
        """Return whether both are parts of one data set: tables of the same columns that name other pictures."""
        same = self.found.columns == other.found.columns and self.file.suffix == other.file.suffix
        return same and not self.found.pictures & other.found.pictures

    def __str__(self) -> str:
        words = "one word" if self.found.words < 1.5 else f"{self.found.words:.0f} words"
        return f"{counted(len(self.found.pictures), 'picture')} in the first rows, {words} each"


class Detection(NamedTuple):
    """The settings of `data` that read a folder or file, and a line for each file of captions that they do not read."""

    options: Options
    unread: list[str]


def detect(path: Path, captions: Path | None = None) -> Detection:
    """Return the settings of `data` that read a folder or file.

    captions: the file of captions to read of a folder; None for the one that looks most like captions. Raises
    AttendError where there are no captions of pictures in any known form, or where two files look alike.
    """
    given, path = path, path.expanduser().absolute()
    if captions is not None:
        return Detection(_of_file(require_file(captions, "--captions").absolute()), [])
    if path.is_dir():
        return _of_folder(path)
    if path.is_file():
        return Detection(_of_file(path), [])
    refuse_address(given, "FOLDER|FILE")
    raise AttendError(f"{path}: no such file or folder")


def _of_folder(folder: Path) -> Detection:
    published = _published(folder)
    if published is not None:
        return Detection(published, _others(folder, published, [], {}))
    if len(split_tables(folder)) > 1:  # a single train.csv need not be divided
        options = _of_table(folder)
        return Detection(options, _others(folder, options, split_tables(folder), {}))
    candidates, errors = _candidates(folder)
    if candidates:
        return _best(folder, candidates, errors)
    tensors = _of_tensors(folder)
    if tensors is not None:
        return Detection(tensors, _others(folder, tensors, [], errors))
    try:
        ImageFolder(path=folder).annotation_files()
    except AttendError:
        raise _without_captions(folder, errors) from None
    options = {"adapter": "imagefolder", "path": folder}
    return Detection(options, _others(folder, options, [], errors))


def _candidates(folder: Path) -> tuple[list[Candidate], dict[Path, str]]:
    """Return the tables and documents of a folder that hold captions, and why each of the others does not.

    Where the folder has none itself, those of the folders below it that are named alike, such as one for each split.
    """
    candidates, errors = _in_folder(folder)
    if not candidates:
        below = list(itertools.islice(folders(folder), 1, _MOST_SUBFOLDERS))
        splits = [part for part in below if folder_split(part.relative_to(folder).parts) is not None]
        for part in splits:
            found, why = _in_folder(part)
            candidates += found
            errors |= why
    return candidates, errors


def _in_folder(folder: Path) -> tuple[list[Candidate], dict[Path, str]]:
    candidates, errors = [], {}
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for path in (*files, *sorted(folder.glob("annotations/*.json"))):
        if not is_table(path) or path.with_suffix("").name.lower() in _NO_CAPTIONS:
            continue
        if path.suffix.lower() == ".txt" and any(path.with_suffix(suffix).is_file() for suffix in PICTURE_SUFFIXES):
            continue  # the caption of one picture
        try:
            candidates.append(_candidate(path))
        except AttendError as error:
            errors[path] = str(error)
    return candidates, errors


def _candidate(path: Path) -> Candidate:
    """Return how a file is read; AttendError where it holds no captions of pictures."""
    document = _of_json(path) if path.suffix.lower() == ".json" else None
    if document is not None:
        return Candidate(path, document, _of_document(document))
    return _examined(Table, path, path)


def _examined(kind: type[RecordOptions], path: Path, file: Path) -> Candidate:
    """Return how the adapter `kind` reads the data set at `path`, by one of its tables, `file`."""
    options: Options = {"adapter": kind.model_fields["adapter"].default, "path": path, **text_form(file)}
    found = examine(kind, options, file)
    return Candidate(file, {**options, **found.options, **_images(found, kind, file.parent)}, found)


def _of_document(options: Options) -> Columns:
    """Return what a document in COCO's or Karpathy's form holds, by its first pictures."""
    data = ADAPTERS[options["adapter"]].model_validate(options)
    rows = list(itertools.islice(data.rows(Path(), Faults(gather=True)), SAMPLE))
    texts = tuple(text for row in rows for text in row.captions)
    names = frozenset(row.name for row in rows if row.captions)
    if not texts:
        raise AttendError(f"{options['path']}: none of its first pictures has a caption")
    return Columns({}, Path(), names, (options["adapter"],), "caption", texts, 1.0)


def _best(folder: Path, candidates: list[Candidate], errors: dict[Path, str]) -> Detection:
    """Return the candidate that looks most like captions, with those that are further parts of the same data set."""
    ranked = sorted(candidates, key=lambda item: item.score, reverse=True)
    parts = [ranked[0]]
    for item in ranked[1:]:
        if all(item.has_form_of(part) for part in parts) and item.score > _CLOSE * ranked[0].score:
            parts.append(item)
    others = [item for item in ranked if item not in parts]
    close = [item for item in others if item.score > _CLOSE * ranked[0].score]
    if close:
        shown = "; ".join(f"{item.file.relative_to(folder)} ({item})" for item in (*parts, *close))
        raise AttendError(f"{folder}: several files look like captions: {shown}: name one with --captions FILE")
    options = parts[0].options if len(parts) == 1 else _joined(folder, sorted(parts, key=lambda part: part.file))
    reasons = errors | {item.file: str(item) for item in others}
    return Detection(options, _others(folder, options, [part.file for part in parts], reasons))


def _joined(folder: Path, parts: list[Candidate]) -> Options:
    """Return the settings of several files as one data set, each with the split that its name or folder says."""
    sources: dict[str, Options] = {}
    for part in parts:
        place = part.file.relative_to(folder)
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(place.with_suffix("").parts))
        split = folder_split((part.file.stem, *place.parts[:-1]))
        own = part.options.get("split_column") or part.options.get("splits")
        sources[name] = part.options if split is None or own else {**part.options, "split": split}
    return {"adapter": "sources", "sources": sources}


def _others(folder: Path, options: Options, read: Sequence[Path], reasons: dict[Path, str]) -> list[str]:
    """Return a line for each file of a folder that is neither a picture nor read, with the reason."""
    sources = options.get("sources", {"": options})
    known = {*read, *(source["path"] for source in sources.values() if "path" in source)}
    is_whole = any(source.get("path") == folder and source["adapter"] != "table" for source in sources.values())
    lines = []
    for path in sorted({*(path for path in folder.iterdir() if path.is_file()), *reasons}):
        is_picture = path.suffix.lower() in (*PICTURE_SUFFIXES, *OTHER_PICTURES)
        skipped = path.name.startswith(".") or is_picture or path in known
        if skipped or (is_whole and path not in reasons and not is_table(path)):
            continue
        if is_whole and (path.name in METADATA or any(path.with_suffix(end).is_file() for end in PICTURE_SUFFIXES)):
            continue
        reason = reasons.get(path, "no captions were looked for in it").removeprefix(f"{path}: ")
        lines.append(f"{path.relative_to(folder)}: {shortened(reason, 120)}")
    return lines


def _without_captions(folder: Path, errors: dict[Path, str]) -> AttendError:
    """Return the error for a folder without captions: what it has instead."""
    pictures, others = _pictures_by_suffix(folder)
    below = next(filter(_holds_captions, itertools.islice(folders(folder), 1, _MOST_SUBFOLDERS)), None)
    if below is not None:
        return AttendError(f"{folder}: holds no captions itself, but {below} does: give that folder")
    if errors:
        return AttendError(next(iter(errors.values())))
    if not pictures and not others:
        return AttendError(f"{folder}: holds neither pictures nor captions: give the folder that does")
    if not pictures:
        return AttendError(
            f"{folder}: its {others.total():,} pictures are {', '.join(sorted(others))}, which are not read: "
            "convert them to JPEG or PNG"
        )
    return AttendError(
        f"{folder}: has {pictures.total():,} pictures and no captions: add a metadata.jsonl with a line a picture, "
        '{"file_name": "a.jpg", "text": "a dog runs"}, or a .txt beside each picture'
    )


def _holds_captions(folder: Path) -> bool:
    """Return whether a folder's own files are captions of pictures."""
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix.lower() in (*TABLE_SUFFIXES, ".tar")]
    try:
        return bool(_published(folder)) or any(_of_file(path) for path in files[:_MOST_SUBFOLDERS])
    except (AttendError, OSError):
        return False


def _published(folder: Path) -> Options | None:
    """Return the settings of a folder that is laid out as a known data set is; None where it is not."""
    names = {path.name for path in folder.iterdir()}
    metadata = metadata_files(folder)
    options: Options | None = None
    if "Flickr8k.token.txt" in names:
        options = {"adapter": "flickr8k", "path": folder}
    elif "results_20130124.token" in names:
        options = {"adapter": "flickr30k", "path": folder}
    elif names & {"dataset_dict.json", "state.json"}:
        options = _of_hugging_face(folder)
    elif any(name.endswith(".tar") for name in names):
        options = _of_tars(folder)
    elif metadata:
        options = _of_metadata(folder, min(metadata))
    elif len(list(folder.glob("dataset_*.json"))) == 1:
        options = {"adapter": "karpathy", "path": folder}
    elif _has_coco_files(folder):
        options = {"adapter": "coco", "path": folder}
    return options


def _of_tensors(folder: Path) -> Options | None:
    """Return the settings of a folder that holds a coco.pt, or arrays of grids and captions; None for another."""
    tensors = [path for path in sorted(folder.glob("*.pt")) if is_coco_tensors(path)]
    if len(tensors) == 1:
        return {"adapter": "coco_pt", "path": tensors[0]}
    return _of_arrays(folder)


def _of_arrays(folder: Path) -> Options | None:
    """Return the settings of a folder that holds one array of grids and one of their captions; None for another."""
    read = ((path, array_header(path)) for path in sorted(folder.glob("*.npy")))
    headers = [(path, header) for path, header in read if header is not None]
    pairs = [
        (grids, captions)
        for grids, header in headers
        for captions, other in headers
        if header.is_grids and other.is_texts and header.shape[0] == other.shape[0]
    ]
    if len(pairs) > 1:
        shown = "; ".join(f"{a.name} with {b.name}" for a, b in pairs)
        raise AttendError(
            f"{folder}: several arrays may be the grids and their captions: {shown}: leave one of each in the folder"
        )
    return {"adapter": "arrays", "path": pairs[0][0], "captions": pairs[0][1]} if pairs else None


def _has_coco_files(folder: Path) -> bool:
    try:
        return bool(Coco(path=folder).annotation_files())
    except AttendError:
        return False


def _of_file(path: Path) -> Options:
    if path.suffix == ".tar":
        return _of_tars(path.parent)
    if path.suffix == ".npy":
        arrays = _of_arrays(path.parent)
        if arrays is None or path not in (arrays["path"], arrays["captions"]):
            raise AttendError(
                f"{path}: an array of grids (N, C, h, w) and an array of N lists of captions are needed, in one folder"
            )
        return arrays
    known: dict[str, Options] = {
        ".pt": {"adapter": "coco_pt", "path": path},
        ".token": {"adapter": "flickr30k", "path": path},
    }
    if path.suffix in known:
        return known[path.suffix]
    if path.name == "Flickr8k.token.txt":
        return {"adapter": "flickr8k", "path": path.parent}
    if path.name in METADATA:
        return _of_metadata(path.parent, path)
    if not is_table(path):
        raise AttendError(
            f"{path}: is not a kind of caption file that is known: a table ends in {', '.join(TABLE_SUFFIXES)}"
        )
    return (_of_json(path) if path.suffix.lower() == ".json" else None) or _of_table(path)


def _of_json(path: Path) -> Options | None:
    """Return the settings of a JSON document in COCO's or Karpathy's form; None for another, which may be a table."""
    document = parse_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        return None
    if "annotations" not in document:
        return {"adapter": "karpathy", "path": path}
    names = [str(image.get("file_name")) for image in document["images"][:SAMPLE] if isinstance(image, dict)]
    place = folder_of(names, path.parent)
    expected = path.parent / "images" if (path.parent / "images").is_dir() else path.parent
    options: Options = {"adapter": "coco", "path": path}
    return options if place is None or place.images == expected else {**options, "images": place.images}


def _of_table(path: Path) -> Options:
    """Return the settings of a table, or of a folder with one for each split."""
    return _examined(Table, path, split_tables(path)[0] if path.is_dir() else path).options


def _of_metadata(folder: Path, file: Path) -> Options:
    """Return the settings of a folder of pictures with metadata."""
    return _examined(ImageFolder, folder, file).options


def _images(found: Columns, kind: type[RecordOptions], folder: Path) -> Options:
    """Return the setting of the folder of pictures where it is not the adapter's own. folder: of the file."""
    expected = [folder] if kind is ImageFolder else [folder / name for name in IMAGE_FOLDERS] + [folder]
    is_usual = found.images == next((path for path in expected if path.is_dir()), None)
    return {} if is_usual else {"images": found.images}


def _of_hugging_face(folder: Path) -> Options:
    """Return the settings of a folder that Hugging Face's `save_to_disk` wrote, by the types of its columns."""
    options: Options = {"adapter": "huggingface", "path": folder}
    described = next(iter(sorted(folder.rglob("dataset_info.json"))), None)
    info = parse_json(described) if described is not None else None
    features = info.get("features") if isinstance(info, dict) else None
    if not isinstance(features, dict):
        return options
    images = [name for name, kind in features.items() if isinstance(kind, dict) and kind.get("_type") == "Image"]
    texts = [name for name, kind in features.items() if name not in images and '"string"' in json.dumps(kind)]
    if images and "image" not in images:
        options["image_column"] = images[0]
    if texts and "caption" not in texts:
        options["caption_column"] = min(texts, key=lambda name: name.lower() not in CAPTION_NAMES)
    return options


def _of_tars(folder: Path) -> Options:
    """Return the settings of a folder of tar files, by the first samples of the first whose .json can be read."""
    from tasks.datasets.webdataset import json_fields, samples

    options: Options = {"adapter": "webdataset", "path": folder}
    tar = min(folder.glob("*.tar"))
    for key, members in itertools.islice(samples(tar), SAMPLE):
        if "txt" in members or "json" not in members:
            break
        try:
            fields = json_fields(members, f"{tar}: {key}")
        except AttendError:  # a row that is not valid, which is reported when the rows are read
            continue
        texts = [name for name, value in fields.items() if isinstance(value, str) and name.lower() in CAPTION_NAMES]
        return {**options, "caption_field": texts[0]} if texts else options
    return options


def _pictures_by_suffix(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Return how many pictures a folder holds, with those below it, by their ending: such as are read, and others."""
    suffixes = Counter(Path(name).suffix.lower() for _, _, files in os.walk(folder) for name in files)
    read, others = (
        Counter({suffix: suffixes[suffix] for suffix in kinds if suffixes[suffix]})
        for kinds in (PICTURE_SUFFIXES, OTHER_PICTURES)
    )
    return read, others
