"""Finding the columns of a table of captions by their values, and the folder of its pictures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from tasks.common.errors import AttendError
from tasks.common.wording import listed, shortened
from tasks.datasets.base import PICTURE_SUFFIXES, DatasetOptions, path_folders, path_splits
from tasks.datasets.caption_columns import (
    CAPTION_NAMES,
    LETTER,
    SPLIT_COLUMNS,
    caption_column,
    index_in,
    is_split,
    kinds_within,
    lists_of,
    note_on_objects,
    texts_in,
    unnumbered,
    unused_marks,
    word_count,
)
from tasks.datasets.faults import Faults
from tasks.datasets.named_pictures import Matches, doubts, match_names, other_folders
from tasks.datasets.picture_finder import PictureFinder, is_address
from tasks.datasets.records import ASKED, TEXT_TABLES, columns_of
from tasks.datasets.table import RecordOptions, only, usual_images

Options = dict[str, Any]  # settings of `data`
IMAGE_NAMES = ("image", "file_name", "filename", "image_name", "image_path", "path", "file", "img", "picture", "photo")
SAMPLE = 200  # records examined, from all parts of a table
_MOST_RECORDS = 200_000  # read of a table
_NEARLY_ALL, _HALF = 0.9, 0.5
_MANY = 20  # the fewest questions that show whether most are different
_RIVAL = 0.75  # share of the best likelihood from which another column may name the pictures
_OF_IMAGES = re.compile("image|img|photo|pic|file|bild|foto|path|jpg|png")
_OF_OTHERS = re.compile("caption|sent|text|ann|row|index|unnamed|thumb|mask|cond|source|target")


class Columns(NamedTuple):
    """The properties of a table, found from a sample of its records.

    options: the settings of `data` that read it, except adapter and path. images: the folder of its pictures. pictures:
    the paths of the pictures found. columns: the names of all columns. caption: the column of the captions. texts: the
    captions in the sample. share: of the pictures that exist. notes: what a person should check. is_own: whether the
    folder of the pictures is named after the table or its split. by_number: whether pictures are named by numbers.
    has_splits: whether rows have a split.
    """

    options: Options
    images: Path
    pictures: frozenset[Path]
    columns: tuple[str, ...]
    caption: str
    texts: tuple[str, ...]
    share: float
    notes: tuple[str, ...] = ()
    is_own: bool = False
    by_number: bool = False
    has_splits: bool = False

    @property
    def words(self) -> float:
        """Return the mean number of words of a caption."""
        return sum(map(word_count, self.texts)) / max(len(self.texts), 1)

    @property
    def variety(self) -> float:
        """Return the share of distinct captions."""
        return len(set(self.texts)) / max(len(self.texts), 1)


def examine(kind: type[RecordOptions], options: Options, file: Path, finder: PictureFinder) -> Columns:
    """Return what a table holds, and how it is read. Raises AttendError if it has no pictures or no captions.

    kind: the adapter. options: adapter, path, encoding and delimiter. finder: of the pictures.
    """
    records = _records(kind(**options), file)
    found = _read_columns(_sample(records), file, finder)
    header = _as_header(found, _sample(records), file, finder)
    if header is not None:
        options = {**options, "columns": header}
        records = _records(kind(**options), file)
        found = _read_columns(_sample(records), file, finder, is_named=False)
    image, caption, split, names = found.image, found.caption, found.split, found.names
    if any(str(name).lower().endswith(PICTURE_SUFFIXES) for name in names):
        raise AttendError(f"{file}:1: names a picture: put a line with the columns' names first: image,caption")
    values = dict.fromkeys(str(only(record[image])) for record in records if record.get(image) not in (None, ""))
    matched = match_names(values, file, finder)
    assert matched is not None  # the sample has pictures
    if len(matched.unclear) > len(matched.found):
        name, meant = next(iter(matched.unclear.items()))
        finder.one(name, meant, str(file))
    columns = columns_of(caption)
    cells = [record[own] for record in _sample(records) for own in columns if record.get(own) not in (None, "")]
    settings: Options = {} if header is None else {"columns": header}
    notes = [*found.notes, *doubts(matched, file, finder)]
    others = [name for name in names if name not in (image, split, ASKED, *columns)]
    unmentioned = [name for name in others if not any(f" column {name} " in note for note in notes)]
    notes += [f"{file}: its {note}" for note in kinds_within(records, image, unmentioned)]
    by_number = all(name.isdecimal() for name in matched.found)
    if by_number and _counts_rows(values):
        _refuse_names(records, image, others, matched, file, finder)
        name, picture = next(iter(matched.found.items()))
        notes.append(
            f"{file}: its column {image} counts rows, and is read as the numbers of pictures: {name} is {picture}"
        )
    if matched.is_converted:
        name, picture = next(iter(matched.found.items()))
        notes.append(f"{file}: no picture has the ending that its column {image} says: {name} is read as {picture}")
    notes += [f"{file}: {note}" for note in other_folders(records, image, others, matched)]
    settings |= settings_of(kind, image, caption, split)
    if split is None:
        found_splits, more_notes = _splits_of(matched, names, file, notes)
        settings |= found_splits
        notes += more_notes
    lists = lists_of(cells)
    settings |= {} if lists is None else {"lists": lists}
    if lists not in (None, "json", "||"):
        notes.append(f"{file}: its cells are divided at {lists!r} into captions: for whole cells, remove data.lists")
    pictures = frozenset(matched.base / picture for picture in matched.found.values())
    texts = tuple(texts_in(cells, lists))
    return Columns(
        settings,
        matched.images,
        pictures,
        tuple(names),
        columns[0],
        texts,
        matched.share,
        tuple(notes),
        is_own=matched.base not in (usual_images(file.parent), finder.folder),
        by_number=by_number,
        has_splits=split is not None,
    )


def settings_of(kind: type[DatasetOptions], image: str, caption: str | tuple[str, ...], split: str | None) -> Options:
    """Return the settings that name these columns, without the adapter's defaults."""
    columns = {"image_column": image, "caption_column": caption, "split_column": split}
    return {
        name: column
        for name, column in columns.items()
        if column is not None and column != kind.model_fields[name].default
    }


