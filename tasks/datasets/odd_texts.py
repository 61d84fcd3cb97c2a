"""Finding texts that are unusual for captions. They are read as they are, and `attend init` prints a note."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from models.vocabulary import SPACELESS
from tasks.common.wording import listed, shortened

_HALF, _NEARLY_ALL, _SOME, _TENTH = 0.5, 0.9, 0.2, 0.1  # shares of the texts
_MANY = 20  # the fewest texts of which few kinds are odd
_SEVERAL = 5  # the fewest texts that may be generalised from
_LABEL = re.compile(r"(\w[\w ]{0,20}:)\s")  # at the beginning of a line, as `Caption: a dog`
# At the beginning of a line, as `1. a dog`, `#1 a dog` or `- a dog`.
_MARK = re.compile(r"\s*(\d+[.)]|#\d+|\d+(?=\t)|[-*\u2022\u2013])\s")
_SEPARATORS = (" // ", " / ", " ~ ", " \u2022 ", " -- ", "[SEP]")
# Marks as in Flickr30k Entities ([/EN#1/people two men]), addresses, names of pictures, numbers after a tab, hashtags.
_MARKUP = re.compile(
    r"(?-i:\[/?[A-Z]+[#/]\S*)|https?://\S+|(?<!\S)\S+\.(jpe?g|png)\b|\t[\d.]+$|(?<!\S)#[^\W\d_]\w+", re.IGNORECASE
)
_QUOTED = re.compile(r"""b?(['"`\u2018\u201c\u201e\u00ab]).+['"`\u2019\u201d\u201c\u00bb]""", re.DOTALL)  # a whole text
_CODE = re.compile(r"(?=[\w.-]+$)\D*\d.*", re.ASCII)  # a whole text, as `DSC0013`
_DAMAGED = re.compile(r"\ufffd|\\u[0-9a-fA-F]{4}|[A-Za-z]\?[a-z]")  # as in `M?dchen`
_AROUND = 10  # characters shown on both sides of it
_TAGS = 4  # the fewest parts, of one or two words each, that make a text a list
_FEWEST_WORDS = 2  # of each part of a text, where a sign divides it


def odd_texts(texts: Sequence[str]) -> Iterator[str]:
    """Yield notes on texts with broken letters or markup, with several captions each, or repeated many times."""
    texts = [text.strip() for text in texts]
    foreign = [text for text in texts if not text.isascii()]
    broken = [text for text in foreign if _repaired(text) != text]
    if len(broken) > max(1, _SOME * len(foreign)):
        shown, meant = shortened(broken[0], 60), shortened(_repaired(broken[0]), 60)
        yield f"texts have broken letters, such as {shown!r} for {meant!r}: save the file as UTF-8 from its source"
    damaged = [match for text in texts if "://" not in text and (match := _DAMAGED.search(text)) is not None]
    if len(damaged) > max(1, _TENTH * len(texts)):
        first = damaged[0]
        shown = first.string[max(first.start() - _AROUND, 0) : first.end() + _AROUND]
        yield f"texts have broken letters, such as {shown!r}: save the file as UTF-8 from its source"
    marked = [match[0] for text in texts if (match := _MARKUP.search(text)) is not None]
    if len(marked) > _SOME * len(texts):
        yield f"texts have marks such as {marked[0]!r}, which are read as words: remove them"
    quoted = [text for text in texts if _QUOTED.fullmatch(text)]
    if len(quoted) > _HALF * len(texts):
        yield f"texts are in quotation marks, such as {shortened(quoted[0], 60)}: the marks are part of the captions"
    cut = [text for text in texts if text.endswith(("...", "\u2026"))]
    if len(cut) > _HALF * len(texts):
        yield f"texts end in dots, such as {shortened(cut[0], 60)!r}: they may be cut off"
    codes = [text for text in texts if _CODE.fullmatch(text)]
    if len(codes) > _SOME * len(texts) and len(texts) >= _SEVERAL:
        yield f"{len(codes)} of {len(texts)} texts are codes, such as {shortened(codes[0], 60)!r}: remove these rows"
    spaced = [text for text in texts if not SPACELESS.search(text)]
    lists = [text for text in spaced if len(text.split()) <= 2 * (text.count(",") + 1) >= 2 * _TAGS]
    if len(lists) > _HALF * len(texts):
        yield f"{len(lists)} of {len(texts)} texts are lists, such as {shortened(lists[0], 60)!r}: read as captions"
    for sign in _SEPARATORS:
        parts = [part.split() for text in texts for part in text.split(sign)]
        has_it = sum(sign in text for text in texts)
        if has_it > _NEARLY_ALL * len(texts) and all(len(part) >= _FEWEST_WORDS for part in parts):
            yield f"texts may be several captions, or languages, with {sign.strip()!r} between them: read as one"
            break
    kinds = len(set(texts))
    if len(texts) >= _MANY and kinds <= _TENTH * len(texts):
        yield f"texts are only {kinds} different ones, such as {shortened(texts[0], 60)!r}: they may be classes"
    elif texts:
        text, times = Counter(texts).most_common(1)[0]
        others = [other for other in texts if other != text]
        if times >= max(_SEVERAL, _TENTH * len(texts)) and len(set(others)) > _HALF * len(others) > 0:
            yield f"{times} of {len(texts)} texts are {shortened(text, 60)!r}: remove these rows if it is no caption"


def odd_beginnings(lines: Sequence[str], texts: int) -> Iterator[str]:
    """Yield notes on labels and list marks at the beginning of many lines. texts: how many texts have these lines."""
    labels = Counter(re.sub(r"\d+", "#", match[1]) for line in lines if (match := _LABEL.match(line)) is not None)
    often = [label for label, times in labels.items() if times > _HALF * texts]
    if texts >= _SEVERAL and often:
        yield f"lines begin with {listed([repr(label) for label in often])}: this is part of the captions"
    marks = [match[1] for line in lines if (match := _MARK.match(line)) is not None]
    if texts >= _SEVERAL and len(marks) > _HALF * len(lines):
        yield f"lines begin with numbers or marks, such as {marks[0]!r}: they are part of the captions"


def _repaired(text: str) -> str:
    """Return a text in UTF-8 that was read as cp1252 or Latin-1, as it was meant; others as they are."""
    for encoding in ("cp1252", "latin-1"):
        try:
            return text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
    return text
