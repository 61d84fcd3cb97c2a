"""Finding the columns or fields of captions, splits and marks on rows, by their names and values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from models.vocabulary import SPACELESS
from tasks.common.errors import AttendError
from tasks.common.wording import shortened
from tasks.datasets.base import SPLIT_NAMES
from tasks.datasets.records import columns_of, listed_texts, text_of

FEWEST_WORDS = 3  # mean number of words of a column's texts, from which they could be captions
# Names of caption columns, likeliest first.
_SURE_NAMES = (
    *("caption", "captions", "sentence", "sentences", "description", "raw", "alt", "alt_text", "text", "texts"),
    *("conversations", "messages", "beschriftung", "bildunterschrift", "beschreibung", "l\u00e9gende", "legende"),
    *("descripci\u00f3n", "descripcion", "didascalia"),
)
_OTHER_NAMES = ("comment", "title")
CAPTION_NAMES = (*_SURE_NAMES, *_OTHER_NAMES)
SPLIT_COLUMNS = ("split", "partition", "subset", "set", "fold", "phase")
_BETWEEN = ("||", "###", "|", "\n")  # separators of the captions in a cell
OBJECTS = "holds objects, which are not searched: write picture and caption into fields of the record itself"
NO_TEXTS = "no column of texts"  # in the message about a table that only names pictures
_NEARLY_ALL = 0.9
_SEVERAL = 5  # the fewest texts that may be generalised from
_SOME, _HALF = 0.2, 0.5
_FEW_LETTERS = 0.3  # share of the characters of a text of numbers
_FEW_WORDS = 1.5  # mean number of words below which texts are classes
_MARKS_SPLIT = re.compile("(is_?)?(train|training|test|val|valid|validation|dev)", re.IGNORECASE)
# Words in the names of columns that mark good or bad rows, and the values of such columns.
_VERDICT_NAMES = re.compile(
    "status|state|verdict|reviewe?d?|valid|accepted|approved|rejected|deleted|discard|keep|used?|usable|ok|match|"
    "correct|quality|spam|skip(ped)?|exclude[ds]?|included?|ignored?|flag(ged)?|decision|problem|precanned|latest|foil|"
    "hallucinat(ion|ed)|gepr\u00fcft|geprueft|brauchbar"
)
_VERDICTS = re.compile("accept(ed)?|approved?|reject(ed)?|bad|spam|invalid|deleted|drop(ped)?")
_LANGUAGES = re.compile(
    "(en|de|fr|es|it|pt|nl|ru|ja|zh|ko|ar|hi|tr|pl|cs|sv|eng|deu|ger|fra|fre|spa|ita|por|nld|rus|jpn|zho|kor)"
    "([_-][a-z]{2,4})?|english|german|deutsch|french|fran\u00e7ais|spanish|espa\u00f1ol|italian|italiano|portuguese|"
    "dutch|russian|japanese|chinese|korean|arabic|hindi|turkish|polish|czech|swedish"
)
_PARTS = re.compile(r"b(ounding)?[_ ]?box(es)?|boxes|x_?min|x1|polygons?|segmentation", re.IGNORECASE)
_ORDER = re.compile("true|false|none|nan|yes|no|first|second|third|fourth|fifth|primary|secondary", re.IGNORECASE)
_PEOPLE = re.compile("annotator|worker|author|user|writer|person", re.IGNORECASE)
_EXAMINED = 200  # records that show whether a column has few kinds
_FEW_KINDS = 8  # most different values of a column that classifies rows
_SIGNS = re.compile(r"[\d/_.:-]")  # characters of file names, addresses and dates
_FILE = re.compile(r"\.(txt|jpe?g|png|json|xml|csv)$", re.IGNORECASE)
LETTER = re.compile(r"[^\W\d_]")


def index_in(item: str, items: tuple[str, ...]) -> int:
    """Return an item's index in items; len(items) if it is not one of them."""
    return items.index(item) if item in items else len(items)


