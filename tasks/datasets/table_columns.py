"""The columns of a table of captions, by what they hold, and the folder of its pictures."""

from __future__ import annotations

import codecs
import csv
import itertools
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tasks.common.errors import AttendError
from tasks.common.files import check_name
from tasks.common.log import log
from tasks.datasets.base import OTHER_PICTURES, PICTURE_SUFFIXES, SPLIT_NAMES, folder_split, picture_name
from tasks.datasets.faults import Faults
from tasks.datasets.table import DELIMITERS, RecordOptions, listed_texts, usual_delimiter

Options = dict[str, Any]  # settings of `data`
FEWEST_WORDS = 3  # of a column's texts, in the mean, that could be captions
CAPTION_NAMES = ("caption", "captions", "text", "description", "sentence", "sentences", "comment", "title")
_SPLIT_COLUMNS = ("split", "partition", "subset", "set", "fold", "phase")
SAMPLE = 200  # records that are looked at
_MOST_FOLDERS = 1000  # folders that are searched for pictures
_BETWEEN = "||"  # what some tables have between the captions of a cell
_NEARLY_ALL = 0.9


class Columns(NamedTuple):
    """Hold what a sample of a table's records says of it.

    options: the settings of `data` that read it, but for adapter and path. images: the folder of its pictures.
    pictures: the names of those in the sample. columns: the names of all. caption: the column of the captions.
    texts: the captions. share: of the pictures, those that are there.
    """

    options: Options
    images: Path
    pictures: frozenset[str]
    columns: tuple[str, ...]
    caption: str
    texts: tuple[str, ...]
    share: float

    @property
    def words(self) -> float:
        """Return the mean number of words of a caption."""
        return sum(len(text.split()) for text in self.texts) / max(len(self.texts), 1)

    @property
    def variety(self) -> float:
        """Return the share of captions that are different."""
        return len(set(self.texts)) / max(len(self.texts), 1)


def text_form(path: Path) -> Options:
    """Return the encoding and the delimiter of a table of text, where they are not UTF-8 and the usual one."""
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return {}
    with path.open("rb") as file:
        start = file.read(1 << 20)
    encoding = _encoding(start, path)
    text = start.decode(encoding or "utf-8-sig", errors="replace")
    usual = usual_delimiter(path)
    # A comma is also in captions: of two that separate as regularly, it is not it.
    delimiter = max(("\t", usual, *DELIMITERS), key=lambda sign: _regularity(text, sign))
    if _regularity(text, delimiter) == 0:
        delimiter = usual
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


def examine(kind: type[RecordOptions], options: Options, file: Path) -> Columns:
    """Return what a table holds, and how it is read. Raises AttendError where it has no pictures or no captions.

    kind: the adapter. options: adapter, path, encoding and delimiter.
    """
    records = _sample(kind(**options), file)
    found = _read_columns(records, file)
    header = _as_header(found, records, file)
    if header is not None:
        options = {**options, "columns": header}
        records = _sample(kind(**options), file)
        found = _read_columns(records, file)
    image, caption, split, place, names = found
    if any(str(name).lower().endswith(PICTURE_SUFFIXES) for name in names):
        raise AttendError(f"{file}:1: names a picture: put a line with the columns' names first: image,caption")
    values = [str(record[image]) for record in records if record.get(image) not in (None, "")]
    cells = [record[caption] for record in records if record.get(caption) not in (None, "")]
    settings: Options = {} if header is None else {"columns": header}
    settings |= {} if image == kind.model_fields["image_column"].default else {"image_column": image}
    settings |= {} if caption == kind.model_fields["caption_column"].default else {"caption_column": caption}
    if split is not None:
        settings |= {} if split == kind.model_fields["split_column"].default else {"split_column": split}
    else:
        settings |= _splits_of(values, names, file)
    lists = _lists_of(cells)
    settings |= {} if lists is None else {"lists": lists}
    settings |= {} if place.suffix is None else {"suffix": place.suffix}
    return Columns(
        settings, place.images, frozenset(values), tuple(names), caption, tuple(_texts(cells, lists)), place.share
    )


class _Found(NamedTuple):
    image: str
    caption: str
    split: str | None
    place: Place
    names: list[str]


def _sample(options: RecordOptions, file: Path) -> list[dict[str, Any]]:
    faults = Faults(gather=True)
    records = [record for _, record in itertools.islice(options.records_of(file, faults), SAMPLE)]
    if not records:
        raise AttendError(faults.found[0] if faults.found else f"{file}: has no row")
    return records


