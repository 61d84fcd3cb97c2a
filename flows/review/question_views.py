"""What a person sees of a question: the photograph, and what the model says about it in addition to its caption."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from PIL import Image

from models.captioned import key_of
from models.encoded_pictures import decode
from tasks.common.errors import AttendError
from tasks.review.queue import Question

_SIDE = 1600  # pixels of the longer side of a photograph on the page
_CAPTIONS, _WORDS = 5, 6  # captions of a picture, words at each position


class QuestionView(TypedDict):
    """The page's data for a question.

    alternatives: the next best captions. words: of the caption, if each token is a word. likely: at each position, the
    word itself and other likely words. attention: for each word a map, a list of rows. fit: how the photograph was made
    square.
    """

    picture: str
    name: str
    shown: str
    alternatives: list[str]
    words: list[str]
    likely: list[list[str]]
    attention: list[list[list[float]]]
    fit: str


class QuestionViews:
    """The photographs of a queue, and the captioner that captioned them."""

    def __init__(self, files: Mapping[str, Path], captioner: Any) -> None:
        """files: of the photographs, by the SHA-256 of their contents."""
        self._files, self._captioner = files, captioner
        self._turn = threading.Lock()  # one forward pass at a time, because it uses all cores

    def read(self, picture: str, name: str) -> bytes:
        """Return the bytes of a photograph; AttendError if its file is missing or has changed."""
        try:
            data = self._files[picture].read_bytes()
        except (KeyError, OSError):
            raise AttendError(f"{name}: is not there any more") from None
        if hashlib.sha256(data).hexdigest() != picture:
            raise AttendError(f"{name}: is another photograph than the one that was captioned")
        return data

    def photograph(self, question: Question) -> bytes:
        """Return the photograph as JPEG, upright, no larger than a screen, and without metadata.

        Raises AttendError if its file is missing or has changed.
        """
        image = Image.fromarray(decode(self.read(question.picture, question.name)))
        image.thumbnail((_SIDE, _SIDE))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        return file.getvalue()

    def view(self, question: Question) -> QuestionView:
        """Return the page's data for a question; AttendError if its file is missing or has changed.

        If the model now gives another caption, the question's caption is shown without its words.
        """
        data, captioner = self.read(question.picture, question.name), self._captioner
        evaluated = captioner.decoding
        several = {"n_best": min(_CAPTIONS, evaluated.beam)} if evaluated.search == "beam" else {}
        with self._turn:
            grid = captioner.grids([data])
            [result] = captioner.from_grid(grid, [key_of(data)], attention=captioner.attends, **several)
            by_words = result.caption == question.shown == " ".join(result.tokens)
            likely = self._likely(grid, result.tokens) if by_words else []
        maps = result.attention.tolist() if by_words and result.attention is not None else []
        return {
            "picture": question.picture,
            "name": question.name,
            "shown": question.shown,
            "alternatives": [text for text, _ in result.alternatives if text != question.shown],
            "words": result.tokens if by_words else [],
            "likely": likely,
            "attention": maps,
            "fit": captioner.config["backbone"]["fit"],
        }

    def _likely(self, grid: Any, tokens: list[str]) -> list[list[str]]:
        """Return the likely words at each position of a caption."""
        places = self._captioner.likely_words(grid, tokens, _WORDS)
        likely = [[word for word, _ in words_here] for words_here in places]
        return [words if token in words else [token, *words[:-1]] for token, words in zip(tokens, likely, strict=True)]
