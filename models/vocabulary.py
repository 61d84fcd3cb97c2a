"""The vocabulary: the words a captioner knows, and their ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

NULL, START, END, UNK = range(4)
FORBIDDEN = (NULL, START, UNK)  # tokens that no decoded caption may contain
SPECIAL = ("<NULL>", "<START>", "<END>", "<UNK>")
WORD_END = "</w>"  # the suffix of a byte pair at the end of a word
# Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese and Chinese.
SPACELESS = re.compile(
    "[\u0e01-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


def needs_space(before: str, after: str) -> bool:
    """Return whether two consecutive words are written with a space between them, in their script."""
    touching = before[-1:] + after[:1]
    return not (SPACELESS.search(touching) or any(map(str.isspace, touching)))


@dataclass(frozen=True)
class Vocabulary:
    """A mapping of tokens to ids: the special tokens 0 to 3, then `words` in order.

    words: words, or byte pairs if settings["units"] is `bpe`. settings: the tokeniser's name and its settings.
    settings["joined"] is how tokens are joined into a text: with `spaces` between them (the default), as their `script`
    writes them, or with `nothing`, if they contain their spaces.
    """

    words: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words, len(SPECIAL))}

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.words)

    def id_of(self, word: str) -> int:
        return self._ids.get(word, UNK)

    def encode(self, words: Sequence[str], max_tokens: int) -> list[int]:
        """Return the ids of START, the first `max_tokens` words and END, padded with NULL to max_tokens + 2 ids."""
        ids = [START, *(self.id_of(word) for word in words[:max_tokens]), END]
        return ids + [NULL] * (max_tokens + 2 - len(ids))

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of the ids up to END, without START and NULL; UNK becomes `<UNK>`.

        Byte pairs are joined into words.
        """
        tokens = self.tokens(ids)
        if self.settings.get("units") != "bpe" or self.settings.get("joined") == "nothing":
            return tokens
        return "".join(tokens).replace(SPECIAL[UNK], SPECIAL[UNK] + WORD_END).replace(WORD_END, " ").split()

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of the caption with these ids, up to END."""
        joined, words = self.settings.get("joined", "spaces"), self.decode(ids)
        if joined == "spaces":
            return " ".join(words)
        if joined == "nothing":
            return "".join(words)
        text = ""
        for word in words:
            text += f" {word}" if text and needs_space(text, word) else word
        return text

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of the ids up to END, without START and NULL; byte pairs are not joined."""
        tokens = []
        for token_id in ids:
            if token_id == END:
                break
            if token_id not in (NULL, START):
                tokens.append(SPECIAL[token_id] if token_id < len(SPECIAL) else self.words[token_id - len(SPECIAL)])
        return tokens

    def to_json(self) -> str:
        return json.dumps({"settings": self.settings, "special": SPECIAL, "words": self.words}, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Vocabulary:
        values = json.loads(text)
        return Vocabulary(tuple(values["words"]), values["settings"])
