"""The result of captioning, and what captioners of every runtime have in common: this file needs no torch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from .options import Decoding
from .vocabulary import END, FORBIDDEN, Vocabulary

NO_WORDS = (*FORBIDDEN, END)  # tokens that are no part of a caption's text
_BATCH = 32  # photographs encoded and decoded at once
PictureT = TypeVar("PictureT")  # a picture decoded and resized, in the runtime's kind of array
GridT = TypeVar("GridT")  # grids in that kind


@dataclass(frozen=True)
class Captioned:
    """The result of captioning one photograph.

    tokens: the words or byte pairs of the caption. token_probabilities: of each of them, given the picture and the
    tokens before it. log_probability: of the caption, natural logarithm, END counted. confidence: the probability that
    the caption is acceptable; None where none was fitted. distance: of the photograph from those that the model was
    trained on, from 0 to 2 (`TrainingPictures.distances`); None where there is no confidence. alternatives: (caption,
    log-probability) of the next best captions. attention: the attention map of each token, (tokens, h, w) float32, each
    summing to 1; None if not requested. error: why there is no caption, or None.

    Where the confidence is less than was asked for, `caption` is the text for that, and there are no tokens and no
    alternatives.
    """

    caption: str = ""
    tokens: list[str] = field(default_factory=list)
    token_probabilities: list[float] = field(default_factory=list)
    log_probability: float = 0.0
    confidence: float | None = None
    distance: float | None = None
    alternatives: list[tuple[str, float]] = field(default_factory=list)
    attention: npt.NDArray[np.float32] | None = None
    error: str | None = None


class BaseCaptioner(ABC, Generic[PictureT, GridT]):
    """A model that captions encoded photographs. It has no state that calls change, so threads may share it.

    config: as saved, see the captioners. decoding: how it was evaluated. attends: whether its decoder attends to the
    grid before each word. confidence: None where its captions have none.
    """

    attends: bool
    confidence: Any

    def __init__(self, config: dict[str, Any], vocabulary: Vocabulary) -> None:
        self.config = config
        self.decoding = Decoding(**config["decoding"])
        self.vocabulary = vocabulary

    @property
    def takes_grids(self) -> bool:
        """Return whether it takes grids in place of photographs, because others made those it was trained on."""
        return takes_grids(self.config)

    def caption(self, photographs: Sequence[bytes], **decoding: Any) -> list[Captioned]:
        """Return a result for each encoded photograph (JPEG, PNG, WebP, ...), in order.

        decoding: as in `from_grid`. The result of a photograph that cannot be decoded has the reason as its `error`;
        the others get their captions. Without a backbone, each is a .npy file of a grid in place of a photograph.
        """
        results: list[Captioned] = []
        for start in range(0, len(photographs), _BATCH):
            results += self._caption_batch(photographs[start : start + _BATCH], decoding)
        return results

    def _caption_batch(self, photographs: Sequence[bytes], decoding: dict[str, Any]) -> list[Captioned]:
        """Return a result for each of at most `_BATCH` photographs."""
        results: list[Captioned | None] = []  # None where a caption is to come
        pictures: list[PictureT] = []
        for photograph in photographs:
            try:
                pictures.append(self._picture(photograph))
                results.append(None)
            except ValueError as error:
                results.append(Captioned(error=str(error)))
        if pictures:
            keys = [key_of(data) for data, result in zip(photographs, results, strict=True) if result is None]
            captions = iter(self.from_grid(self.encode(pictures), keys, **decoding))
            results = [next(captions) if result is None else result for result in results]
        return [result for result in results if result is not None]

    @abstractmethod
    def _picture(self, photograph: bytes) -> PictureT:
        """Return the photograph decoded and resized, or the given grid; ValueError if it cannot be decoded."""

    def _as_words(self, ids: Sequence[int], probabilities: Sequence[float], number: int) -> list[tuple[str, float]]:
        """Return the first `number` of these token ids that captions contain, as text with their probabilities."""
        found = [
            (self.vocabulary.tokens([token])[0], probability)
            for token, probability in zip(ids, probabilities, strict=True)
            if token not in NO_WORDS
        ]
        return found[:number]

    @abstractmethod
    def encode(self, pictures: list[PictureT]) -> GridT:
        """Return the grids (N, h, w, C) float16 of pictures, as `_picture` returns them."""

    def from_grid(
        self,
        grid: GridT,
        keys: Sequence[int] | None = None,
        attention: bool = False,
        min_confidence: float | None = None,
        otherwise: str = "",
        **decoding: Any,
    ) -> list[Captioned]:
        """Return a result for each cached grid of (N, h, w, C) float16.

        keys: `key_of` each photograph, for sampling. attention: whether to return attention maps; ValueError for a
        decoder without attention. min_confidence: from 0 to 1; a caption of which the model is less confident is
        replaced by the text `otherwise`; ValueError for a model that has no confidence. decoding: fields of
        Decoding, see `settings_of`. Raises ValueError for values that do not go together.
        """
        if min_confidence is not None and self.confidence is None:
            raise ValueError("min_confidence: the captions of this model have no confidence: its model card says why")
        if attention and not self.attends:
            raise ValueError(f"the decoder {self.config['decoder']['name']} has no attention, so no attention maps")
        results = self._caption_grids(grid, keys, attention, settings_of(self.decoding, decoding))
        return results if min_confidence is None else withheld(results, min_confidence, otherwise)

    def from_cached(self, grids: npt.NDArray[np.float16], keys: Sequence[int], **decoding: Any) -> list[Captioned]:
        """Return a result for each grid of a store, (N, h, w, C) float16, in order: as of the photographs themselves.

        keys: `key_of_digest` of each photograph. decoding: as in `from_grid`.
        """
        results: list[Captioned] = []
        for start in range(0, len(grids), _BATCH):
            part = slice(start, start + _BATCH)
            results += self.from_grid(self._as_grids(grids[part]), keys[part], **decoding)
        return results

    @abstractmethod
    def likely_words(self, grid: GridT, tokens: Sequence[str], number: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest tokens at each place of a caption, given the tokens before it, by teacher forcing.

        grid (1, h, w, C) float16: of its photograph. tokens: of the caption. number: of tokens at each place, fewer
        where the vocabulary has no more. Each has its probability; the likeliest comes first, and the end of the
        caption and tokens that no caption contains are left out.
        """

    @abstractmethod
    def _as_grids(self, grids: npt.NDArray[np.float16]) -> GridT:
        """Return grids (N, h, w, C) in the runtime's kind of array."""

    @abstractmethod
    def _caption_grids(
        self, grid: GridT, keys: Sequence[int] | None, attention: bool, settings: Decoding
    ) -> list[Captioned]:
        """Return a result for each grid, by these settings of the search: see `from_grid`."""


