"""Reading the records of tables (text, JSON lines, JSON documents, Parquet), and the captions in a cell."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
import reprlib
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from tasks.common.errors import AttendError, reason_of
from tasks.common.wording import counted, shortened
from tasks.datasets.base import PICTURE_SUFFIXES, SPLIT_NAMES, needs_text, numbered_lines
from tasks.datasets.documents import parse_json_or_lines, parse_text, require_objects
from tasks.datasets.faults import Faults

Record = tuple[str, dict[str, Any]]  # (`file:line`, column -> value)
ASKED = "first question"  # the column that is added to records of conversations
TEXT_TABLES = (".csv", ".tsv", ".txt")  # suffixes of tables of text
DELIMITERS = {"\t": "tab", ",": ",", ";": ";", "|": "|"}  # with their names in messages
AFTER_NAME = "name"  # a delimiter: the end of a picture's name at the beginning of a line
# Its sign is a blank, a colon, or a dash, an equals sign or an arrow and a blank.
_ENDINGS = "|".join(map(re.escape, PICTURE_SUFFIXES))
_NAME_AND_SIGN = re.compile(
    rf"\s*(\S.*?(?:{_ENDINGS})(?:#\d+)?)(?: *[:\uff1a]+ *| *[=\u2013\u2014-]>? +|[ \u00a0]+)"
    rf"(?![\s,;|]|\S+(?:{_ENDINGS}))",
    re.IGNORECASE,
)
Lists = Annotated[
    str | None,
    Field(
        min_length=1,
        description="how several captions in a cell are written: `json` for a list as in JSON or Python, or the "
        "separator between them, such as `||`",
    ),
]


def usual_delimiter(path: Path) -> str:
    """Return the default delimiter of a table of text: a tab in .tsv, else a comma."""
    return "\t" if path.suffix.lower() == ".tsv" else ","


def rows_of(lines: Iterable[str], delimiter: str, has_quotes: bool = True, strict: bool = True) -> Any:
    """Return the reader of the rows of a table of text.

    Blanks after a comma or semicolon are no part of a field, so that quotation marks after them enclose it.
    """
    return csv.reader(
        lines,
        delimiter=delimiter,
        strict=strict,
        quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE,
        skipinitialspace=delimiter in ",;",
    )


def after_name(line: str) -> str | None:
    """Return a line with a tab after the picture's name that it begins with; None if it begins with none."""
    found = _NAME_AND_SIGN.match(line)
    return None if found is None else f"{found[1]}\t{line[found.end() :].replace(chr(9), ' ')}"


def records_of(path: Path, form: TextForm, faults: Faults) -> Iterable[Record]:
    """Return the records of a file, whose suffix determines its format. form: for a table of text."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet_records(path)
    if suffix in (".jsonl", ".ndjson"):
        return _json_line_records(path, faults)
    if suffix == ".json":
        return _json_records(path)
    return _text_records(path, form, faults)


def listed_texts(text: str, form: str, where: str) -> list[Any]:
    """Return the texts in a cell. form: see `RecordOptions.lists`. Raise AttendError if it holds no list."""
    if form != "json":
        return [part.strip() for part in text.split(form) if part.strip()]
    if not text.strip().startswith("["):
        return [text]
    for read in (json.loads, _python_texts, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError):
            continue
        if isinstance(value, list):
            return value
    raise AttendError(f"{where}: is {reprlib.repr(text)}; a list of captions is needed, because data.lists is set")


def _python_texts(text: str) -> list[Any] | None:
    """Return the texts of a list as Python writes it, or as NumPy and pandas do, without commas.

    None if the list has other values too.
    """
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline) if token.string.strip()]
    texts = [token.string for token in tokens if token.type == tokenize.STRING]
    rest = "".join(token.string for token in tokens if token.type != tokenize.STRING)
    return [ast.literal_eval(item) for item in texts] if re.fullmatch(r"\[,*\]", rest) else None


def captions_in(value: object, lists: str | None, where: str, field: str) -> list[str]:
    """Return the captions in a cell: a text, a list of texts, or a text that is a list (see `RecordOptions.lists`)."""
    if lists is not None and isinstance(value, str):
        value = listed_texts(value, lists, f"{where}: {field}")
    if isinstance(value, list):
        value = [text_of(item) for item in value]
    if not isinstance(value, list) or len(value) < 2:
        return [needs_text(text, where, field) for text in (value if isinstance(value, list) and value else [value])]
    return [needs_text(text, where, f"{field}[{number}]") for number, text in enumerate(value)]


def columns_of(columns: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a setting of one or several columns."""
    return (columns,) if isinstance(columns, str) else columns


