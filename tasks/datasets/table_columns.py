"""The columns of a table of captions, by what they hold, and the folder of its pictures."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from models.vocabulary import SPACELESS
from tasks.common.errors import AttendError
from tasks.common.wording import shortened
from tasks.datasets.base import (
    PICTURE_SUFFIXES,
    SPLIT_NAMES,
    DatasetOptions,
    folder_split,
    path_folders,
    path_splits,
)
from tasks.datasets.faults import Faults
from tasks.datasets.picture_finder import PictureFinder, is_address
from tasks.datasets.records import columns_of, listed_texts, text_of
from tasks.datasets.table import RecordOptions, only, usual_images

Options = dict[str, Any]  # settings of `data`
FEWEST_WORDS = 3  # of a column's texts, in the mean, that could be captions
# Names of columns of captions, the likelier first.
CAPTION_NAMES = (
    *("caption", "captions", "sentence", "sentences", "description", "raw", "alt", "alt_text", "text", "texts"),
    *("conversations", "messages", "beschriftung", "bildunterschrift", "beschreibung", "l\u00e9gende", "legende"),
    *("descripci\u00f3n", "descripcion", "didascalia", "comment", "title"),
)
IMAGE_NAMES = ("image", "file_name", "filename", "image_name", "image_path", "path", "file", "img", "picture", "photo")
_SPLIT_COLUMNS = ("split", "partition", "subset", "set", "fold", "phase")
SAMPLE = 200  # records that are looked at, from all parts of a table
_MOST_RECORDS = 200_000  # of a table that are read
_BETWEEN = ("||", "###", "|", "\n")  # what some tables have between the captions of a cell
NO_TEXTS = "no column of texts"  # in the message on a table that only names pictures
_NEARLY_ALL = 0.9
_SEVERAL = 5  # texts from which one says what others are like
_SOME = 0.2
_RIVAL = 0.75  # share of the best likeness from which another column may name the pictures
_FEW_WORDS = 1.5  # of texts that are classes
_OF_IMAGES = re.compile("image|img|photo|pic|file|bild|foto|path|jpg|png")
_OF_OTHERS = re.compile("caption|sent|text|ann|row|index|unnamed|thumb|mask|cond|source|target")
_MARKS_SPLIT = re.compile("(is_?)?(train|training|test|val|valid|validation|dev)", re.IGNORECASE)
# Words in the names of columns that say which rows are good, and values that say it.
_VERDICT_NAMES = re.compile(
    "status|state|verdict|reviewe?d?|valid|accepted|approved|rejected|deleted|discard|keep|used?|ok|match|correct|"
    "quality|spam"
)
_VERDICTS = re.compile("accept(ed)?|approved?|reject(ed)?|bad|spam|invalid|deleted")
_LANGUAGES = re.compile(
    "(en|de|fr|es|it|pt|nl|ru|ja|zh|ko|ar|hi|tr|pl|cs|sv|eng|deu|ger|fra|fre|spa|ita|por|nld|rus|jpn|zho|kor)"
    "([_-][a-z]{2,4})?|english|german|deutsch|french|fran\u00e7ais|spanish|espa\u00f1ol|italian|italiano|portuguese|"
    "dutch|russian|japanese|chinese|korean|arabic|hindi|turkish|polish|czech|swedish"
)
_FEW_KINDS = 8  # of the values of a column that says what rows are
_SLASH = re.compile(r"[/\\]")
_SIGNS = re.compile(r"[\d/_.:-]")  # which file names, addresses and dates have
_FILE = re.compile(r"\.(txt|jpe?g|png|json|xml|csv)$", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")


class Columns(NamedTuple):
    """Hold what a sample of a table's records says of it.

    options: the settings of `data` that read it, but for adapter and path. images: the folder of its pictures.
    pictures: the names of those in the sample. columns: the names of all. caption: the column of the captions.
    texts: the captions. share: of the pictures, those that are there. notes: what a person should look at. is_own:
    whether the folder of the pictures is named as the table or its split is. by_number: whether pictures are named by
    numbers. has_splits: whether rows say their split.
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
        """Return the share of captions that are different."""
        return len(set(self.texts)) / max(len(self.texts), 1)


