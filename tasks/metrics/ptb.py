"""Tokenisation of captions for scoring, as in the COCO caption toolkit: Penn Treebank words in lower case.

The toolkit runs Stanford's PTBTokenizer 3.4.1 and drops punctuation; NLTK's tokenisers differ from it in symbols,
brackets, abbreviations and quotes. bench/quality/toolkit.py compares this tokeniser with the toolkit's.
"""

from __future__ import annotations

import re
import unicodedata

import regex

from models.vocabulary import SPACELESS

# Brackets are kept: the toolkit drops them by their names in capitals, but only after lower-casing the text.
_DROPPED = frozenset(
    (
        *("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";", '"'),
        *"，。！？；：、…·・「」『』《》（）؟،؛।॥၊။។៕",  # noqa: RUF001 -- the same in other scripts
    )
)
_REPLACEMENTS = {
    "(": "-lrb-",
    ")": "-rrb-",
    "[": "-lsb-",
    "]": "-rsb-",
    "{": "-lcb-",
    "}": "-rcb-",
    "½": "1/2",
    "€": "$",
    "£": "#",
}
_ASCII = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": " -- ", "\u2014": " -- "})
_TOKEN = re.compile(
    r"""
      https?://\S+ | [\w.+-]+@[\w-]+(?:\.[\w-]+)+               # addresses
    | [\#@][^\W\d]\w*                                           # tags
    | -(?:[lr][rsc]b)-                                          # brackets in a text that was tokenised before
    | (?:[^\W\d_]\.){2,} | (?<![^\W_])[^\W\d_]\.                # u.s.   a.
    | \b(?:mr|mrs|ms|dr|st|jr|sr|prof|gen|col|capt|lt|sgt|rev|sen|gov|ave|blvd|vs|inc|co|corp|ltd|etc)\.
    | no\.(?=\s*\d)
    | 'n' | (?<!\w)'\d0s\b | \bo'clock\b                        # rock 'n' roll   the '90s
    | \bcan(?=not\b) | \bgon(?=na\b) | \bgot(?=ta\b) | \bwan(?=na\b) | \blem(?=me\b) | \bgim(?=me\b)
    | (?<!\w)'t(?=(?:is|was)\b)                                 # 't is
    | \by'(?=all\b) | \bol'(?!\w)
    | [^\W_]+?(?=n't\b) | n't\b                                 # do n't
    | '(?:s|m|d|re|ve|ll)(?![^\W_])                             # man 's
    | \d+(?:[.,:/]\d+)+
    | [^\W_]+ (?: [-/&?!.][^\W_]+ | (?<=[a-z])'(?!(?:s|m|d|re|ve|ll)(?![^\W_])|n')[^\W_]+ )*   # t-shirt   and/or   d'or
    | \.\.\. | -+ | \S
    """,
    re.VERBOSE,
)


_MARKED = regex.compile(r"[\w\p{M}]+(?:[-'][\w\p{M}]+)*|\S")


def tokenize(text: str) -> list[str]:
    """Return the words of a caption in lower case, without punctuation.

    In scripts without spaces between words, such as Chinese, each character is a word.
    """
    text = unicodedata.normalize("NFC", text)
    tokens = [_REPLACEMENTS.get(token, token) for part in _parts(text) for token in _tokens(part)]
    return [token for token in tokens if token not in _DROPPED]


def _tokens(part: str) -> list[str]:
    if SPACELESS.match(part):
        return [part]
    text = part.lower().translate(_ASCII)
    # The toolkit's rules do not count vowel signs, which are separate marks in Indic scripts, as letters.
    tokens: list[str] = _MARKED.findall(text) if regex.search(r"\p{M}", text) else _TOKEN.findall(text)
    return tokens


def _parts(text: str) -> list[str]:
    """Split off each character of scripts without spaces between words; the text between them stays whole."""
    if not SPACELESS.search(text):
        return [text]
    parts: list[str] = []
    for character in regex.findall(r"\X", text):  # with its accents and vowel signs
        if parts and not SPACELESS.match(character) and not SPACELESS.match(parts[-1]):
            parts[-1] += character
        else:
            parts.append(character)
    return parts
