"""The ways to read the files of a folder as captions of its pictures, each with a sample of the captions read.

A way is a table, a document, a folder's metadata, texts of one picture each, tar files or Parquet files with pictures.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from models.vocabulary import SPACELESS
from tasks.common.errors import AttendError
from tasks.common.log import unlogged
from tasks.common.wording import counted, listed, shortened
from tasks.datasets import ADAPTERS
from tasks.datasets.base import SPLIT_NAMES, folder_split, path_splits, shown_files
from tasks.datasets.caption_columns import (
    CAPTION_NAMES,
    FEWEST_WORDS,
    caption_column,
    is_numbers,
    is_split,
    lists_of,
    texts_in,
    unused_marks,
    word_count,
)
from tasks.datasets.coco import Coco
from tasks.datasets.documents import parse_json_or_lines, read_json
from tasks.datasets.faults import Faults
from tasks.datasets.huggingface import HuggingFace, batches, holds_pictures, table_files
from tasks.datasets.image_folder import ImageFolder, metadata_files
from tasks.datasets.odd_texts import odd_beginnings, odd_texts
from tasks.datasets.picture_finder import PictureFinder
from tasks.datasets.records import columns_of
from tasks.datasets.table import RecordOptions, Table, is_table, split_tables, usual_images
from tasks.datasets.table_columns import SAMPLE, Columns, Options, examine, settings_of
from tasks.datasets.text_forms import encoding_of, note_on_encoding, text_forms
from tasks.datasets.texts import TEXT_SUFFIXES, TextFile, captions_of, is_unicode, lines_of, read_text, texts_of
from tasks.datasets.webdataset import TEXTS, json_fields, picture_suffixes, samples, tar_files, tar_split

_NO_CAPTIONS = ("readme", "license", "licence", "requirements")  # names of files that are not searched for captions
_NEARLY_ALL, _HALF, _SOME = 0.9, 0.5, 0.1
_SEVERAL = 5  # the fewest texts that may be generalised from
_SHOWN = 5  # folders named in a note
_OF_A_MODEL = {"log_probability", "confidence", "digest"}  # columns of the files that `attend caption` writes
_WORDS = 8  # of a text: further words do not make it likelier to be a caption


@dataclass(frozen=True)
class Reading:
    """A way to read captions.

    file: the file that names it. options: its settings of `data`. found: a sample of what they read. read: all files.
    """

    file: Path
    options: Options
    found: Columns
    read: tuple[Path, ...]

    @property
    def score(self) -> float:
        """Return how much this looks like captions: varied texts of several words, for most of its pictures."""
        named = 1.3 if str(self.found.caption).lower() in CAPTION_NAMES else 1.0
        titled = 1.2 if re.search("caption|metadata", self.file.stem.lower()) else 1.0
        written = 0.5 if self._is_of_a_model else 1.0
        words = min(self.found.words, _WORDS) / _WORDS
        return self.found.share * words * (0.5 + 0.5 * self.found.variety) * named * titled * written

    @property
    def _is_of_a_model(self) -> bool:
        return set(self.found.columns) >= _OF_A_MODEL

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes that `attend init` prints."""
        texts = self.found.texts
        odd = list(odd_texts(texts))
        if self._is_of_a_model:
            odd.append("was written by `attend caption`: use it only if people have corrected its captions")
        if self.options["adapter"] != "texts":  # their lines were examined before
            odd += odd_beginnings(texts, len(texts))
        return (*self.found.notes, *(f"{self.file}: {note}" for note in odd))

    def has_form_of(self, other: Reading) -> bool:
        """Return whether both are parts of one data set: of one form or named after splits, with different pictures."""
        same = self.found.columns == other.found.columns and self.file.suffix == other.file.suffix
        splits = folder_split([self.file.stem]), folder_split([other.file.stem])
        are_splits = None not in splits and splits[0] != splits[1]
        return (same or are_splits) and not self.found.pictures & other.found.pictures

    def __str__(self) -> str:
        words = "one word" if self.found.words < 1.5 else f"{self.found.words:.0f} words"
        return f"{counted(len(self.found.pictures), 'picture')}, {words} each"