def examine(kind: type[RecordOptions], options: Options, file: Path, finder: PictureFinder) -> Columns:
    """Return what a table holds, and how it is read. Raises AttendError where it has no pictures or no captions.

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
    place = place_of(values, file, finder)
    assert place is not None  # the sample has pictures
    if len(place.unclear) > len(place.found):
        name, meant = next(iter(place.unclear.items()))
        finder.one(name, meant, str(file))
    columns = columns_of(caption)
    cells = [record[own] for record in _sample(records) for own in columns if record.get(own) not in (None, "")]
    settings: Options = {} if header is None else {"columns": header}
    notes = [*found.notes, *_doubts(place, file, finder)]
    by_number = all(name.isdecimal() for name in place.found)
    if by_number and _counts_rows(values):
        name, picture = next(iter(place.found.items()))
        notes.append(
            f"{file}: its column {image} counts rows, and is read as the numbers of pictures: {name} is {picture}"
        )
    if place.is_converted:
        name, picture = next(iter(place.found.items()))
        notes.append(f"{file}: no picture has the ending that its column {image} says: {name} is read as {picture}")
    others = [name for name in names if name not in (image, split, *columns)]
    notes += [f"{file}: {note}" for note in _other_folders(records, image, others, place)]
    settings |= settings_of(kind, image, caption, split)
    if split is None:
        found_splits, more_notes = _splits_of(place, names, file)
        settings |= found_splits
        notes += more_notes
    lists = lists_of(cells)
    settings |= {} if lists is None else {"lists": lists}
    if lists not in (None, "json", "||"):
        notes.append(f"{file}: its cells are divided at {lists!r} into captions: for whole cells, remove data.lists")
    pictures = frozenset(place.base / picture for picture in place.found.values())
    texts = tuple(_texts(cells, lists))
    return Columns(
        settings,
        place.images,
        pictures,
        tuple(names),
        columns[0],
        texts,
        place.share,
        tuple(notes),
        is_own=place.base not in (usual_images(file.parent), finder.folder),
        by_number=by_number,
        has_splits=split is not None,
    )


def settings_of(kind: type[DatasetOptions], image: str, caption: str | tuple[str, ...], split: str | None) -> Options:
    """Return the settings that name these columns, where they are not the adapter's defaults."""
    columns = {"image_column": image, "caption_column": caption, "split_column": split}
    return {
        name: column
        for name, column in columns.items()
        if column is not None and column != kind.model_fields[name].default
    }


def _counts_rows(names: Collection[str]) -> bool:
    """Return whether the names of pictures are 0, 1, 2, ... or 1, 2, 3, ... in this order."""
    return list(names) in [list(map(str, range(first, first + len(names)))) for first in (0, 1)]


class Place(NamedTuple):
    """The pictures that names mean.

    base: the folder that `found` is relative to. found: picture by name. unclear: names that may mean several. total:
    how many names there are. is_converted: whether the pictures have other endings than the names.
    """

    base: Path
    found: dict[str, str]
    unclear: dict[str, list[str]]
    total: int
    is_converted: bool = False

    @property
    def share(self) -> float:
        """Return the share of names that mean a picture."""
        return len(self.found) / max(self.total, 1)

    @property
    def images(self) -> Path:
        """Return the folder that all pictures are in."""
        parents = {picture.rpartition("/")[0] for picture in self.found.values()}
        return self.base if "" in parents or not parents else self.base / os.path.commonpath(parents)


