"""What a folder or a file of captions holds: the adapter that reads it, and the settings that it needs."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tasks.common.errors import AttendError
from tasks.common.files import check_name
from tasks.common.log import log
from tasks.datasets.base import OTHER_PICTURES, PICTURE_SUFFIXES, SPLIT_NAMES, picture_name, refuse_address
from tasks.datasets.coco import Coco
from tasks.datasets.coco_tensor_file import is_coco_tensors
from tasks.datasets.documents import parse_json
from tasks.datasets.faults import Faults
from tasks.datasets.image_folder import METADATA, ImageFolder, metadata_files
from tasks.datasets.object_array import array_header
from tasks.datasets.table import (
    DELIMITERS,
    IMAGE_FOLDERS,
    TABLE_SUFFIXES,
    RecordOptions,
    Table,
    is_table,
    split_tables,
    usual_delimiter,
)

Options = dict[str, Any]  # the config's section `data`
_FEWEST_WORDS = 3  # of a column's texts, in the mean, that could be captions
_SAMPLE = 200  # records that are looked at
_MOST_SUBFOLDERS = 20  # below a folder without captions, that are looked into
_MOST_FOLDERS = 1000  # folders that are searched for pictures
_CAPTION_NAMES = ("caption", "captions", "text", "description", "sentence", "sentences", "comment", "title")


class _Columns(NamedTuple):
    """The columns of a table, the folder of its pictures, and the ending that their names lack, if any."""

    image: str
    caption: str
    split: str | None
    images: Path
    suffix: str | None


def detect(path: Path) -> Options:
    """Return the settings of `data` that read a folder or file.

    Raises AttendError where it holds no captions of pictures in any known form.
    """
    given, path = path, path.expanduser().absolute()
    if path.is_dir():
        return _of_folder(path)
    if path.is_file():
        return _of_file(path)
    refuse_address(given, "FOLDER|FILE")
    raise AttendError(f"{path}: no such file or folder")


def _of_folder(folder: Path) -> Options:
    published = _published(folder)
    if published is not None:
        return published
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if len(split_tables(folder)) > 1:  # a single train.csv need not be divided
        return _of_table(folder)
    errors = []
    for path in (*files, *sorted(folder.glob("annotations/*.json"))):
        if not is_table(path) or path.with_suffix("").name.lower() in (
            "readme",
            "license",
            "requirements",
        ):
            continue
        if path.suffix.lower() == ".txt" and any(path.with_suffix(suffix).is_file() for suffix in PICTURE_SUFFIXES):
            continue  # the caption of one picture
        try:
            return _of_file(path)
        except AttendError as error:
            errors.append(str(error))
    tensors = _of_tensors(folder)
    if tensors is not None:
        return tensors
    try:
        ImageFolder(path=folder).annotation_files()
    except AttendError:
        pictures, others = _pictures_by_suffix(folder)
        below = next(filter(_holds_captions, itertools.islice(_folders(folder), 1, _MOST_SUBFOLDERS)), None)
        if below is not None:
            raise AttendError(f"{folder}: holds no captions itself, but {below} does: give that folder") from None
        if errors:
            raise AttendError(errors[0]) from None
        if not pictures and not others:
            raise AttendError(f"{folder}: holds neither pictures nor captions: give the folder that does") from None
        if not pictures:
            raise AttendError(
                f"{folder}: its {others.total():,} pictures are {', '.join(sorted(others))}, which are not read: "
                "convert them to JPEG or PNG"
            ) from None
        raise AttendError(
            f"{folder}: has {pictures.total():,} pictures and no captions: add a metadata.jsonl with a line a picture, "
            '{"file_name": "a.jpg", "text": "a dog runs"}, or a .txt beside each picture'
        ) from None
    return {"adapter": "imagefolder", "path": folder}


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
    """Return the settings of a JSON document in COCO's or Karpathy's form; None for a list, which is a table."""
    document = parse_json(path)
    if isinstance(document, list):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise AttendError(f"{path}: is neither COCO's JSON nor Karpathy's, nor a list of objects")
    if "annotations" not in document:
        return {"adapter": "karpathy", "path": path}
    names = [str(image.get("file_name")) for image in document["images"][:_SAMPLE] if isinstance(image, dict)]
    place = _folder_of(names, path.parent)
    expected = path.parent / "images" if (path.parent / "images").is_dir() else path.parent
    options: Options = {"adapter": "coco", "path": path}
    return options if place is None or place.images == expected else {**options, "images": place.images}


def _of_table(path: Path) -> Options:
    """Return the settings of a table, or of a folder with one for each split."""
    files = split_tables(path) if path.is_dir() else [path]
    options = {"adapter": "table", "path": path, **_text_form(files[0])}
    columns = _columns(Table(**options), files[0])
    return {**options, **_settings(columns, Table, files[0].parent)}


def _of_metadata(folder: Path, file: Path) -> Options:
    """Return the settings of a folder of pictures with metadata."""
    options: Options = {"adapter": "imagefolder", "path": folder, **_text_form(file)}
    columns = _columns(ImageFolder(**options), file)
    return {**options, **_settings(columns, ImageFolder, file.parent)}


def _settings(columns: _Columns, kind: type[RecordOptions], folder: Path) -> Options:
    """Return the settings that differ from the adapter's own. folder: of the file."""
    settings: Options = {}
    if columns.image != kind.model_fields["image_column"].default:
        settings["image_column"] = columns.image
    if columns.caption != kind.model_fields["caption_column"].default:
        settings["caption_column"] = columns.caption
    if columns.split is not None:
        settings["split_column"] = columns.split
    expected = [folder] if kind is ImageFolder else [folder / name for name in IMAGE_FOLDERS] + [folder]
    if columns.images != next((path for path in expected if path.is_dir()), None):
        settings["images"] = columns.images
    if columns.suffix is not None:
        settings["suffix"] = columns.suffix
    return settings