class Folder:
    """A folder of captions, whose pictures are looked up once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.finder = PictureFinder.of(path)
        self.texts = {suffix: texts_of(path, suffix, self.finder) for suffix in TEXT_SUFFIXES}

    def candidates(self) -> tuple[list[Reading], dict[Path, str]]:
        """Return all ways to read captions, and why each of the other files cannot be read.

        Tables and documents are searched for in the folder itself, in annotations/, in folders of splits and in folders
        without pictures.
        """
        candidates: list[Reading] = []
        errors: dict[Path, str] = {}
        for suffix in TEXT_SUFFIXES:
            found_texts, own_errors = self._of_texts(suffix)
            candidates += found_texts
            errors |= own_errors
        for read in (self._metadata, self._coco, self._split_tables, self._tars, self._hub):
            try:
                result = read()
            except AttendError as error:
                errors[self.path / str(error).partition(":")[0]] = str(error)
                continue
            if result is not None:
                candidates.append(result)
        read_files = {file for item in candidates for file in item.read}
        for path in self._tables():
            if path not in read_files:
                try:
                    candidates.append(self.of_file(path))
                except AttendError as error:
                    errors[path] = str(error)
        if not candidates:
            candidates, _ = self._of_texts(".json", are_guessed=True)
        return candidates, errors

    def of_file(self, path: Path) -> Reading:
        """Return how a table or a document is read; AttendError if it holds no captions of pictures."""
        if path.suffix.lower() == ".parquet" and picture_column(path):
            return of_rows(path, path)
        document = self._document(path) if path.suffix.lower() == ".json" else None
        return document if document is not None else self._examined(Table, path, path)

    def of_text(self, path: Path) -> Reading | None:
        """Return how texts of one picture each are read if this file is one of them; else None."""
        for suffix in TEXT_SUFFIXES:
            readings, errors = self._of_texts(suffix, are_guessed=True)
            if path in errors:
                raise AttendError(errors[path])
            for candidate in readings:
                if path in candidate.read:
                    return candidate
        return None

    def of_metadata(self, path: Path) -> Reading:
        """Return how a metadata file is read, with its folder."""
        return self._examined(ImageFolder, path.parent, path)

    def _tables(self) -> Iterator[Path]:
        """Yield the tables and documents, except those named after a picture."""
        texts = {item.text for items in self.texts.values() for item in items if item.pictures}
        for folder in (self.path, *self._inner_folders()):
            for path in sorted(folder.iterdir()):
                is_shown = path.is_file() and not path.name.startswith(".") and is_table(path)
                if is_shown and path not in texts and path.stem.lower() not in _NO_CAPTIONS:
                    yield path

    def _inner_folders(self) -> list[Path]:
        """Return the folders at any depth that may have captions: annotations/, splits, and those without pictures."""
        with_pictures = {parent for name in self.finder.names for parent in PurePosixPath(name).parents}
        inner = []
        for path, _ in shown_files(self.path):
            parts = path.relative_to(self.path).parts
            is_named = parts and ("annotations" in parts[-1].lower() or folder_split(parts) is not None)
            if is_named or (parts and PurePosixPath(*parts) not in with_pictures):
                inner.append(path)
        return inner

    def _metadata(self) -> Reading | None:
        files = metadata_files(self.path)
        return replace(self._examined(ImageFolder, self.path, files[0]), read=tuple(files)) if files else None

    def _split_tables(self) -> Reading | None:
        files = split_tables(self.path)
        if len(files) < 2:  # a single train.csv need not be divided
            return None
        tables = [self.of_file(path) for path in files]
        if any(item.options["adapter"] != "table" for item in tables):
            return None
        common = [{**item.options, "path": self.path} for item in tables]
        if any(options != common[0] for options in common):  # with other columns or folders, they are separate sources
            return None
        return Reading(files[0], common[0], _together([item.found for item in tables]), tuple(files))

    def _coco(self) -> Reading | None:
        try:
            files = Coco(path=self.path).annotation_files()
        except AttendError:
            return None
        options: Options = {"adapter": "coco", "path": self.path}
        has_splits = len({folder_split([file.stem]) for file in files}) > 1
        return Reading(files[0], options, self._read(options)._replace(has_splits=has_splits), tuple(files))

    def _document(self, path: Path) -> Reading | None:
        """Return how a JSON document in COCO's or Karpathy's form is read; None for others, which may be tables."""
        document = parse_json_or_lines(path)
        if not isinstance(document, dict) or not isinstance(document.get("images"), list):
            return None
        images = [image for image in document["images"] if isinstance(image, dict)]
        if any(name in image for image in images[:SAMPLE] for name in CAPTION_NAMES if name != "sentences"):
            return None
        if "annotations" not in document and not any("sentences" in image for image in images):
            raise AttendError(f"{path}: lists {counted(len(images), 'picture')} without captions")
        adapter = "coco" if "annotations" in document else "karpathy"
        options: Options = {"adapter": adapter, "path": path}
        if usual_images(path.parent) != self.path and self.finder.names:
            name = "file_name" if adapter == "coco" else "filename"
            names = dict.fromkeys(str(image.get(name)) for image in images)
            usual = self.finder.below(usual_images(path.parent)) if path.is_relative_to(self.path) else self.finder
            if not any(usual.find(names).values()):
                options["images"] = self.path
        return Reading(path, options, self._read(options), (path,))

    def _read(self, options: Options) -> Columns:
        """Return the pictures of a document and their captions."""
        data = ADAPTERS[options["adapter"]].model_validate(options)
        faults = Faults(gather=True)
        with unlogged():
            rows = list(data.rows(Path(), faults))
        texts = tuple(text for row in rows[:: max(1, len(rows) // SAMPLE)] for text in row.captions)
        if not texts:
            raise AttendError(faults.found[0] if faults.found else f"{options['path']}: has no captions")
        base = data.image_folder(Path())
        share = len(rows) / max(len(rows) + len(faults.found), 1)
        pictures = frozenset(base / row.name for row in rows)
        return Columns({}, base, pictures, (options["adapter"],), "caption", texts, share)

    def _examined(self, kind: type[RecordOptions], path: Path, file: Path) -> Reading:
        """Return how the adapter `kind` reads the data set at `path`, judging by one of its tables, `file`."""
        forms = [{"adapter": kind.model_fields["adapter"].default, "path": path, **form} for form in text_forms(file)]
        options, columns = _first_that_reads(kind, forms, file, self.finder)
        notes = note_on_encoding(file, options.get("encoding", "utf-8"), columns.texts)
        columns = columns._replace(notes=(*columns.notes, *notes))
        usual = path if kind is ImageFolder else usual_images(file.parent)
        is_usual = columns.images.is_relative_to(usual) and usual.is_relative_to(self.path) and not columns.is_own
        images = {} if is_usual else {"images": columns.images}
        return Reading(file, {**options, **columns.options, **images}, columns, (file,))

    def _of_texts(self, suffix: str, are_guessed: bool = False) -> tuple[list[Reading], dict[Path, str]]:
        """Return the ways to read the text files with this suffix, and why the others are not captions.

        If several folders have texts of the same pictures, such as labels/ and captions/, each is a separate way.
        are_guessed: see `_caption_field`.
        """
        items = [item for item in self.texts[suffix] if item.pictures]
        of_folder: dict[str, list[TextFile]] = {}
        for item in items:
            of_folder.setdefault(item.name.partition("/")[0] if "/" in item.name else "", []).append(item)
        named = Counter(item.pictures[0] for item in items)
        if items and (len(of_folder) == 1 or max(named.values()) == 1):
            of_folder = {"": items}
        candidates: list[Reading] = []
        errors: dict[Path, str] = {}
        for folder, own in of_folder.items():
            try:
                candidates.append(self._of_texts_in(folder, suffix, own, are_guessed))
            except AttendError as error:
                errors |= dict.fromkeys((item.text for item in own), str(error))
        return candidates, errors

    def _of_texts_in(self, folder: str, suffix: str, items: list[TextFile], are_guessed: bool) -> Reading:
        """Return how text files of one picture each are read; AttendError if they are not captions.

        folder: the folder that they are below, if they are read without other texts; else empty. are_guessed: see
        `_caption_field`.
        """
        options: Options = {"adapter": "texts", "path": self.path / folder}
        options |= {} if suffix == ".txt" else {"suffix": suffix}
        if folder:
            parents = {picture.rpartition("/")[0] for item in items for picture in item.pictures}
            options["images"] = self.path if "" in parents else self.path / os.path.commonpath(parents)
        sample = items[:: max(1, len(items) // SAMPLE)]
        notes: list[str] = []
        documents: list[dict[str, object]] = []
        if suffix == ".json":
            documents = [read_json(item.text) for item in sample]
            options["caption_field"], notes = _caption_field(documents, sample[0].text, are_guessed)
            values = (document.get(options["caption_field"]) for document in documents)
            items_of = (value if isinstance(value, list) else [value] for value in values)
            texts = tuple(str(text) for own in items_of for text in own if text)
        else:
            not_unicode = [data for item in items if not is_unicode(data := item.text.read_bytes())]
            encoding = (encoding_of(b"\n".join(not_unicode), items[0].text) if not_unicode else None) or "utf-8"
            options |= {} if encoding == "utf-8" else {"encoding": encoding}
            contents = [read_text(item.text, encoding) for item in sample]
            options |= lines_of(contents)
            texts = tuple(
                text for content in contents for text in captions_of(content, options.get("lines", "captions"))
            )
        if not texts:
            raise AttendError(f"{items[0].text}: is empty, as others of its kind are")
        if sum(map(is_numbers, texts)) > _NEARLY_ALL * len(texts):
            raise AttendError(f"{items[0].text}: holds numbers, not captions, as others of its kind do")
        splits = Counter(path_splits([item.name.split("/")[:-1] for item in items]))
        notes += [f"{items[0].text}: {note}" for note in _odd_lines(texts, len(sample))]
        notes += note_on_encoding(items[0].text, options.get("encoding", "utf-8"), texts)
        split, more_notes = _other_fields(documents, items[0].text, has_split=len(splits) > 1)
        notes += more_notes
        if split is not None:
            notes.append(
                f"{items[0].text}: its field {split} is not used: put the pictures into folders train, val, test"
            )
        if None not in splits and len(splits) > 1:
            options["splits"] = "folders"
        elif len(splits) > 1:
            notes.append(
                f"{self.path}: {splits.total() - splits[None]:,} of {splits.total():,} texts are in folders that are "
                "named as splits, which are not used: put the others into such folders too"
            )
        pictures = frozenset(self.path / item.pictures[0] for item in items)
        columns = Columns({}, self.path, pictures, ("texts", suffix), "caption", texts, 1.0, tuple(notes))
        return Reading(items[0].text, options, columns, tuple(item.text for item in items))

    def _tars(self) -> Reading | None:
        return of_tars(self.path) if tar_files(self.path) else None

    def _hub(self) -> Reading | None:
        """Return how the Parquet files that contain pictures are read; None if there are none."""
        for path, files in shown_files(self.path):
            first = next((path / name for name in files if name.endswith(".parquet")), None)
            is_near = len(path.relative_to(self.path).parts) <= 2
            if is_near and first is not None and picture_column(first):
                return of_rows(self.path, first)
        return None


def _first_that_reads(
    kind: type[RecordOptions], forms: list[Options], file: Path, finder: PictureFinder
) -> tuple[Options, Columns]:
    """Return the first of the possible forms of a table in which it holds captions, and the columns found."""
    first: AttendError | None = None
    for options in forms:
        try:
            return options, examine(kind, options, file, finder)
        except AttendError as error:
            first = first or error
    assert first is not None
    raise first


def _odd_lines(lines: Sequence[str], texts: int) -> Iterator[str]:
    """Yield a note on each odd property of the lines of texts. texts: the number of texts."""
    line, times = Counter(lines).most_common(1)[0]
    if texts >= _SEVERAL and times > _HALF * texts:
        yield f"the line {shortened(line, 60)!r} is in {times} of {texts} texts, and read as a caption of each"
    numbers = [line for line in lines if is_numbers(line)]
    if len(numbers) > _SOME * len(lines):
        shown = shortened(numbers[0], 60)
        yield f"{len(numbers)} of {len(lines)} lines have no words, such as {shown!r}: they are read as captions"
    yield from odd_beginnings(lines, texts)
    if sum(" " not in line.strip() and not SPACELESS.search(line) for line in lines) > 0.9 * len(lines):
        yield "lines have one word each, as in others of its kind: with data.lines=paragraph all are one caption"


def _caption_field(documents: list[dict[str, object]], file: Path, are_guessed: bool = True) -> tuple[str, list[str]]:
    """Return the field of documents, one per picture, that has the captions, and notes on other possible fields.

    Raises AttendError if no field has captions. file: the file of the first document, or of all. are_guessed: whether,
    if no field is named as captions are, one of sentences is taken.
    """
    names = dict.fromkeys(name for document in documents for name in document)
    values = {name: [document[name] for document in documents if name in document] for name in names}
    texts = {
        name: [item for item in own if item is None or isinstance(item, str | list)] for name, own in values.items()
    }
    likely = {name: list(filter(None, own)) for name, own in texts.items() if len(own) * 2 > len(documents)}
    known = {name: likely[name] for name in CAPTION_NAMES if likely.get(name)}
    likeliest = next((name for name in CAPTION_NAMES if name in names), None)
    guessed = likely if are_guessed else {}
    try:
        found, notes = caption_column(known or guessed, str(file), "their names", kind="field")
    except AttendError as error:
        if likeliest in known:
            return str(likeliest), [f"{error}: it is read all the same: for another, set data.caption_field"]
        found, notes = "", []
    field = columns_of(found)[0]
    items = list(texts_in(likely.get(field, []), None))
    if not items or (not known and sum(map(word_count, items)) < FEWEST_WORDS * len(items)):
        if likeliest is not None:
            raise AttendError(
                f"{file}: its field {likeliest} holds no text, as in others of its kind: write the captions there"
            )
        raise AttendError(f"{file}: no field of captions; there are: {', '.join(names)}: name theirs `caption`")
    if not known and not notes:
        shown = shortened(items[0], 60)
        notes = [f"{file}: captions are read from its field {field} ({shown!r}): for another, set data.caption_field"]
    return field, notes


def _other_fields(documents: list[dict[str, object]], file: Path, has_split: bool) -> tuple[str | None, list[str]]:
    """Return the field of documents that has the split, if any, and notes on fields that are not used.

    file: as in `_caption_field`. has_split: whether the names of files or folders have splits, which take precedence.
    """
    names = dict.fromkeys(name for document in documents for name in document)
    values = {name: [item[name] for item in documents if item.get(name) not in (None, "")] for name in names}
    full = [name for name, own in values.items() if len(own) == len(documents) and not has_split]
    split = next((name for name in full if is_split(name, values[name])), None)
    rest = {name: own for name, own in values.items() if name != split}
    return split, [f"{file}: its {note}" for note in unused_marks(rest, has_split or split is not None, kind="field")]


def picture_column(file: Path) -> str | None:
    """Return the first column of a Parquet file that may hold encoded pictures; None if there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError, ValueError):
        return None
    return next((column.name for column in schema if holds_pictures(column.type)), None)