def place_of(names: Collection[str], file: Path, finder: PictureFinder, any_ending: bool = False) -> Place | None:
    """Return the pictures that names mean: in the usual folder of a file's pictures, or anywhere; None without one.

    any_ending: whether their files may have other endings, as they may where no name means a picture otherwise.
    """
    best: Place | None = None
    usual = usual_images(file.parent)
    named = [file.parent / file.stem, usual / file.stem]  # a folder that is named as the file is
    split = folder_split([file.stem])
    if split is not None:
        named += [path for path in usual.iterdir() if path.is_dir() and folder_split([path.name]) == split]
    for base in dict.fromkeys((*named, usual, finder.folder)):
        if not base.is_relative_to(finder.folder) or (base in named and not base.is_dir()):
            continue
        meant = finder.below(base).find(names, any_ending)
        found = {name: pictures[0] for name, pictures in meant.items() if len(pictures) == 1}
        unclear = {name: pictures for name, pictures in meant.items() if len(pictures) > 1}
        if (found or unclear) and (best is None or len(found) > len(best.found)):
            best = Place(base, found, unclear, len(names), any_ending)
    if best is None and any(name.startswith("/") and Path(name).is_file() for name in itertools.islice(names, SAMPLE)):
        folder = Path(os.path.commonpath([Path(name).parent for name in names if name.startswith("/")]))
        outside = PictureFinder.of(folder).find(names)
        found = {name: pictures[0] for name, pictures in outside.items() if len(pictures) == 1}
        return Place(folder, found, {}, len(names)) if found else None
    return place_of(names, file, finder, any_ending=True) if best is None and not any_ending else best


def _other_folders(records: list[dict[str, Any]], image: str, columns: list[str], place: Place) -> Iterator[str]:
    """Yield a note on each column of the pictures' folders, where pictures are found by files' names in others."""
    named = ((str(only(record.get(image))), record) for record in records)
    files = [(name, record) for name, record in named if name in place.found and not _SLASH.search(name)]
    for column in columns:
        rows = [(name, str(record.get(column)).strip("/")) for name, record in files]
        others = [(name, folder) for name, folder in rows if f"/{folder}/" not in f"/{place.found[name]}"]
        if others and len(rows) - len(others) > _SOME * len(rows):
            name, folder = others[0]
            yield (
                f"its column {column} says the folders of pictures and is not used: in {len(others):,} of "
                f"{len(rows):,} rows the picture is in another, such as {place.found[name]} for {folder} and {name}: "
                f"write both into column {image}: {folder}/{name}"
            )


def _doubts(place: Place, file: Path, finder: PictureFinder) -> Iterator[str]:
    """Yield a note on pictures whose folder their names do not say."""
    inner = finder.below(place.base) if place.base.is_relative_to(finder.folder) else PictureFinder(place.base, ())
    doubts = [doubt for name, picture in place.found.items() if (doubt := inner.doubt(name, picture))]
    if doubts:
        yield (
            f"{file}: {len(doubts):,} of {len(place.found):,} names do not say the folder of their picture: "
            f"{doubts[0]}: for another, set data.images or correct the names"
        )


class _Found(NamedTuple):
    image: str
    caption: str | tuple[str, ...]
    split: str | None
    notes: list[str]
    names: list[str]
    place: Place


def _records(options: RecordOptions, file: Path) -> list[dict[str, Any]]:
    faults = Faults(gather=True)
    records = [record for _, record in itertools.islice(options.records_of(file, faults), _MOST_RECORDS)]
    if not records:
        raise AttendError(faults.found[0] if faults.found else f"{file}: has no row")
    return records


def _sample(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records from all parts of a table: its splits may be one after the other."""
    return records[:: max(1, len(records) // SAMPLE)]


def _read_columns(records: list[dict[str, Any]], file: Path, finder: PictureFinder, is_named: bool = True) -> _Found:
    """Return the columns of records by what they hold; AttendError where none names pictures, or none is a text.

    is_named: whether the columns have names of their own.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(records)))
    values = {name: [record.get(name) for record in records if record.get(name) not in (None, "")] for name in names}
    image, place, notes = _image_column(values, records[0], file, finder, is_named)
    splits = [name for name in names if name != image and is_split(name, values[name])]
    splits.sort(key=lambda name: _index(str(name).lower(), _SPLIT_COLUMNS))
    split = splits[0] if splits else None
    if len(splits) > 1:
        notes.append(f"{file}: its columns {' and '.join(splits)} hold splits: {split} is used (data.split_column)")
    rest = {name: values[name] for name in names if name not in (image, *splits)}
    notes += [f"{file}: its {note}" for note in unused_marks(rest, has_split=split is not None)]
    caption, more_notes = caption_column(rest, str(file), image)
    return _Found(image, caption, split, [*notes, *more_notes], names, place)