def _text_form(path: Path) -> Options:
    """Return the encoding and the delimiter of a table of text, where they are not UTF-8 and the usual one."""
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return {}
    with path.open("rb") as file:
        start = file.read(1 << 20)
    encoding = _encoding(start, path)
    text = start.decode(encoding or "utf-8-sig", errors="replace")
    usual = usual_delimiter(path)
    delimiter = max((usual, *DELIMITERS), key=lambda sign: _regularity(text, sign))
    form: Options = {} if encoding is None else {"encoding": encoding}
    return form if delimiter == usual else {**form, "delimiter": DELIMITERS[delimiter]}


def _encoding(start: bytes, path: Path) -> str | None:
    """Return a file's encoding by its first bytes; None for UTF-8."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(start)  # incremental: the last character may be cut
    except UnicodeDecodeError:
        if 0 in start:
            raise AttendError(f"{path}: is neither text nor Parquet") from None
        return "cp1252"
    return None


def _regularity(text: str, delimiter: str) -> float:
    """Return how much a text looks like a table whose columns this character separates: 0 where it has one column."""
    try:
        rows = [
            row
            for row in itertools.islice(csv.reader(text.splitlines()[:-1] or [text], delimiter=delimiter), 100)
            if row
        ]
    except csv.Error:
        return 0.0
    if not rows or len(rows[0]) < 2:
        return 0.0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows) + 0.01 * (len(rows) > 1)


def _columns(options: RecordOptions, file: Path) -> _Columns:
    """Return the columns of a table by what they hold. Raises AttendError where it has no pictures or no captions."""
    faults = Faults(gather=True)
    records = [record for _, record in itertools.islice(options.records_of(file, faults), _SAMPLE)]
    if not records:
        raise AttendError(faults.found[0] if faults.found else f"{file}: has no row")
    names = list(dict.fromkeys(itertools.chain.from_iterable(records)))
    if any(str(name).lower().endswith(PICTURE_SUFFIXES) for name in names):
        raise AttendError(f"{file}:1: names a picture: put a line with the columns' names first: image,caption")
    values = {name: [record.get(name) for record in records if record.get(name) not in (None, "")] for name in names}
    found: dict[str, _Place] = {}
    for name in names:
        place = _folder_of([str(value) for value in values[name]], file.parent) if _is_plain(values[name]) else None
        if place is not None:
            found[name] = place
    image = max(found, key=lambda name: found[name].share, default="")
    if not image:
        shown = _row(records[0])
        raise AttendError(
            f"{file}: none of its columns ({', '.join(map(str, names))}) names pictures in {file.parent}; its first "
            f"row: {shown}: put the pictures there, or run `attend init` on the folder that holds both"
        )
    place = found[image]
    split = next((name for name in names if name != image and _is_split(values[name])), None)
    texts = [name for name in names if name not in (image, split) and _words(values[name]) > 0]
    if not texts:
        raise AttendError(f"{file}: no column of texts beside the pictures' ({image}); there are: {', '.join(names)}")
    caption = min(texts, key=lambda name: (name.lower() not in _CAPTION_NAMES, -_words(values[name])))
    unread = [name for name in texts if name != caption and _words(values[name]) >= _FEWEST_WORDS]
    if unread:
        log.warning(
            f"{file}: captions are read from its column {caption}, none from {', '.join(unread)}: for another, set "
            "data.caption_column"
        )
    return _Columns(image, caption, split, place.images, place.suffix)


class _Place(NamedTuple):
    """Name the folder of pictures. share: of the names, those that are in it."""

    images: Path
    suffix: str | None
    share: float


def _folder_of(names: list[str], folder: Path) -> _Place | None:
    """Return the folder, at or below `folder`, in which most of these names are pictures; None where none has any."""
    sample = names[:_SAMPLE]
    absolute = [Path(name) for name in names if name.startswith("/")]
    if absolute and any(path.is_file() for path in absolute[:_SAMPLE]):
        common = Path(os.path.commonpath([path.parent for path in absolute]))
        return _Place(common, None, 1.0)
    best: _Place | None = None
    for candidate in itertools.islice(_folders(folder), _MOST_FOLDERS):
        for suffix in (None, *PICTURE_SUFFIXES):
            hits = sum(_is_picture(candidate, f"{name}{suffix or ''}") for name in sample)
            if hits and (best is None or hits / len(sample) > best.share):
                best = _Place(candidate, suffix, hits / len(sample))
            if hits:
                break
        if best is not None and best.share > 0.99:
            break
    return best


def _is_picture(folder: Path, name: str) -> bool:
    """Return whether a folder has a picture of this name, whichever way its accents are written."""
    if not name.lower().endswith((*PICTURE_SUFFIXES, *OTHER_PICTURES)):
        return False
    try:
        name = picture_name(folder, name)
        check_name(name)
        return any((folder / unicodedata.normalize(form, name)).is_file() for form in ("NFC", "NFD"))
    except (OSError, ValueError):  # a text that no file can have as its name
        return False


def _folders(folder: Path) -> Iterator[Path]:
    """Yield a folder and those below it that are not hidden, the higher ones first."""
    pending = [folder]
    while pending:
        yield from pending
        pending = [
            Path(entry.path)
            for path in pending
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name)
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]


def _is_plain(values: list[Any]) -> bool:
    return all(isinstance(value, str | int) for value in values)


def _is_split(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) and value.strip().lower() in SPLIT_NAMES for value in values)


def _words(values: list[Any]) -> float:
    """Return the mean number of words of a column's texts; 0 where it holds none."""
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    if not texts or not all(isinstance(text, str) for text in texts):
        return 0.0
    if all(text.replace(".", "", 1).replace("-", "").isdigit() for text in texts):
        return 0.0
    return sum(len(text.split()) for text in texts) / len(texts)


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
        options["caption_column"] = min(texts, key=lambda name: name.lower() not in _CAPTION_NAMES)
    return options


def _of_tars(folder: Path) -> Options:
    """Return the settings of a folder of tar files, by the first samples of the first whose .json can be read."""
    from tasks.datasets.webdataset import json_fields, samples

    options: Options = {"adapter": "webdataset", "path": folder}
    tar = min(folder.glob("*.tar"))
    for key, members in itertools.islice(samples(tar), _SAMPLE):
        if "txt" in members or "json" not in members:
            break
        try:
            fields = json_fields(members, f"{tar}: {key}")
        except AttendError:  # a row that is not valid, which is reported when the rows are read
            continue
        texts = [name for name, value in fields.items() if isinstance(value, str) and name.lower() in _CAPTION_NAMES]
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


def _row(record: dict[str, Any]) -> str:
    """Return a row in one line, its values shortened."""
    return ", ".join(f"{name}: {str(value)[:40]!r}" for name, value in record.items())