def _together(parts: list[Columns]) -> Columns:
    """Return the columns of several tables of one form, merged."""
    first = parts[0]
    pictures = frozenset(picture for part in parts for picture in part.pictures)
    share = sum(part.share for part in parts) / len(parts)
    texts = tuple(text for part in parts for text in part.texts)
    notes = tuple(note for part in parts for note in part.notes)
    return first._replace(pictures=pictures, texts=texts, share=share, notes=notes)


def _without_splits(folder: str) -> str:
    """Return a folder's name without numbers and splits: `en` for `en/train`, `part-` for `part-0001`."""
    return re.sub(r"\d+", "", "/".join(part for part in Path(folder).parts if part.lower() not in SPLIT_NAMES))


def of_rows(path: Path, file: Path) -> Reading:
    """Return how files of rows that contain pictures are read. path: the data set. file: the first file."""
    options: Options = {"adapter": "huggingface", "path": path}
    first = list(itertools.islice(batches(file), 4))
    records = [record for batch in first for record in batch.to_pylist()]
    if not records:
        raise AttendError(f"{file}: has no row")
    images = [column.name for column in first[0].schema if holds_pictures(column.type)]
    if not images:
        raise AttendError(f"{file}: no column holds encoded pictures; there are: {', '.join(records[0])}")
    image = "image" if "image" in images else images[0]
    notes = []
    if len(images) > 1:
        others = ", ".join(name for name in images if name != image)
        notes.append(f"{file}: pictures are read from its column {image}, none from {others}: or set data.image_column")
    values = {name: [record[name] for record in records if record[name] not in (None, "")] for name in records[0]}
    values = {name: own for name, own in values.items() if name not in images and own}
    split = next((name for name, own in values.items() if is_split(name, own)), None)
    others_values = {name: own for name, own in values.items() if name != split}
    caption, more_notes = caption_column(others_values, str(file), image)
    files = table_files(path)
    folders = [os.path.relpath(item.path.parent, path) for item in files]
    kinds = {(_without_splits(folder), item.split) for folder, item in zip(folders, files, strict=True)}
    if len(kinds) > len({item.split for item in files}):
        several = listed(sorted(set(folders))[:_SHOWN])
        notes.append(f"{path}: the files of {several} are read together: for one, give its folder")
    notes += _missing_parts(path, [os.path.relpath(item.path, path) for item in files])
    has_split = split is not None or any(item.split for item in files)
    more_notes += [f"{file}: its {note}" for note in unused_marks(others_values, has_split)]
    columns = columns_of(caption)
    cells = [cell for column in columns for cell in values[column]]
    lists = lists_of(cells)
    options |= settings_of(HuggingFace, image, caption, split)
    options |= {} if lists is None else {"lists": lists}
    texts = tuple(str(text) for value in cells for text in (value if isinstance(value, list) else [value]))
    names = frozenset(file / str(number) for number in range(len(records)))
    columns_found = Columns({}, path, names, tuple(values), columns[0], texts, 1.0, (*notes, *more_notes))
    return Reading(file, options, columns_found, tuple(item.path for item in files))


