"""Detecting how a table of text is written: its encoding, its delimiter, and whether fields are quoted."""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import regex

from tasks.common.errors import AttendError
from tasks.datasets.base import unicode_of
from tasks.datasets.records import AFTER_NAME, DELIMITERS, TEXT_TABLES, after_name, rows_of, usual_delimiter

_START = 1 << 20  # bytes of a table that are examined
_NEARLY_ALL = 0.9
_MANY = 0.7
_SIGN_BEFORE_LETTER = regex.compile(r"[\p{S}\p{No}]\p{L}")
_WESTERN = ("cp1258", "cp1252", "latin_1", "iso8859_15", "cp1254", "iso8859_9", "cp437", "cp850")
_LETTERS = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0152\u0153"
# Between letters, a character that is not a Western European letter, an apostrophe or a dash; before a letter, a symbol
# such as a superscript 3; or within a word, an accented capital.
_ODD_WITHIN = re.compile(
    rf"[{_LETTERS}][^\x00-\x7f{_LETTERS}\u2018\u2019\u2013\u2014\u00b7][{_LETTERS}]"
    rf"|[\u00a3-\u00a8\u00ac\u00af\u00b2-\u00b4\u00b8\u00b9\u00bc-\u00be][{_LETTERS}]|[a-z][\u00c0-\u00de]|\ufffd"
)
# Non-ASCII letters of German and Swedish, French, Spanish, Italian, Portuguese, Dutch and Catalan, and Danish. Text in
# other languages, such as Hungarian, has letters of several of these if it is decoded as cp1252 by mistake.
_ALPHABETS = ("åäöüßé", "àâçéèêëîïôœùûü", "áéíóúüñ", "àèéìíòóùú", "áâãàçéêíóôõúü", "àáäçèéêëíïòóöúü", "æøåéó")
_ABOUT = 0.1  # difference in regularity that may be chance


def text_forms(path: Path) -> list[dict[str, Any]]:
    """Return the possible settings of a table of text for its encoding, delimiter and quotes, without defaults.

    The likeliest comes first; the delimiters of the others split rows as regularly, as a comma in captions may.
    """
    if path.suffix.lower() not in TEXT_TABLES:
        return [{}]
    with path.open("rb") as file:
        start = file.read(_START)
    if len(start) == _START:  # without the last line, which may be cut within a character
        start = start[: start.rfind(b"\n") + 1] or start
    encoding = encoding_of(start, path)
    text = start.decode(encoding or "utf-8-sig", errors="replace")
    usual = usual_delimiter(path)
    regular = {sign: _regularity(text, sign) for sign in dict.fromkeys(("\t", usual, *DELIMITERS))}
    best = max(regular.values())
    signs = [sign for sign, value in regular.items() if value >= best - _ABOUT] if best else [usual]
    form: dict[str, Any] = {} if encoding is None else {"encoding": encoding}
    forms = [form if sign == usual else {**form, "delimiter": DELIMITERS[sign]} for sign in signs]
    forms = [
        own if _has_quotes(text, sign) else {**own, "quotes": False} for own, sign in zip(forms, signs, strict=True)
    ]
    lines = [line for line in text.splitlines() if line.strip()]
    named = sum(after_name(line) is not None for line in lines) >= _NEARLY_ALL * len(lines)
    # Last: names in a table with another delimiter may have a blank after them too.
    return [*forms, {**form, "delimiter": AFTER_NAME, "columns": ("image", "caption")}] if named else forms


def _has_quotes(text: str, delimiter: str) -> bool:
    """Return whether quotes enclose fields; if they are part of the texts, quoted fields would span whole rows."""
    lines = text.splitlines()
    plain = [len(line.split(delimiter)) for line in lines if line.strip()]
    if '"' not in text or len(set(plain)) > 1:
        return True
    try:
        rows = list(rows_of(text.splitlines(keepends=True), delimiter))
    except csv.Error:
        return False
    return not any(delimiter in field and "\n" in field for row in rows for field in row) and len(rows) >= len(plain)


def encoding_of(start: bytes, path: Path) -> str | None:
    """Return the encoding of a file, or of files of one kind, by its first bytes; None for UTF-8.

    Raises AttendError if no encoding fits, or if the file is UTF-8 except for some bytes.
    """
    if (encoding := unicode_of(start)) != "utf-8-sig":
        return encoding
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(start)  # incremental: the last character may be cut
    except UnicodeDecodeError as error:
        if 0 in start:
            raise AttendError(f"{path}: is neither text nor Parquet") from None
        accented = [sign for sign in start.decode("utf-8", "replace") if not sign.isascii()]
        if accented.count("\ufffd") <= len(accented) / 2:  # text in other encodings is hardly ever valid UTF-8
            line = start.count(b"\n", 0, error.start) + 1
            raise AttendError(f"{path}:{line}: is not UTF-8, as the rest of the file is: save it as UTF-8") from None
        if _is_western(start.decode("cp1252", "replace")):
            return "cp1252"
        import charset_normalizer

        guesses = list(charset_normalizer.from_bytes(start, cp_exclusion=list(_WESTERN)))
        if not guesses:
            raise AttendError(f"{path}:1: is not UTF-8, nor in an encoding that is known: save it as UTF-8") from None
        return min(guesses, key=lambda match: len(_SIGN_BEFORE_LETTER.findall(str(match)))).encoding
    return None


def note_on_encoding(file: Path, encoding: str, texts: Iterable[str]) -> list[str]:
    """Return a note if the detected encoding is uncertain; none for cp1252 with the letters of one language."""
    letters = {sign for text in texts for sign in text.lower() if sign.isalpha() and not sign.isascii()}
    is_western = encoding == "cp1252" and any(map(letters.issubset, _ALPHABETS))
    note = f"{file}: is not UTF-8, and read as {encoding}: look at its captions, or set data.encoding"
    return [] if encoding.startswith(("utf-8", "utf-16")) or is_western else [note]


def _is_western(text: str) -> bool:
    """Return whether a text in cp1252 looks like a language of Western Europe."""
    words = [word for word in re.findall(r"[^\s,;|]+", text) if not word.isascii()]
    return sum(map(_is_western_word, words)) >= _MANY * len(words)


def _is_western_word(word: str) -> bool:
    """Return whether few letters of a word have accents, and it contains no character unusual within words."""
    accents = sum(not sign.isascii() and sign.isalpha() for sign in word)
    return accents <= max(1, len(word) // 2) and not _ODD_WITHIN.search(word)


def _regularity(text: str, delimiter: str) -> float:
    """Return how much a text looks like a table with this delimiter; 0 if it has one column."""
    try:
        rows = [
            row
            for row in itertools.islice(rows_of(text.splitlines()[:-1] or [text], delimiter, strict=False), 100)
            if row
        ]
    except csv.Error:
        return 0.0
    if not rows or len(rows[0]) < 2:
        return 0.0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows) + 0.01 * (len(rows) > 1)