def unused_marks(
    values: dict[str, list[Any]], has_split: bool, kind: str = "column", of_texts: bool = False
) -> Iterator[str]:
    """Yield notes on columns that are not read: splits, languages, verdicts on rows.

    kind: a column's name in notes. of_texts: whether each value belongs to one of several texts of a picture.
    """
    most = max(map(len, values.values()), default=0)
    for name, own in values.items():
        items = [item for value in own if isinstance(value, list) for item in value if text_of(item) is not item]
        inner = {f"{name}.{field}": [item[field] for item in items if field in item] for field in (items or [{}])[0]}
        yield from unused_marks(inner, has_split=True, kind="field", of_texts=True)
        different = sorted(set(map(str, own)))
        if not has_split and _MARKS_SPLIT.fullmatch(str(name)) and len(different) > 1:
            yield f"{kind} {name} looks like a split and is not used: write the split's name into a column `split`"
        elif str(name).lower() in ("lang", "language", "locale") and len(different) > 1:
            shown = ", ".join(different[:5])
            yield f"{kind} {name} says that captions are in several languages ({shown}): all are read together"
        elif of_texts and _PARTS.fullmatch(str(name).rpartition(".")[2]) and len(different) > 1:
            yield _note_on_parts(kind, name)
        elif not has_split and _are_splits(own):
            yield f"{kind} {name} has only {own[0]!r}, which is not read as a split: if it is, set data.split_column"
        elif _is_verdict(str(name)) and 0 < len(own) < most and not 1 < len(different) <= _FEW_KINDS:
            share = f"{len(own) / most:.0%} of the rows"
            yield f"{kind} {name} is filled in {share} and not used: remove the rows that are not to be trained on"
        else:
            yield from _unused_kinds(str(name), own, has_split, kind)


def _unused_kinds(name: str, values: list[Any], has_split: bool, kind: str) -> Iterator[str]:
    """Yield a note on a column that classifies rows and is not read. values: the column's, without blanks."""
    kinds = Counter(str(value).strip() for value in values)
    if not 1 < len(kinds) <= _FEW_KINDS:
        return
    shares = ", ".join(f"{kind} {number / kinds.total():.0%}" for kind, number in kinds.most_common())
    folded = {kind.lower() for kind in kinds}
    if _is_verdict(name) or any(map(_VERDICTS.fullmatch, folded)):
        yield f"{kind} {name} ({shares}) is not used: remove the rows that are not to be trained on"
    elif folded & {"caption", "captions", "description"}:
        yield f"{kind} {name} ({shares}) is not used: remove the rows that are no captions"
    elif all(map(_LANGUAGES.fullmatch, folded)):
        yield f"{kind} {name} says that captions are in several languages ({shares}): all are read together"
    elif not has_split and folded & SPLIT_NAMES.keys():
        yield f"{kind} {name} ({shares}) looks like a split and is not used: its values are to be train, dev and test"


def kinds_within(records: list[dict[str, Any]], image: str, columns: list[str]) -> Iterator[str]:
    """Yield a note on each column with parts of a picture or with kinds of its rows, such as `human` and `blip`."""
    are_many = len(records) > (1 + _HALF) * len({str(record.get(image)) for record in records})
    for name in columns if are_many else []:
        if _PARTS.fullmatch(str(name)):
            yield _note_on_parts("column", name)
            continue
        first = {str(record.get(name)) for record in records[:_EXAMINED]}
        if len(first) > _FEW_KINDS or _PEOPLE.search(str(name)):
            continue
        rows = [(str(record.get(image)), str(record.get(name))) for record in records]
        kinds = Counter(kind for _, kind in rows)
        shapes = {re.sub(r"\d+", "#", kind) for kind in kinds if len(kind) > 1 and LETTER.search(kind)}
        if any(map(_ORDER.fullmatch, kinds)):  # the order of the rows, or a flag
            continue
        if 1 < len(shapes) == len(kinds) <= _FEW_KINDS and len(set(rows)) >= _NEARLY_ALL * len(rows):
            shown = ", ".join(sorted(kinds))
            yield f"column {name} says of what kind each text is ({shown}): all are read together"


def _note_on_parts(kind: str, name: str) -> str:
    return f"{kind} {name} is not used: captions of parts of pictures are read as captions of whole pictures"


