"""Text -> words or characters, by tokenisers that need no download; words or whole texts -> byte pairs.

A tokeniser's name is recorded in the vocabulary and in every score's signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import groupby

import regex

from models.vocabulary import SPECIAL, UNK, WORD_END, needs_space
from tasks.config.stages import NLTK_TOKENISERS, CaptionsConfig

Tokeniser = Callable[[str], list[str]]


@functools.cache
def tokeniser(name: str) -> Tokeniser:
    """Return the tokeniser `name`.

    NLTK's and `unicode` lower-case a text and drop tokens without a letter or digit. `unicode` splits at the word
    boundaries of Unicode's annex 29, which in Chinese, Japanese and Thai are between single characters. `whitespace`
    and `characters` keep the text unchanged: their tokens, joined again, are the text, with single spaces.

    All keep `<UNK>`, which captions decoded from published id tensors contain, as one token, so that it never becomes
    a word of the vocabulary.
    """
    split = _splitter(name)

    def tokenise(text: str) -> list[str]:
        first, *rest = " ".join(text.split()).split(SPECIAL[UNK])
        tokens = split(first)
        for part in rest:
            tokens += [SPECIAL[UNK], *split(part)]
        return tokens

    return tokenise


def _splitter(name: str) -> Tokeniser:
    """Return the tokeniser `name` for texts without `<UNK>`."""
    if name == "whitespace":
        return str.split
    if name == "characters":
        return lambda text: regex.findall(r"\X", text)  # grapheme clusters, including spaces
    if name == "unicode":
        return _words
    import nltk.tokenize

    split = getattr(nltk.tokenize, NLTK_TOKENISERS[name])().tokenize
    return lambda text: [token for token in split(text.lower()) if _has_letter(token)]


def _has_letter(token: str) -> bool:
    """Return whether a token has a letter or digit."""
    return any(map(str.isalnum, token))


def _words(text: str) -> list[str]:
    """Return the words of a text, and the spaces that its script does not imply between such words."""
    words: list[str] = []
    is_apart = False
    for piece in regex.split(r"(?V1w)\b", text.lower()):
        if _has_letter(piece):
            if is_apart and words and not needs_space(words[-1], piece):
                words.append(" ")
            words.append(piece)
            is_apart = False
        elif piece.isspace():
            is_apart = True
    return words


# A private-use character marks the end of a word while pairs are learnt: with the library's end-of-word suffix, ties
# between merges are broken by a randomly seeded hash map, so the same captions would give different pairs in each run.
_END_MARK = "\ue000"


class BytePairs:
    """A byte-pair encoding (Sennrich et al. 2016), learnt from captions.

    Pairs are within words, and those at the end of a word end in `</w>`. In captions that are split into characters,
    they are within the text between two spaces, including the first space, which in scripts without spaces is the whole
    caption. The encoding is needed only to encode captions: byte pairs are decoded to text without it.
    """

    def __init__(self, texts: list[list[str]], captions: CaptionsConfig) -> None:
        """Learn pairs. texts: the train split's captions as tokens. captions: `merges`, and `min_count` of a pair."""
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

        self._of_words = captions.tokeniser != "characters"
        self._tokenizer = Tokenizer(models.BPE())
        self._tokenizer.pre_tokenizer = (
            pre_tokenizers.WhitespaceSplit()
            if self._of_words
            else pre_tokenizers.Split(Regex(r" ?[^ ]+"), behavior="isolated")
        )
        trainer = trainers.BpeTrainer(
            vocab_size=captions.merges,
            min_frequency=captions.min_count,
            show_progress=False,
        )
        pieces = (piece for text in texts for piece in self._pieces(text) if piece != SPECIAL[UNK])
        self._tokenizer.train_from_iterator(pieces, trainer)
        self._pairs_by_piece: dict[str, list[str]] = {SPECIAL[UNK]: [SPECIAL[UNK]]}

    def _pieces(self, tokens: list[str]) -> list[str]:
        """Return the parts of a caption that pairs stay within: its words, or its text split at `<UNK>`."""
        if self._of_words:
            return [word if word == SPECIAL[UNK] else word + _END_MARK for word in tokens]
        return [SPECIAL[UNK] if unknown else "".join(group) for unknown, group in groupby(tokens, SPECIAL[UNK].__eq__)]

    def pairs(self) -> list[str]:
        """Return all pairs and single letters, including those that occur in no encoded caption of the train split."""
        return [pair.replace(_END_MARK, WORD_END) for pair in self._tokenizer.get_vocab()]

    def __call__(self, tokens: list[str]) -> list[str]:
        """Return a caption's tokens as byte pairs; `<UNK>` is not split."""
        pieces = self._pieces(tokens)
        for piece in pieces:
            if piece not in self._pairs_by_piece:
                pairs = self._tokenizer.encode(piece).tokens
                self._pairs_by_piece[piece] = [pair.replace(_END_MARK, WORD_END) for pair in pairs]
        return [pair for piece in pieces for pair in self._pairs_by_piece[piece]]