def _remedy(finder: PictureFinder) -> str:
    """Return what to do about a table that names no picture of a folder."""
    if finder.names:
        return f"pictures there have names such as {min(finder.names)}: correct the names, or the table's delimiter"
    return "put the pictures there, or run `attend init` on the folder that holds both"


def _image_column(
    values: dict[str, list[Any]], first: dict[str, Any], file: Path, finder: PictureFinder, is_named: bool
) -> tuple[str, Place, list[str]]:
    """Return the column that names the pictures, what it names, and a note on others that may.

    values: of each column. first: the first record, for the message of the AttendError where no column names pictures.
    """
    places: dict[str, Place] = {}
    for name, own in values.items():
        alone = [only(value) for value in own]
        is_plain = alone and all(isinstance(value, str | int) for value in alone)
        place = place_of(dict.fromkeys(map(str, alone)), file, finder) if is_plain else None
        if place is not None:
            places[name] = place
    # Files of other endings than the names are meant only where no other column names pictures, or numbers other ones.
    exact = [list(place.found.values()) for place in places.values() if not place.is_converted]
    has_numbers = all(_are_numbers(place) for place in places.values() if not place.is_converted)
    places = {
        name: place
        for name, place in places.items()
        if not place.is_converted or (has_numbers and list(place.found.values()) not in exact)
    }
    if not places:
        raise AttendError(
            f"{file}: none of its columns ({', '.join(map(str, values))}) names pictures in {finder.folder}; its first "
            f"row: {_row(first)}: {_remedy(finder)}"
        )
    most = max(len(place.found) + len(place.unclear) for place in places.values())
    likeness = {name: _likeness(name, place, most, is_named) for name, place in places.items()}
    image = max(likeness, key=lambda name: likeness[name])
    rivals = [
        name
        for name, own in values.items()
        if name != image and own != values[image]
        if likeness.get(name, 0) > _RIVAL * likeness[image] or (_are_numbers(places[image]) and _are_files(own))
    ]
    shown = ", ".join(f"{name} ({values[name][0]})" for name in rivals)
    note = (
        f"{file}: its column {image} ({values[image][0]}) names the pictures; so may {shown}: for another, set "
        "data.image_column"
    )
    return image, places[image], [note] if rivals else []


def _are_numbers(place: Place) -> bool:
    return not any(map(_LETTER.search, (*place.found, *place.unclear)))


def _are_files(values: list[Any]) -> bool:
    """Return whether a column's values are names of picture files, and no addresses."""
    texts = [str(only(value)) for value in values]
    return all(text.lower().endswith(PICTURE_SUFFIXES) and not is_address(text) for text in texts)


def _likeness(name: str, place: Place, most: int, is_named: bool) -> float:
    """Return how likely a column names the pictures: an index may happen to be the names of other pictures.

    most: of the pictures that a column names. is_named: whether the columns have names of their own.
    """
    names = [*place.found, *place.unclear]
    spelled = sum(value.lower().endswith(PICTURE_SUFFIXES) for value in names) / max(len(names), 1)
    own = str(name).lower()
    titled = 0.15 * (own in IMAGE_NAMES) + 0.1 * bool(_OF_IMAGES.search(own)) - 0.15 * bool(_OF_OTHERS.search(own))
    shares = len(names) / place.total * (0.5 + 0.5 * len(names) / most)
    shares *= 1 - 0.4 * sum(map(is_address, names)) / max(len(names), 1)  # a table may have the file's name as well
    return shares * (0.6 + 0.4 * spelled) + (titled if is_named else 0.0)


def _index(item: str, items: tuple[str, ...]) -> int:
    """Return an item's place among items; behind all where it is none of them."""
    return items.index(item) if item in items else len(items)