def _missing_parts(path: Path, names: list[str]) -> Iterator[str]:
    """Yield a note if files that are numbered as parts, such as train-00000-of-00002.parquet, are incomplete."""
    parts = [(match[1], int(match[2])) for name in names if (match := re.match(r"(.*)-\d+-of-(\d+)\.", name))]
    for (stem, number), there in Counter(parts).items():
        if there < number:
            yield f"{path}: only {there} of {number} parts of {stem} are there: the others may not be downloaded"


def of_tars(path: Path) -> Reading:
    """Return how a tar file, or the tar files of a folder, are read, judging by samples of the first."""
    folder, tars = (path, tar_files(path)) if path.is_dir() else (path.parent, [path])
    options: Options = {"adapter": "webdataset", "path": path}
    texts: list[str] = []
    contents: list[str] = []
    keys = []
    documents: list[dict[str, object]] = []  # in each sample's .json
    unread: Counter[str] = Counter()  # other texts of samples
    seen: set[str] = set()  # suffixes of the files of samples
    several: dict[str, list[str]] = {}  # suffixes of the pictures of samples that have several
    for key, members in itertools.islice(samples(tars[0]), SAMPLE):
        keys.append(key)
        seen.update(members)
        if len(suffixes := picture_suffixes(members)) > 1:
            several[key] = suffixes
        text = next((suffix for suffix in TEXTS if suffix in members), None)
        if text is not None:
            contents.append(members[text].decode("utf-8", "replace"))
        document: dict[str, object] = {}
        with contextlib.suppress(AttendError):  # invalid rows are reported when the rows are read
            document = json_fields(members, f"{tars[0]}: {key}")
        documents.append(document)
        if text is not None:
            others = [f".{suffix}" for suffix in TEXTS if suffix in members and suffix != text]
            differs = str(document.get("caption") or "").strip() not in ("", contents[-1].strip())
            unread.update([*others, *(["caption in .json"] if differs else [])])
    notes = [
        f"{tars[0]}: {times} of its first {len(keys)} samples also have another {what}, which is not read: to read it, "
        "remove the others, or set data.caption_field"
        for what, times in unread.items()
    ]
    if any(map(str.strip, contents)):
        options |= lines_of(contents)
        texts = [text for content in contents for text in captions_of(content, options.get("lines", "captions"))]
    elif any(documents):
        field, notes = _caption_field(list(filter(None, documents)), tars[0])
        options["caption_field"] = field
        texts = [str(document[field]) for document in documents if document.get(field)]
    if not seen:
        raise AttendError(f"{tars[0]}: holds no samples: put pictures with their .txt files there, or remove it")
    if not texts:
        kinds = listed([f".{suffix}" for suffix in sorted(seen)])
        raise AttendError(f"{tars[0]}: its samples, of {kinds}, hold no captions: if it is a folder, unpack it first")
    splits = [tar_split(tar, folder) for tar in tars]
    split, more_notes = _other_fields(documents, tars[0], has_split=any(splits))
    notes += more_notes
    options |= {} if split is None else {"split_field": split}
    if several:
        key, suffixes = next(iter(several.items()))
        notes.append(
            f"{tars[0]}: {len(several)} of its first {len(keys)} samples have several pictures, such as {key} "
            f"({', '.join(suffixes)}): the first, .{suffixes[0]}, is read: for another, keep only that one there"
        )
    notes += _unused_splits(path, dict(zip(tars, splits, strict=True)), keys if split is None else [])
    pictures = frozenset(folder / key for key in keys)
    columns = Columns({}, folder, pictures, ("tar",), "caption", tuple(texts), 1.0, tuple(notes))
    return Reading(tars[0], options, columns, tuple(tars))


def _unused_splits(path: Path, splits: dict[Path, str | None], keys: list[str]) -> Iterator[str]:
    """Yield a note if some tars are not named as a split, or if none is and folders in them are.

    splits: the split of each tar. keys: of samples of the first; empty if a field of theirs says the split.
    """
    unnamed = [tar.name for tar, split in splits.items() if split is None]
    if 0 < len(unnamed) < len(splits):
        number = f"{len(unnamed)} of {len(splits)} tars"
        yield f"{path}: {number} are not named as a split: {unnamed[0]} is divided by content"
    folders = [PurePosixPath(key).parent for key in keys]
    named = next((folder for folder in folders if folder_split(folder.parts) is not None), None)
    if named is not None and len(unnamed) == len(splits):
        yield (
            f"{path}: samples are in folders that are named as splits, such as {named}, which are not used: make a tar "
            "file for each split, or unpack it"
        )