def _counts_rows(names: Collection[str]) -> bool:
    """Return whether the names of pictures are 0, 1, 2, ... or 1, 2, 3, ... in this order."""
    return list(names) in [list(map(str, range(first, first + len(names)))) for first in (0, 1)]


def _refuse_names(
    records: list[dict[str, Any]], image: str, others: list[str], matched: Matches, file: Path, finder: PictureFinder
) -> None:
    """Raise AttendError where rows are counted, and another column has names of files that no picture has."""
    for name in others:
        texts = [only(record[name]) for record in records if record.get(name) not in (None, "")]
        files = dict.fromkeys(map(str, texts))
        is_most = len(files) > _NEARLY_ALL * len(matched.found)
        if is_most and _are_files(texts) and match_names(files, file, finder) is None:
            raise AttendError(
                f"{file}: its column {name} names pictures that are not in {finder.folder} ({texts[0]}), and its "
                f"column {image}, which counts rows, names others ({next(iter(matched.found.values()))}): correct the "
                f"names, or remove {name} if the numbers are right"
            )


class _FoundColumns(NamedTuple):
    image: str
    caption: str | tuple[str, ...]
    split: str | None
    notes: list[str]
    names: list[str]
    matches: Matches


def _records(options: RecordOptions, file: Path) -> list[dict[str, Any]]:
    faults = Faults(gather=True)
    records = [record for _, record in itertools.islice(options.records_of(file, faults), _MOST_RECORDS)]
    if not records:
        raise AttendError(faults.found[0] if faults.found else f"{file}: has no row")
    return records


