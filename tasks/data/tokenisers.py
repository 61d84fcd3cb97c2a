"""Text -> words, by NLTK's tokenisers that need no download, lower-cased, punctuation dropped; words -> byte pairs.

A tokeniser's name is kept in the vocabulary and in every score's signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from models.vocabulary import SPECIAL, UNK, WORD_END
from tasks.config.schema import CaptionsConfig
from tasks.config.tokenisers import TOKENISERS

Tokeniser = Callable[[str], list[str]]


@functools.cache
def tokeniser(name: str) -> Tokeniser:
    """The tokeniser `name`: lower-cases, splits, and drops tokens without a letter or digit.

    A caption that holds `<UNK>`, as published id tensors do, keeps it whole: it never becomes a word.
    """
    import nltk.tokenize

    split = getattr(nltk.tokenize, TOKENISERS[name])().tokenize

    def tokenise(text: str) -> list[str]:
        known = [split(part.lower()) for part in text.split(SPECIAL[UNK])]
        tokens = [token for token in known[0] if any(map(str.isalnum, token))]
        for part in known[1:]:
            tokens += [SPECIAL[UNK], *(token for token in part if any(map(str.isalnum, token)))]
        return tokens

    return tokenise


# A private character ends a word while pairs are learnt: the library's own suffix leaves ties between merges to a
# randomly seeded hash map, and the same captions would give different pairs on different days.
_END = "\ue000"


class BytePairs:
    """Byte-pair encoding within words (Sennrich et al. 2016), learnt from words; what ends a word ends in `</w>`.

    Only the caption side needs it: a vocabulary of byte pairs is turned back into words without it.
    """

    def __init__(self, texts: list[list[str]], captions: CaptionsConfig) -> None:
        """texts: the train split's captions as words. captions: `merges`, the size, and `min_count` of a pair."""
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        self._tokenizer = Tokenizer(models.BPE())
        self._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            vocab_size=captions.merges,
            min_frequency=captions.min_count,
            show_progress=False,
        )
        marked = (word + _END for words in texts for word in words if word != SPECIAL[UNK])
        self._tokenizer.train_from_iterator(marked, trainer)
        self._of_word: dict[str, list[str]] = {SPECIAL[UNK]: [SPECIAL[UNK]]}

    def pairs(self) -> list[str]:
        """All of them, letters too, those that no caption of the train split needs among them."""
        return [pair.replace(_END, WORD_END) for pair in self._tokenizer.get_vocab()]

    def __call__(self, words: list[str]) -> list[str]:
        for word in words:
            if word not in self._of_word:
                pairs = self._tokenizer.encode(word + _END).tokens
                self._of_word[word] = [pair.replace(_END, WORD_END) for pair in pairs]
        return [pair for word in words for pair in self._of_word[word]]
