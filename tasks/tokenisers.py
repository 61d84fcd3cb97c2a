"""Text -> words, by NLTK's tokenisers that need no download, lower-cased, punctuation dropped; words -> byte pairs.

A tokeniser's name is kept in the vocabulary and in every score's signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from models.vocabulary import WORD_END

if TYPE_CHECKING:
    from tasks.config import CaptionsConfig

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


class BytePairs:
    """Byte-pair encoding within words (Sennrich et al. 2016), learnt from words; what ends a word ends in `</w>`.

    Only the caption side needs it: a vocabulary of byte pairs is turned back into words without it.
    """

    def __init__(self, texts: list[list[str]], captions: CaptionsConfig) -> None:
        """texts: the train split's captions as words. captions: `merges`, the size, and `min_count` of a pair."""
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        self._tokenizer = Tokenizer(models.BPE(end_of_word_suffix=WORD_END))
        self._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            vocab_size=captions.merges,
            min_frequency=captions.min_count,
            end_of_word_suffix=WORD_END,
            show_progress=False,
        )
        self._tokenizer.train_from_iterator((" ".join(words) for words in texts), trainer)

    def __call__(self, words: list[str]) -> list[str]:
        pairs: list[str] = self._tokenizer.encode(" ".join(words)).tokens
        return pairs
