"""What a person sees of a question: the photograph, and what the model says of it beside its caption."""

from __future__ import annotations

import hashlib
import io
import threading
from pathlib import Path
from typing import Any, TypedDict

from PIL import Image

from models.captioned import Captioned, key_of
from models.encoded_pictures import decode
from tasks.review.queue import Question

_SIDE = 1600  # pixels of a photograph's longer side, as it is sent
_CAPTIONS, _WORDS = 5, 6  # captions of a picture, words at each place


class Look(TypedDict):
    """What the page shows of a question.

    alternatives: the next best captions. words: of the caption, where each token is one; likely: at each of them, the
    likeliest words. attention: a map, a list of rows, for each word. fit: how the photograph was made square.
    """

    picture: str
    name: str
    shown: str
    alternatives: list[str]
    words: list[str]
    likely: list[list[str]]
    attention: list[list[list[float]]]
    fit: str


class Looks:
    """The photographs of a folder, and the captioner that captioned them."""

    def __init__(self, folder: Path, captioner: Any) -> None:
        self._folder, self._captioner = folder, captioner
        self._turn = threading.Lock()  # a pass uses all cores

    def photograph(self, question: Question) -> bytes:
        """Return the photograph as JPEG, upright and no larger than a screen, without what the camera noted.

        Raises ValueError where its file is not there, or is another one.
        """
        image = Image.fromarray(decode(self._read(question)))
        image.thumbnail((_SIDE, _SIDE))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        return file.getvalue()

    def look(self, question: Question) -> Look:
        """Return what the page shows of a question; ValueError where its file is not there, or is another one."""
        data, captioner = self._read(question), self._captioner
        evaluated = captioner.decoding
        several = {"n_best": min(_CAPTIONS, evaluated.beam)} if evaluated.search == "beam" else {}
        with self._turn:
            grid = captioner.grids([data])
            [result] = captioner.from_grid(grid, [key_of(data)], attention=captioner.attends, **several)
            by_words = result.caption == question.shown == " ".join(result.tokens)
            likely = self._likely(grid, result.tokens) if by_words else []
        return {
            "picture": question.picture,
            "name": question.name,
            "shown": question.shown,
            "alternatives": [text for text, _ in result.alternatives if text != question.shown],
            "words": result.tokens if by_words else [],
            "likely": likely,
            "attention": _maps(result) if by_words else [],
            "fit": captioner.config["backbone"]["fit"],
        }

    def _likely(self, grid: Any, tokens: list[str]) -> list[list[str]]:
        """Return the likeliest words at each place of a caption; none for a model registered before it told them."""
        if not hasattr(self._captioner, "likely_words"):
            return []
        return [[word for word, _ in place] for place in self._captioner.likely_words(grid, tokens, _WORDS)]

    def _read(self, question: Question) -> bytes:
        """Return the bytes of a photograph; ValueError where it is gone, or another one is there under its name."""
        try:
            data = (self._folder / question.name).read_bytes()
        except OSError as error:
            raise ValueError(f"{question.name}: {error.strerror or 'cannot be read'}") from None
        if hashlib.sha256(data).hexdigest() != question.picture:
            raise ValueError(f"{question.name}: is another photograph than the one that was captioned")
        return data


def _maps(result: Captioned) -> list[list[list[float]]]:
    return [] if result.attention is None else result.attention.tolist()