def _is_verdict(name: str) -> bool:
    """Return whether a column's name says that it marks rows as good or bad."""
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return name.lower() == "revision" or any(map(_VERDICT_NAMES.fullmatch, words))


def caption_column(
    values: dict[str, list[Any]], where: str, image: str, kind: str = "column"
) -> tuple[str | tuple[str, ...], list[str]]:
    """Return the caption column, and a note on others that could be. values: of each column, without blanks.

    Numbered columns, such as caption_1 and caption_2, are returned together. Raises AttendError if no column has texts.
    For messages, image: the column of the pictures, and kind: what a column is called.
    """
    words = {name: _words(own) for name, own in values.items()}
    texts = [name for name in values if words[name] > 0]
    if not texts:
        there = f"; there are: {', '.join(values)}" if values else ""
        raise AttendError(f"{where}: {NO_TEXTS} but the pictures' ({image}){there}{note_on_objects(values)}")

    kinds = {name: len(set(map(str, values[name]))) / len(values[name]) for name in texts if words[name] >= _FEW_WORDS}

    def rank(name: str) -> tuple[bool, bool, bool, tuple[int, int], float]:
        likeness = _likeness(str(name))
        is_class = words[name] < _FEW_WORDS and max(words.values()) >= FEWEST_WORDS
        is_class = is_class or (kinds.get(name, 1.0) < _SOME and max(kinds.values()) > _HALF)
        is_odd = _are_questions(values[name]) or _are_objects(values[name]) or _are_the_same(values[name])
        is_odd = is_odd or "negative" in str(name).lower()  # prompts of image generators, of what is not to be seen
        return is_odd or _are_marks(values[name]), is_odd, is_class, likeness, -words[name]

    caption = min(texts, key=rank)
    if _are_marks(values[caption]) or (words[caption] >= _FEW_WORDS and _are_the_same(values[caption])):
        shown = shortened(str(values[caption][0]), 60)
        likeliest = f"of {caption}, the likeliest, one is {shown!r}{note_on_objects(values)}"
        raise AttendError(f"{where}: {NO_TEXTS} that could be captions; {likeliest}")
    stems = {name: unnumbered(name) for name in texts if words[name] >= FEWEST_WORDS}
    are_captions = any(name in stems.get(caption, "").lower() for name in CAPTION_NAMES)
    # The first of them may have no number: caption, caption2.
    numbered = [name for name, stem in stems.items() if stem == stems.get(caption) and are_captions]
    is_known = str(caption).lower() in CAPTION_NAMES
    others = [name for name in texts if name != caption and words[name] >= (FEWEST_WORDS if is_known else 1)]
    others = [name for name in others if not _are_codes(values[name]) and not (len(numbered) > 1 and name in numbered)]
    chosen = tuple(numbered) if len(numbered) > 1 else caption
    odd = _odd_cells(values[caption])
    shown = "; ".join(f"{name} ({str(values[name][0])[:60]!r})" for name in others)
    none = f", none from {shown}" if others else ""
    several = f" (or several: [{', '.join([*columns_of(chosen), others[0]])}])" if others and kind == "column" else ""
    note = (
        f"{where}: captions are read from its {kind} {', '.join(columns_of(chosen))} "
        f"({str(values[caption][0])[:60]!r}){odd}{none}: for another, set data.caption_{kind}{several}"
    )
    return chosen, [note] if others or odd else []


def note_on_objects(values: dict[str, list[Any]]) -> str:
    """Return the end of a message, which says that a column holds objects; empty if none does."""
    items = {name: own[0] if isinstance(own[0], list) else own[:1] for name, own in values.items() if own}
    name = next((name for name, own in items.items() if any(isinstance(item, dict) for item in own)), None)
    return "" if name is None else f": its field {name} {OBJECTS}"


def _likeness(name: str) -> tuple[int, int]:
    """Return how likely a column has captions by its name: `caption` and `Alt Text`, then `image_caption`, then others.

    The smaller, the likelier.
    """
    folded = re.sub("[ -]", "_", name.lower())
    whole, part = (min(index_in(own, _SURE_NAMES) for own in names) for names in ([folded], folded.split("_")))
    if whole < len(_SURE_NAMES):
        return 0, whole
    return (1, part) if part < len(_SURE_NAMES) else (2, index_in(folded, _OTHER_NAMES))