def _sample(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records from all parts of a table, because its splits may follow each other."""
    return records[:: max(1, len(records) // SAMPLE)]


def _read_columns(
    records: list[dict[str, Any]], file: Path, finder: PictureFinder, is_named: bool = True
) -> _FoundColumns:
    """Return the columns of records by their values; AttendError if none names pictures, or none has texts.

    is_named: whether the columns have real names.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(records)))
    values = {name: [record.get(name) for record in records if record.get(name) not in (None, "")] for name in names}
    image, matched, notes = _image_column(values, records[0], file, finder, is_named)
    splits = [name for name in names if name != image and is_split(name, values[name])]
    splits.sort(key=lambda name: index_in(str(name).lower(), SPLIT_COLUMNS))
    split = splits[0] if splits else None
    if len(splits) > 1:
        notes.append(f"{file}: its columns {' and '.join(splits)} hold splits: {split} is used (data.split_column)")
    rest = {name: values[name] for name in names if name not in (image, *splits, ASKED)}
    notes += [f"{file}: its {note}" for note in unused_marks(rest, has_split=split is not None)]
    caption, more_notes = caption_column(rest, str(file), image)
    asked = values.get(ASKED, [])
    if len(asked) >= _MANY and len(set(map(str, asked))) > _HALF * len(asked):
        notes.append(
            f"{file}: its captions are first answers in conversations, most to different questions, such as "
            f"{shortened(str(asked[0]), 60)!r}: remove those that do not describe the picture"
        )
    further = [name for name in rest if name not in columns_of(caption) and _are_files(values[name])]
    # The first of numbered columns may have no number: image, image2.
    further = [name for name in further if unnumbered(name) == unnumbered(image)]
    if further and not isinstance(caption, str):
        raise AttendError(
            f"{file}: its columns {listed([image, *further])} name pictures, and {listed(caption)} hold captions: "
            "write a row for each picture"
        )
    return _FoundColumns(image, caption, split, [*notes, *more_notes], names, matched)


def _remedy(file: Path, finder: PictureFinder) -> str:
    """Return what to do about a table that names no picture of a folder."""
    if finder.names:
        is_text = file.suffix.lower() in TEXT_TABLES
        also = " or the table's delimiter, or remove lines before the columns' names" if is_text else ""
        return f"pictures there have names such as {min(finder.names)}: correct the names{also}"
    return "put the pictures there, or run `attend init` on the folder that holds both"


def _image_column(
    values: dict[str, list[Any]], first: dict[str, Any], file: Path, finder: PictureFinder, is_named: bool
) -> tuple[str, Matches, list[str]]:
    """Return the column that names the pictures, the pictures, and a note on other columns that may name them.

    values: of each column. first: the first record, for the message of the AttendError if no column names pictures.
    """
    matches: dict[str, Matches] = {}
    for name, own in values.items():
        alone = [only(value) for value in own]
        is_plain = alone and all(isinstance(value, str | int) for value in alone)
        matched = match_names(dict.fromkeys(map(str, alone)), file, finder) if is_plain else None
        if matched is not None:
            matches[name] = matched
    # Pictures of other suffixes count only if no column names pictures exactly, or only as numbers of other pictures.
    exact = [list(matched.found.values()) for matched in matches.values() if not matched.is_converted]
    has_numbers = all(_are_numbers(matched) for matched in matches.values() if not matched.is_converted)
    matches = {
        name: matched
        for name, matched in matches.items()
        if not matched.is_converted or (has_numbers and list(matched.found.values()) not in exact)
    }
    several = {name: next(filter(_are_several, own), None) for name, own in values.items()} if not matches else {}
    for name, value in several.items():
        if value is not None:
            raise AttendError(
                f"{file}: its column {name} names several pictures in one row ({str(value)[:80]}): write a row for "
                "each picture"
            )
    if not matches:
        remedy = note_on_objects(values) or f": {_remedy(file, finder)}"
        raise AttendError(
            f"{file}: none of its columns ({shortened(', '.join(map(str, values)), 200)}) names pictures in "
            f"{finder.folder}; its first row: {shortened(_row(first), 400)}{remedy}"
        )
    most = max(len(matched.found) + len(matched.unclear) for matched in matches.values())
    likeness = {name: _likeness(name, matched, most, is_named) for name, matched in matches.items()}
    image = max(likeness, key=lambda name: likeness[name])
    rivals = [
        name
        for name, own in values.items()
        if name != image and own != values[image]
        if likeness.get(name, -1.0) > _RIVAL * likeness[image] or (_are_numbers(matches[image]) and _are_files(own))
    ]
    shown = ", ".join(f"{name} ({values[name][0]})" for name in rivals)
    note = (
        f"{file}: its column {image} ({values[image][0]}) names the pictures; so may {shown}: for another, set "
        "data.image_column"
    )
    return image, matches[image], [note] if rivals else []