def unused_marks(values: dict[str, list[Any]], has_split: bool, kind: str = "column") -> Iterator[str]:
    """Yield notes on columns that are not read: splits, languages, verdicts on rows. kind: what messages name them."""
    most = max(map(len, values.values()), default=0)
    for name, own in values.items():
        items = [item for value in own if isinstance(value, list) for item in value if isinstance(item, dict)]
        inner = {f"{name}.{field}": [item[field] for item in items if field in item] for field in (items or [{}])[0]}
        yield from unused_marks(inner, has_split=True, kind="field")
        different = sorted(set(map(str, own)))
        if not has_split and _MARKS_SPLIT.fullmatch(str(name)) and len(different) > 1:
            yield f"{kind} {name} looks like a split and is not used: write the split's name into a column `split`"
        elif str(name).lower() in ("lang", "language", "locale") and len(different) > 1:
            shown = ", ".join(different[:5])
            yield f"{kind} {name} says that captions are in several languages ({shown}): all are read together"
        elif not has_split and _are_splits(own):
            yield f"{kind} {name} has only {own[0]!r}, which is not read as a split: if it is, set data.split_column"
        elif "deleted" in str(name).lower() and 0 < len(own) < most:
            share = f"{len(own) / most:.0%} of the rows"
            yield f"{kind} {name} is filled in {share} and not used: remove the rows that are not to be trained on"
        else:
            yield from _unused_kinds(str(name), own, has_split, kind)