def unnumbered(name: str) -> str:
    """Return a column's name without the number at its end; unchanged if it has none."""
    return re.sub(r"[ _.-]?\d+$", "", str(name))


def _odd_cells(values: list[Any]) -> str:
    """Describe odd caption cells as part of a note: questions, single words, or several texts in a cell."""
    texts = [text for text in values if isinstance(text, str)]
    items = [item for value in values if isinstance(value, list) and len(value) > 2 for item in value]
    if _are_questions(values):
        return ", which are questions"
    if items and _are_single(list(map(str, items))):
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
    """Return whether a column's texts are not sentences: file names, addresses, dates, or a few classes."""
    texts = [str(text) for text in values]
    has_signs = any(map(_SIGNS.search, texts[:_SEVERAL]))
    return _are_marks(values) or (_are_single(texts) and (has_signs or len(set(texts)) <= max(3, len(texts) // 4)))


def _are_marks(values: list[Any]) -> bool:
    """Return whether a column's texts are file names, addresses, dates or numbers."""
    texts = [str(text).strip() for text in values]
    if sum(_FILE.search(text) is not None for text in texts) >= _NEARLY_ALL * len(texts):
        return True
    numbers = [text for text in texts if is_numbers(text) and any(map(str.isdigit, text))]  # `[]` and `...` are none
    return len(numbers) >= _NEARLY_ALL * len(texts) or (
        _are_single(texts) and all(map(_SIGNS.search, texts[:_SEVERAL]))
    )


def is_numbers(text: str) -> bool:
    """Return whether a text consists of numbers, like labels of objects or a time, and not of words."""
    signs = [sign for sign in text if not sign.isspace()]
    return sum(map(str.isalpha, signs)) < _FEW_LETTERS * len(signs)


def _are_single(texts: list[str]) -> bool:
    """Return whether most texts are one word; without spaces, also two in scripts that have none, as a date may be."""
    single = [text for text in texts if " " not in text.strip() and word_count(text) < FEWEST_WORDS]
    return len(single) >= _NEARLY_ALL * len(texts)


def lists_of(cells: list[Any]) -> str | None:
    """Return the setting `lists` for the cells of a caption column; None if each has one caption."""
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


def texts_in(cells: list[Any], lists: str | None) -> Iterator[str]:
    for cell in cells:
        if isinstance(cell, str) and lists is not None:
            try:
                yield from (str(text_of(item)) for item in listed_texts(cell, lists, ""))
            except AttendError:
                yield cell
        else:
            yield from (str(text_of(item)) for item in (cell if isinstance(cell, list) else [cell]))


def is_split(name: str, values: list[Any]) -> bool:
    """Return whether all values of a column are names of splits; a single value may be a class, such as `train`.

    In a column that is named as one of splits, nearly all suffice: the other rows are at fault.
    """
    is_named = not {*SPLIT_COLUMNS, *SPLIT_NAMES}.isdisjoint(re.findall("[a-z]+", str(name).lower()))
    splits = [value for value in values if _are_splits([value])]
    if str(name).strip().lower() in SPLIT_COLUMNS and len(splits) >= _NEARLY_ALL * len(values) and len(set(splits)) > 1:
        return True
    return _are_splits(values) and (is_named or len(set(values)) > 1)


def _are_splits(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) and value.strip().lower() in SPLIT_NAMES for value in values)


def _words(values: list[Any]) -> float:
    """Return the mean number of words of a column's texts; 0 if it holds no texts."""
    items = [text_of(item) for value in values for item in (value if isinstance(value, list) else [value])]
    texts = [item for item in items if isinstance(item, str)]
    if not texts or len(texts) < _NEARLY_ALL * sum(item is not None for item in items):
        return 0.0
    if not any(map(LETTER.search, texts)):
        return 0.0
    return sum(map(word_count, texts)) / len(texts)


def word_count(text: str) -> int:
    """Return an estimate of a text's words; in scripts without spaces between words, half its characters."""
    return len(text.split()) + len(SPACELESS.findall(text)) // 2