def captions_of(record: dict[str, Any], columns: str | tuple[str, ...], lists: str | None, where: str) -> list[str]:
    """Return the captions of a record; blanks in several columns are skipped. lists: see `captions_in`."""
    names = columns_of(columns)
    filled = [name for name in names if record[name] not in (None, "") or len(names) == 1]
    texts = [text for name in filled for text in captions_in(record[name], lists, where, name)]
    if not texts:
        raise AttendError(f"{where}: {', '.join(names)}: are empty; a text is needed")
    return texts


class TextForm(NamedTuple):
    """How a table of text is written. columns: their names if its first line is a record; else None."""

    delimiter: str
    encoding: str
    quotes: bool
    columns: Sequence[str] | None


def text_of(item: object) -> object:
    """Return the text of an object such as `{"raw": "a dog", "id": 3}` in a list of captions; other items unchanged."""
    if isinstance(item, dict):
        return next((item[field] for field in ("raw", "caption", "text", "sentence") if field in item), item)
    return item


def _text_records(path: Path, form: TextForm, faults: Faults) -> Iterator[Record]:
    """Yield the records of a table of text."""
    columns = form.columns
    namer = "the first line names" if columns is None else "data.columns names"
    delimiter = form.delimiter
    # A byte order mark is not part of the first column's name.
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    with path.open(encoding=encoding, newline="") as file:
        lines: Iterable[str] = file
        has_quotes = form.quotes and delimiter != AFTER_NAME
        advice = f"quote a field that holds {delimiter!r}, or name all columns"
        if delimiter == AFTER_NAME:
            lines, delimiter = (after_name(line) or line for line in file), "\t"
            advice = "write a picture's name, a blank and its caption"
        reader = rows_of(lines, delimiter, has_quotes)
        try:
            header = next(reader, None) if columns is None else list(columns)
            if header is not None and columns is None and "".join(header).startswith("sep="):
                header = next(reader, None)  # Excel's line that names the delimiter
            if header is None:
                raise AttendError(f"{path}: is empty: its first line must name the columns")
            _check_names(path, [name for name in header if name.strip()])
            # Those without a name are blank in all rows, as programs export them.
            unnamed = [at for at, name in enumerate(header) if not name.strip()]
            while True:
                start = reader.line_num + 1
                values = next(reader, None)
                if values is None:
                    return
                if not any(map(str.strip, values)):
                    continue
                if len(values) != len(header):
                    faults.add(
                        AttendError(
                            f"{path}:{start}: has {counted(len(values), 'field')}, {namer} {len(header)} "
                            f"({', '.join(header)}): {advice}"
                        )
                    )
                    continue
                if len(unnamed) > 1 and any(values[at].strip() for at in unnamed):
                    raise AttendError(
                        f"{path}: {len(unnamed)} of the {len(header)} columns of the first line have no name: name "
                        "them, or if lines before the columns' names are a title, remove these"
                    )
                yield f"{path}:{start}", dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise AttendError(
                f"{path}:{reader.line_num}: is not well-formed: {error}: enclose the field in quotation marks, and "
                "write those within it twice"
            ) from None
        except UnicodeError:
            name = "UTF-8" if encoding == "utf-8-sig" else encoding
            raise AttendError(
                f"{path}:{reader.line_num + 1}: is not {name} text: set data.encoding, for instance to cp1252 or utf-16"
            ) from None


def _check_names(path: Path, columns: Sequence[str]) -> None:
    """Raise AttendError if two columns have the same name, because one would hide the other."""
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise AttendError(
            f"{path}: the column {twice[0]!r} is there {columns.count(twice[0])} times: rename all but one, or give "
            "each caption a row of its own"
        )


def _json_line_records(path: Path, faults: Faults) -> Iterator[Record]:
    for number, line in numbered_lines(path):
        if number == 1 and line.startswith("["):
            raise AttendError(
                f"{path}:1: begins a list: write one object per line, or if the whole file is one list, name it "
                f"{path.with_suffix('.json').name}"
            )
        with faults.of_row():
            record = parse_text(line, path, number)
            if not isinstance(record, dict):
                raise AttendError(f"{path}:{number}: is not an object")
            yield f"{path}:{number}", _with_answer(record)