def _unused_kinds(name: str, values: list[Any], has_split: bool, kind: str) -> Iterator[str]:
    """Yield a note on a column that says of what kind rows are, which is not read. values: those that are not blank."""
    kinds = Counter(str(value).strip() for value in values)
    if not 1 < len(kinds) <= _FEW_KINDS:
        return
    shares = ", ".join(f"{kind} {number / kinds.total():.0%}" for kind, number in kinds.most_common())
    folded = {kind.lower() for kind in kinds}
    words = set(re.findall("[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))
    if any(map(_VERDICT_NAMES.fullmatch, words)) or any(map(_VERDICTS.fullmatch, folded)):
        yield f"{kind} {name} ({shares}) is not used: remove the rows that are not to be trained on"
    elif folded & {"caption", "captions", "description"}:
        yield f"{kind} {name} ({shares}) is not used: remove the rows that are no captions"
    elif all(map(_LANGUAGES.fullmatch, folded)):
        yield f"{kind} {name} says that captions are in several languages ({shares}): all are read together"
    elif not has_split and folded & SPLIT_NAMES.keys():
        yield f"{kind} {name} ({shares}) looks like a split and is not used: its values are to be train, dev and test"


def caption_column(
    values: dict[str, list[Any]], where: str, image: str, kind: str = "column"
) -> tuple[str | tuple[str, ...], list[str]]:
    """Return the column of the captions, and a note on the others that could be. values: of each, without blanks.

    Columns that are numbered, such as caption_1 and caption_2, are returned together. Raises AttendError where no
    column has texts. image: the column of the pictures, and kind: what a column is named, for messages.
    """
    words = {name: _words(own) for name, own in values.items()}
    texts = [name for name in values if words[name] > 0]
    if not texts:
        there = f"; there are: {', '.join(values)}" if values else ""
        raise AttendError(f"{where}: {NO_TEXTS} but the pictures' ({image}){there}")

    def rank(name: str) -> tuple[bool, bool, bool, int, float]:
        known = _index(str(name).lower(), CAPTION_NAMES)
        is_class = words[name] < _FEW_WORDS and max(words.values()) >= FEWEST_WORDS
        is_odd = _are_questions(values[name]) or _are_objects(values[name]) or _are_the_same(values[name])
        return is_odd or _are_marks(values[name]), is_odd, is_class, known, -words[name]

    caption = min(texts, key=rank)
    if _are_marks(values[caption]) or (words[caption] >= _FEW_WORDS and _are_the_same(values[caption])):
        shown = shortened(str(values[caption][0]), 60)
        raise AttendError(f"{where}: {NO_TEXTS} that could be captions; of {caption}, the likeliest, one is {shown!r}")
    stem = _unnumbered(caption)
    are_captions = any(name in stem.lower() for name in CAPTION_NAMES)
    numbered = [name for name in texts if _unnumbered(name) == stem and words[name] >= FEWEST_WORDS and are_captions]
    is_known = str(caption).lower() in CAPTION_NAMES
    others = [name for name in texts if name != caption and words[name] >= (FEWEST_WORDS if is_known else 1)]
    others = [name for name in others if not _are_codes(values[name]) and not (len(numbered) > 1 and name in numbered)]
    found = tuple(numbered) if len(numbered) > 1 else caption
    odd = _odd_cells(values[caption])
    shown = "; ".join(f"{name} ({str(values[name][0])[:60]!r})" for name in others)
    none = f", none from {shown}" if others else ""
    note = (
        f"{where}: captions are read from its {kind} {', '.join(columns_of(found))} "
        f"({str(values[caption][0])[:60]!r}){odd}{none}: for another, set data.caption_{kind}"
    )
    return found, [note] if others or odd else []


def _unnumbered(name: str) -> str:
    """Return a column's name without its number; the name as it is where it has none."""
    return re.sub(r"[ _.-]?\d+$", "#", str(name))


def _odd_cells(values: list[Any]) -> str:
    """Return what is odd about cells of captions, as part of a note: questions, words, or several texts in one."""
    texts = [text for text in values if isinstance(text, str)]
    items = [item for value in values if isinstance(value, list) and len(value) > 2 for item in value]
    if _are_questions(values):
        return ", which are questions"
    if items and sum(" " not in str(item).strip() for item in items) >= _NEARLY_ALL * len(items):
        return ", which are lists of single words"
    if sum(text.strip().startswith("{") and text.strip().endswith("}") for text in texts) > _SOME * len(values):
        return "; some are in braces, and read as they are"
    parts = [part.split() for text in texts for part in text.split(";")]
    if len(parts) > 1.9 * len(texts) and sum(len(part) > FEWEST_WORDS for part in parts) >= _NEARLY_ALL * len(parts):
        return ", which may be several with semicolons between them (data.lists)"
    return ""


def _are_questions(values: list[Any]) -> bool:
    texts = [text for text in values if isinstance(text, str)]
    return bool(texts) and sum(text.rstrip().endswith("?") for text in texts) >= _NEARLY_ALL * len(texts)


def _are_objects(values: list[Any]) -> bool:
    return sum(str(value).startswith("{") for value in values) >= _NEARLY_ALL * len(values)


def _are_the_same(values: list[Any]) -> bool:
    return len(values) >= _SEVERAL and len(set(map(str, values))) == 1


def _are_codes(values: list[Any]) -> bool:
    """Return whether a column's texts are no language: file names, addresses, dates, or a few classes."""
    texts = [str(text) for text in values]
    has_signs = any(map(_SIGNS.search, texts[:_SEVERAL]))
    return _are_marks(values) or (_are_single(texts) and (has_signs or len(set(texts)) <= max(3, len(texts) // 4)))


def _are_marks(values: list[Any]) -> bool:
    """Return whether a column's texts are file names, addresses, dates or numbers."""
    texts = [str(text).strip() for text in values]
    if sum(_FILE.search(text) is not None for text in texts) >= _NEARLY_ALL * len(texts):
        return True
    return _are_single(texts) and all(map(_SIGNS.search, texts[:_SEVERAL]))


def _are_single(texts: list[str]) -> bool:
    return sum(" " not in text.strip() for text in texts) >= _NEARLY_ALL * len(texts)


def _as_header(
    found: _Found, records: list[dict[str, Any]], file: Path, finder: PictureFinder
) -> tuple[str, ...] | None:
    """Return names for the columns of a table of text whose first line is a record too; None for one with a header."""
    if file.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return None
    name = str(found.image)
    if name.lower() in IMAGE_NAMES and any(str(column).lower() in CAPTION_NAMES for column in found.names):
        return None
    shapes = [_shape(str(record[name])) for record in records if record.get(name)]
    like_others = any(map(str.isdigit, name)) and shapes.count(_shape(name)) >= _NEARLY_ALL * len(shapes)
    if not like_others and not finder.below(found.place.base).find([name])[name]:
        return None
    known = {found.image: "image", found.caption: "caption"} | ({found.split: "split"} if found.split else {})
    return tuple(known.get(column, f"column{number}") for number, column in enumerate(found.names, 1))


def _shape(text: str) -> str:
    """Return a text with each letter as `a` and each digit as 0, by which names of one kind are alike."""
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", text))


def _splits_of(place: Place, columns: list[str], file: Path) -> tuple[Options, list[str]]:
    """Return the setting that takes splits from the folders of the pictures, and a note on splits that are not used."""
    splits = path_splits([path_folders(name, picture) for name, picture in place.found.items()])
    if all(splits) and len(set(splits)) > 1 and "train" in splits:
        return {"splits": "folders"}, []
    named = [column for column in columns if str(column).lower() in _SPLIT_COLUMNS]
    if named:
        note = f"{file}: its column {named[0]} has values that are no splits (train, dev, test): it is not used"
        return {"split_column": None} if "split" in columns else {}, [note]
    if any(splits) and set(splits) != {"train"} and set(splits) - {None} != {"train"}:
        number = sum(split is not None for split in splits)
        note = (
            f"{file}: {number:,} of {len(splits):,} pictures are in folders that are named as splits, and the pictures "
            "of train are not: these splits are not used"
        )
        return {}, [note]
    return {}, []


def lists_of(cells: list[Any]) -> str | None:
    """Return the setting `lists` for the cells of a caption column; None for one caption in a cell."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return None
    if sum(map(_is_list, texts)) > _SOME * len(texts):
        return "json"
    for sign in _BETWEEN:
        has_it = [text for text in texts if sign in text]
        parts = [part.split() for text in has_it for part in text.split(sign)]
        enough = _SOME if sign == _BETWEEN[0] else _NEARLY_ALL
        if len(has_it) > enough * len(texts) and sum(map(len, parts)) >= FEWEST_WORDS * len(parts):
            return sign
    return None


def _is_list(text: str) -> bool:
    if not (text.strip().startswith("[") and text.strip().endswith("]")):
        return False
    try:
        return all(isinstance(text_of(item), str) for item in listed_texts(text, "json", ""))
    except AttendError:
        return False


def _texts(cells: list[Any], lists: str | None) -> Iterator[str]:
    for cell in cells:
        if isinstance(cell, str) and lists is not None:
            try:
                yield from (str(text_of(item)) for item in listed_texts(cell, lists, ""))
            except AttendError:
                yield cell
        else:
            yield from (str(text_of(item)) for item in (cell if isinstance(cell, list) else [cell]))


def is_split(name: str, values: list[Any]) -> bool:
    """Return whether all values of a column are names of splits; a single one may be a class, such as trains."""
    is_named = not {*_SPLIT_COLUMNS, *SPLIT_NAMES}.isdisjoint(re.findall("[a-z]+", str(name).lower()))
    return _are_splits(values) and (is_named or len(set(values)) > 1)


def _are_splits(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) and value.strip().lower() in SPLIT_NAMES for value in values)


def _words(values: list[Any]) -> float:
    """Return the mean number of words of a column's texts; 0 where it holds none."""
    items = [text_of(item) for value in values for item in (value if isinstance(value, list) else [value])]
    texts = [item for item in items if isinstance(item, str)]
    if not texts or len(texts) < _NEARLY_ALL * sum(item is not None for item in items):
        return 0.0
    if not any(map(_LETTER.search, texts)):
        return 0.0
    return sum(map(word_count, texts)) / len(texts)


def word_count(text: str) -> int:
    """Return about how many words a text has; of scripts without spaces between words, half its characters."""
    return len(text.split()) + len(SPACELESS.findall(text)) // 2


def _row(record: dict[str, Any]) -> str:
    """Return a row in one line, its values shortened."""
    return ", ".join(f"{name}: {str(value)[:40]!r}" for name, value in record.items())