def _read_columns(records: list[dict[str, Any]], file: Path) -> _Found:
    """Return the columns of records by what they hold; AttendError where none names pictures, or none is a text."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(records)))
    values = {name: [record.get(name) for record in records if record.get(name) not in (None, "")] for name in names}
    places: dict[str, Place] = {}
    for name in names:
        place = folder_of([str(value) for value in values[name]], file.parent) if _is_plain(values[name]) else None
        if place is not None:
            places[name] = place
    image = max(places, key=lambda name: places[name].share, default="")
    if not image:
        raise AttendError(
            f"{file}: none of its columns ({', '.join(map(str, names))}) names pictures in {file.parent}; its first "
            f"row: {_row(records[0])}: put the pictures there, or run `attend init` on the folder that holds both"
        )
    split = next((name for name in names if name != image and _is_split(values[name])), None)
    texts = [name for name in names if name not in (image, split) and _words(values[name]) > 0]
    if not texts:
        raise AttendError(f"{file}: no column of texts beside the pictures' ({image}); there are: {', '.join(names)}")
    caption = min(texts, key=lambda name: (str(name).lower() not in CAPTION_NAMES, -_words(values[name])))
    unread = [name for name in texts if name != caption and _words(values[name]) >= FEWEST_WORDS]
    if unread:
        shown = "; ".join(f"{name} ({str(values[name][0])[:60]!r})" for name in unread)
        log.warning(
            f"{file}: captions are read from its column {caption} ({str(values[caption][0])[:60]!r}), none from "
            f"{shown}: for another, set data.caption_column"
        )
    return _Found(image, caption, split, places[image], names)


def _as_header(found: _Found, records: list[dict[str, Any]], file: Path) -> tuple[str, ...] | None:
    """Return names for the columns of a table of text whose first line is a record too; None for one with a header."""
    if file.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return None
    name, place = str(found.image), found.place
    shapes = [_shape(str(record[name])) for record in records if record.get(name)]
    like_others = any(map(str.isdigit, name)) and shapes.count(_shape(name)) >= _NEARLY_ALL * len(shapes)
    if not like_others and not _is_picture(place.images, f"{name}{place.suffix or ''}"):
        return None
    known = {found.image: "image", found.caption: "caption"} | ({found.split: "split"} if found.split else {})
    return tuple(known.get(column, f"column{number}") for number, column in enumerate(found.names, 1))


def _shape(text: str) -> str:
    """Return a text with each letter as `a` and each digit as 0, by which names of one kind are alike."""
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", text))


def _splits_of(pictures: list[str], columns: list[str], file: Path) -> Options:
    """Return the setting that takes splits from the folders of the pictures' names; none where they say none."""
    splits = [folder_split(name.replace("\\", "/").split("/")[:-1]) for name in pictures]
    if all(splits) and {"train"} < set(splits):
        return {"splits": "folders"}
    named = [column for column in columns if str(column).lower() in _SPLIT_COLUMNS]
    if named:
        log.warning(f"{file}: its column {named[0]} has values that are no splits (train, dev, test): it is not used")
    elif any(splits) and set(splits) - {None} != {"train"}:
        log.warning(
            f"{file}: {sum(split is not None for split in splits):,} of {len(splits):,} names go through folders that "
            "are named as splits: these are not used; data.splits=folders uses them where all do"
        )
    return {}


def _lists_of(cells: list[Any]) -> str | None:
    """Return the setting `lists` for the cells of a caption column; None for one caption in a cell."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return None
    if sum(_is_list(text) for text in texts) >= _NEARLY_ALL * len(texts):
        return "json"
    parts = [part.split() for text in texts if _BETWEEN in text for part in text.split(_BETWEEN)]
    is_between = sum(_BETWEEN in text for text in texts) >= _NEARLY_ALL * len(texts)
    return _BETWEEN if is_between and sum(map(len, parts)) >= FEWEST_WORDS * len(parts) else None


def _is_list(text: str) -> bool:
    if not (text.strip().startswith("[") and text.strip().endswith("]")):
        return False
    try:
        return all(isinstance(item, str) for item in listed_texts(text, "json", ""))
    except AttendError:
        return False


def _texts(cells: list[Any], lists: str | None) -> Iterator[str]:
    for cell in cells:
        if isinstance(cell, str) and lists is not None:
            try:
                yield from map(str, listed_texts(cell, lists, ""))
            except AttendError:
                yield cell
        else:
            yield from map(str, cell if isinstance(cell, list) else [cell])


class Place(NamedTuple):
    """Name the folder of pictures. share: of the names, those that are in it."""

    images: Path
    suffix: str | None
    share: float


def folder_of(names: list[str], folder: Path) -> Place | None:
    """Return the folder, at or below `folder`, in which most of these names are pictures; None where none has any."""
    sample = names[:SAMPLE]
    absolute = [Path(name) for name in names if name.startswith("/")]
    if absolute and any(path.is_file() for path in absolute[:SAMPLE]):
        common = Path(os.path.commonpath([path.parent for path in absolute]))
        return Place(common, None, 1.0)
    best: Place | None = None
    for candidate in itertools.islice(folders(folder), _MOST_FOLDERS):
        for suffix in (None, *PICTURE_SUFFIXES):
            hits = sum(_is_picture(candidate, f"{name}{suffix or ''}") for name in sample)
            if hits and (best is None or hits / len(sample) > best.share):
                best = Place(candidate, suffix, hits / len(sample))
            if hits:
                break
        if best is not None and best.share > 0.99:
            break
    if best is not None:
        _refuse_same_names(sample, best, folder)
    return best


def _refuse_same_names(names: list[str], place: Place, folder: Path) -> None:
    """Raise AttendError where a name is that of two pictures: of one in the place, and of one in another folder."""
    if place.images == folder:
        return
    others = (other for other in itertools.islice(folders(folder), _MOST_FOLDERS) if other != place.images)
    for other in others:
        same = next((name for name in names if _is_picture(other, f"{name}{place.suffix or ''}")), None)
        if same is not None and _is_picture(place.images, f"{same}{place.suffix or ''}"):
            raise AttendError(
                f"{folder}: {same} is in {place.images.relative_to(folder)}/ and in {other.relative_to(folder)}/: name "
                "the pictures with their folder, or give the folder of one of them with data.images"
            )


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


def folders(folder: Path) -> Iterator[Path]:
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


def _row(record: dict[str, Any]) -> str:
    """Return a row in one line, its values shortened."""
    return ", ".join(f"{name}: {str(value)[:40]!r}" for name, value in record.items())