def _json_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON list, also if it is the only list in an object.

    An object whose values are texts or lists of texts becomes a record with `image` and `caption` for each name. An
    object of columns becomes a record for each row. All these may be in an object by split.
    """
    repeated = _Repeated()
    document = parse_json_or_lines(path, repeated.object_of)
    repeated.refuse(document, path)
    parts = _parts(document)
    for split, part in parts.items():
        repeated.refuse(part, path)
        for where, record in _document_records(part or [], path, split):
            yield where, {**record, "split": split}
    if not parts:
        yield from _document_records(document, path)


def _parts(document: Any) -> dict[str, Any]:
    """Return the splits of a JSON document by their names; empty if it has none.

    Next to lists of records, there may be facts about the whole.
    """
    values = document if isinstance(document, dict) else {}
    parts = {name: value for name, value in values.items() if _is_part(name, value)}
    lists = [name for name, value in values.items() if isinstance(value, list)]
    return parts if len(parts) == len(values) or (len(parts) > 1 and lists == list(parts)) else {}


def _is_part(name: str, value: object) -> bool:
    is_text = bool(value) and _are_captions(value)
    return name.lower() in SPLIT_NAMES and isinstance(value, list | dict) and not is_text


def _document_records(document: Any, path: Path, split: str | None = None) -> Iterator[Record]:
    """Yield the records of a JSON document, or of a split in it."""
    where = f"{path}:" if split is None else f"{path}: {split}"
    values = list(document.values()) if isinstance(document, dict) else []
    if values and all(map(_are_captions, values)):
        for name, texts in document.items():
            yield f"{where} {name}", {"image": name, "caption": texts}
    elif values and all(isinstance(value, dict) for value in values):
        for name, record in (_rows_of_columns(document) or document).items():
            yield f"{where} {name}", {"image": name, **record}
    else:
        lists = [name for name, value in document.items() if isinstance(value, list) and value] if values else []
        if values and len(lists) != 1:
            raise AttendError(f"{where.rstrip(':')}: {_advice_on_lists(lists, split)}")
        records = document[lists[0]] if lists else document
        for number, record in enumerate(require_objects({"the document": records}, "the document", str(path))):
            yield f"{where} [{number}]", _with_answer(record)


def _rows_of_columns(document: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """Return the rows, by number, of an object of columns, as pandas writes it; None for another object.

    Such an object is `{"image": {"0": "a.jpg", "1": "b.jpg"}, "caption": {"0": "a dog", "1": "a cat"}}`.
    """
    first, *others = document.values()
    are_rows = len(first) > len(document) > 1 and all(map(str.isdecimal, first))
    if not are_rows or any(column.keys() != first.keys() for column in others):
        return None
    return {number: {name: column[number] for name, column in document.items()} for number in first}


def _advice_on_lists(lists: list[str], split: str | None) -> str:
    """Return what is wrong with an object that has no list of records, or several, and what to do."""
    if {"images", "annotations"} <= set(lists) and split is not None:
        return f"has COCO's form: write each split to a file of its own, such as captions_{split}.json"
    if lists:
        return (
            f"has several lists ({shortened(', '.join(lists), 100)}): keep the one of objects with picture and "
            "caption, or if they are splits, name them train, dev and test"
        )
    return 'has no list of objects with picture and caption: write [{"image": "a.jpg", "caption": "a dog runs"}, ...]'


class _Repeated:
    """The objects of a JSON document that have a name twice, of which Python's reader keeps only the last value."""

    def __init__(self) -> None:
        self.found: list[tuple[dict[str, Any], str]] = []  # each object, and the name

    def object_of(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the object of these names and values, and remember it if a name is there twice."""
        found = dict(pairs)
        if len(found) < len(pairs):
            times = Counter(name for name, _ in pairs)
            self.found.append((found, next(name for name in times if times[name] > 1)))
        return found

    def refuse(self, document: Any, path: Path) -> None:
        """Raise AttendError if this object has a name twice. path: its file."""
        for found, name in self.found:
            if found is document:
                what = "its records into one list" if name.lower() in SPLIT_NAMES else "its captions as a list"
                raise AttendError(f"{path}: {name!r} is there more than once: write {what}")


def _with_answer(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with texts in parts joined, and the first answer in place of a conversation.

    Parts are `["a dog ", {type: bold, text: runs}]`, as Telegram and chat models have them. Conversations are
    `conversations: [{from: human, value: ...}, {from: gpt, value: ...}]`, as LLaVA is tuned on, or `messages` with
    `role` and `content`.
    """
    record = {field: _joined(value) for field, value in record.items()}
    for field, role_field, text_field in (("conversations", "from", "value"), ("messages", "role", "content")):
        turns = record.get(field)
        if isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
            answers = [_joined(turn.get(text_field)) for turn in turns if turn.get(role_field) in ("gpt", "assistant")]
            questions = [_joined(turn.get(text_field)) for turn in turns if turn.get(role_field) in ("human", "user")]
            return {**record, field: next(iter(answers), None), ASKED: next(iter(questions), None)}
    return record


def _joined(value: object) -> object:
    """Return the text of a list of its parts, and None for NaN, as pandas writes an empty cell; else the value."""
    if isinstance(value, float) and math.isnan(value):
        return None
    parts = value if isinstance(value, list) else []
    if not any(isinstance(part, dict) and "type" in part and isinstance(part.get("text"), str) for part in parts):
        return value
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in parts).strip()


def _are_captions(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value))


def _parquet_records(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        _check_names(path, table.column_names)
        records = table.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise AttendError(f"{path}: is not a Parquet file: {reason_of(error)}") from None
    for number, record in enumerate(records):
        yield f"{path}: row {number}", record