def _are_numbers(matched: Matches) -> bool:
    return not any(map(LETTER.search, (*matched.found, *matched.unclear)))


def _are_several(value: object) -> bool:
    """Return whether a cell has the names or addresses of several pictures."""
    parts = value if isinstance(value, list) else re.split(r"[,;|]|\s(?=https?:)", str(value))
    names = [text for part in parts if (text := str(part).strip())]
    return len(names) > 1 and all(name.lower().endswith(PICTURE_SUFFIXES) for name in names)


def _are_files(values: list[Any]) -> bool:
    """Return whether a column's values are names of picture files, and not web addresses."""
    texts = [str(only(value)) for value in values]
    return bool(texts) and all(text.lower().endswith(PICTURE_SUFFIXES) and not is_address(text) for text in texts)


def _likeness(name: str, matched: Matches, most: int, is_named: bool) -> float:
    """Return how likely a column names the pictures; an index may match the names of other pictures by chance.

    most: the most pictures that any column names. is_named: whether the columns have real names.
    """
    names = [*matched.found, *matched.unclear]
    spelled = sum(value.lower().endswith(PICTURE_SUFFIXES) for value in names) / max(len(names), 1)
    text = str(name).lower()
    titled = 0.15 * (text in IMAGE_NAMES) + 0.1 * bool(_OF_IMAGES.search(text)) - 0.15 * bool(_OF_OTHERS.search(text))
    shares = len(names) / matched.total * (0.5 + 0.5 * len(names) / most)
    shares *= 1 - 0.4 * sum(map(is_address, names)) / max(len(names), 1)  # prefer a column of file names
    numbers = 0.05 * (not any(map(LETTER.search, names)))  # an index may count the rows
    return shares * (0.6 + 0.4 * spelled) - numbers + (titled if is_named else 0.0)


def _as_header(
    found: _FoundColumns, records: list[dict[str, Any]], file: Path, finder: PictureFinder
) -> tuple[str, ...] | None:
    """Return names for the columns of a table of text whose first line is a record; None if it is a header."""
    if file.suffix.lower() not in TEXT_TABLES:
        return None
    name = str(found.image)
    if name.lower() in IMAGE_NAMES and any(str(column).lower() in CAPTION_NAMES for column in found.names):
        return None
    shapes = [_shape(str(record[name])) for record in records if record.get(name)]
    like_others = any(map(str.isdigit, name)) and shapes.count(_shape(name)) >= _NEARLY_ALL * len(shapes)
    if not like_others and not finder.below(found.matches.base).find([name])[name]:
        return None
    meanings = {found.image: "image", found.caption: "caption"} | ({found.split: "split"} if found.split else {})
    return tuple(meanings.get(column, f"column{number}") for number, column in enumerate(found.names, 1))


def _shape(text: str) -> str:
    """Return a text with each letter as `a` and each digit as 0, so that names of one kind become equal."""
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", text))


def _splits_of(matched: Matches, columns: list[str], file: Path, notes: list[str]) -> tuple[Options, list[str]]:
    """Return the setting that reads splits from the pictures' folders, and a note on splits that are not used.

    notes: those on the table; a column that one of them begins with is not noted again.
    """
    splits = path_splits([path_folders(name, picture) for name, picture in matched.found.items()])
    if all(splits) and len(set(splits)) > 1 and "train" in splits:
        return {"splits": "folders"}, []
    named = [column for column in columns if str(column).lower() in SPLIT_COLUMNS]
    if named:
        column = f"{file}: its column {named[0]} "
        note = f"{column}has values that are no splits (train, dev, test): it is not used"
        is_noted = any(own.startswith(column) for own in notes)
        return {"split_column": None} if "split" in columns else {}, [] if is_noted else [note]
    if len(set(splits)) > 1 and set(splits) - {None} != {"train"}:
        number = sum(split is not None for split in splits)
        note = (
            f"{file}: {number:,} of {len(splits):,} pictures are in folders that are named as splits, and the pictures "
            "of train are not: these splits are not used"
        )
        return {}, [note]
    return {}, []


def _row(record: dict[str, Any]) -> str:
    """Return a row in one line, its values shortened."""
    return ", ".join(f"{name}: {str(value)[:40]!r}" for name, value in record.items())
