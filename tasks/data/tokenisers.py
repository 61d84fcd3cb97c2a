"""Text -> lower-case words without punctuation, by NLTK tokenisers that need no download; words -> byte pairs.

A tokeniser's name is recorded in the vocabulary and in every score's signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from models.vocabulary import SPECIAL, UNK, WORD_END
from tasks.config.stages import CaptionsConfig
from tasks.config.tokeniser_names import TOKENISERS

Tokeniser = Callable[[str], list[str]]


@functools.cache
def tokeniser(name: str) -> Tokeniser:
    """Return the tokeniser `name`, which lower-cases and splits a text, and drops tokens without a letter or digit.

    It leaves `<UNK>`, which captions decoded from published id tensors contain, as one token, so that it never becomes
    a word of the vocabulary.
    """
    import nltk.tokenize

    split = getattr(nltk.tokenize, TOKENISERS[name])().tokenize

    def tokenise(text: str) -> list[str]:
        parts = [split(part.lower()) for part in text.split(SPECIAL[UNK])]
        tokens = [token for token in parts[0] if any(map(str.isalnum, token))]
        for part in parts[1:]:
            tokens += [SPECIAL[UNK], *(token for token in part if any(map(str.isalnum, token)))]
        return tokens

    return tokenise


# A private-use character marks the end of a word while pairs are learnt: with the library's end-of-word suffix, ties
# between merges are broken by a randomly seeded hash map, so the same captions would give different pairs in each run.
_END_MARK = "\ue000"


class BytePairs:
    """A byte-pair encoding within words (Sennrich et al. 2016), learnt from words; word-final pairs end in `</w>`.

    It is needed only to encode captions: token ids of byte pairs are turned back into words without it.
    """

    def __init__(self, texts: list[list[str]], captions: CaptionsConfig) -> None:
        """texts: the train split's captions as words. captions: gives `merges`, the size, and `min_count` of a pair."""
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        self._tokenizer = Tokenizer(models.BPE())
        self._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            vocab_size=captions.merges,
            min_frequency=captions.min_count,
            show_progress=False,
        )
        marked_words = (word + _END_MARK for words in texts for word in words if word != SPECIAL[UNK])
        self._tokenizer.train_from_iterator(marked_words, trainer)
        self._pairs_by_word: dict[str, list[str]] = {SPECIAL[UNK]: [SPECIAL[UNK]]}

    def pairs(self) -> list[str]:
        """Return all pairs and single letters, including those that occur in no encoded caption of the train split."""
        return [pair.replace(_END_MARK, WORD_END) for pair in self._tokenizer.get_vocab()]

    def __call__(self, words: list[str]) -> list[str]:
        """Return the words as byte pairs; `<UNK>` stays whole."""
        for word in words:
            if word not in self._pairs_by_word:
                pairs = self._tokenizer.encode(word + _END_MARK).tokens
                self._pairs_by_word[word] = [pair.replace(_END_MARK, WORD_END) for pair in pairs]
        return [pair for word in words for pair in self._pairs_by_word[word]]