def takes_grids(config: Mapping[str, Any]) -> bool:
    """Return whether a captioner that was saved with this config takes grids in place of photographs."""
    return "shape" in config["backbone"]


def settings_of(evaluated: Decoding, given: Mapping[str, Any]) -> Decoding:
    """Return the settings of a search. evaluated: those that the model was evaluated with. given: fields of Decoding.

    Fields left out, or None, are as evaluated, except that a beam selects beam search, and a temperature, top_k or
    top_p selects sampling, unless `search` is given; and that n_best widens a beam that is not given; and that sampling
    has no consensus. Raises ValueError for values that do not go together.
    """
    overrides = {name: value for name, value in given.items() if value is not None}
    for_sampling = [name for name in ("temperature", "top_k", "top_p") if name in overrides]
    if "search" not in overrides and for_sampling and "beam" in overrides:
        raise ValueError(
            f"beam and {for_sampling[0]} do not go together: give beam for beam search, "
            "or temperature, top_k or top_p for sampling"
        )
    if for_sampling or "beam" in overrides:
        overrides.setdefault("search", "sample" if for_sampling else "beam")
    if "beam" not in overrides and overrides.get("search", evaluated.search) == "beam":
        overrides["beam"] = max(evaluated.beam, overrides.get("n_best", 1))
    # Limit the evaluated model's n_best and min_length to what the requested beam and max_length allow.
    if "n_best" not in overrides and "beam" in overrides:
        overrides["n_best"] = min(evaluated.n_best, overrides["beam"])
    if overrides.get("search") == "sample":
        overrides.setdefault("consensus", False)
    if "min_length" not in overrides and "max_length" in overrides:
        overrides["min_length"] = min(evaluated.min_length, overrides["max_length"] - 1)
    return replace(evaluated, **overrides)


def withheld(results: Sequence[Captioned], min_confidence: float, otherwise: str) -> list[Captioned]:
    """Return the results, with the text `otherwise` in place of captions of less confidence than asked for."""
    return [
        replace(
            result,
            caption=otherwise,
            tokens=[],
            token_probabilities=[],
            alternatives=[],
            attention=None if result.attention is None else result.attention[:0],
        )
        if result.confidence is not None and result.confidence < min_confidence
        else result
        for result in results
    ]


def key_of(photograph: bytes) -> int:
    """Return the number that identifies a photograph in sampling.

    It is computed from the content, so that it is the same in every run and batch.
    """
    return key_of_digest(hashlib.sha256(photograph).hexdigest())


def key_of_digest(digest: str) -> int:
    """Return the `key_of` a photograph, given its SHA-256 digest (hex)."""
    return int(digest[:12], 16)
