"""Text -> words. NLTK's tokenisers that need no download, lower-cased, punctuation dropped.

A tokeniser's name is kept in the vocabulary and in every score's signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

Tokeniser = Callable[[str], list[str]]

# name -> NLTK class. Loaded when first used: importing nltk takes a second.
TOKENISERS: dict[str, str] = {
    "treebank": "NLTKWordTokenizer",
    "wordpunct": "WordPunctTokenizer",
    "toktok": "ToktokTokenizer",
    "tweet": "TweetTokenizer",
}


@functools.cache
def tokeniser(name: str) -> Tokeniser:
    """The tokeniser `name`: lower-cases, splits, and drops tokens without a letter or digit."""
    import nltk.tokenize

    split = getattr(nltk.tokenize, TOKENISERS[name])().tokenize

    def tokenise(text: str) -> list[str]:
        return [token for token in split(text.lower()) if any(map(str.isalnum, token))]

    return tokenise
