"""The result of captioning, and the captioner base class that all runtimes share; this file needs no torch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .confidence import Confidence, features_of
from .encoded_pictures import decode, resize
from .given_grids import read_grid
from .neighbours import Memory, NearestPictures, pool
from .options import Decoding, Neighbours
from .picture_formats import Interpolation
from .ranking import Copy, Ranked, as_captions, rank, support_of, weights_of
from .search import Caption, State, Steps, teacher_force
from .search import decode as decode_captions
from .vocabulary import END, FORBIDDEN, SPECIAL, START, UNK, Vocabulary

NO_WORDS = (*FORBIDDEN, END)  # tokens that are not part of a caption's text
_BATCH = 32  # photographs encoded and decoded at once
_NOT_FITTED_TO = ("n_best", "seed")  # settings of a search that do not change how good its best captions are
_NONE_FITTED = "none was fitted: the model card says why"
_SUPPORTING = 3  # similar training pictures that explain a caption

Picture = npt.NDArray[Any]  # a photograph decoded and resized, uint8 (S, S, 3), or a given grid, float16 (h, w, C)
Grids = npt.NDArray[np.float16]  # (N, h, w, C)


@dataclass(frozen=True)
class SupportingPicture:
    """A training picture whose captions support a caption.

    picture: its number in the memory. captions: its captions. cosine: its similarity to the photograph. support: the
    mean CIDEr-D of the caption against these captions, from 0 to 1.
    """

    picture: int
    captions: list[str]
    cosine: float
    support: float


@dataclass(frozen=True)
class Captioned:
    """The result of captioning one photograph.

    tokens: the words or byte pairs of the caption. token_probabilities: each token's probability, given the picture and
    the tokens before it. log_probability: the natural logarithm of the caption's probability, including END.
    confidence: the probability that the caption is acceptable, or None. no_confidence: why there is no confidence, or
    None: none was fitted, or it was fitted to captions of another search. distance: between the photograph and the
    training pictures, from 0 to 2 (`NearestPictures.distances`). alternatives: (caption, log-probability) of the next
    best captions. attention: the attention map of each token, (tokens, h, w) float32, each summing to 1; None if not
    requested. supporting: the training pictures that support the caption the most; None if not requested. error: why
    there is no caption, or None.

    If the confidence is below `min_confidence`, `caption` is the replacement text, without tokens and alternatives.
    """

    caption: str = ""
    tokens: list[str] = field(default_factory=list)
    token_probabilities: list[float] = field(default_factory=list)
    log_probability: float = 0.0
    confidence: float | None = None
    no_confidence: str | None = None
    distance: float | None = None
    alternatives: list[tuple[str, float]] = field(default_factory=list)
    attention: npt.NDArray[np.float32] | None = None
    supporting: list[SupportingPicture] | None = None
    error: str | None = None


class BaseCaptioner(ABC):
    """A model that captions encoded photographs. Calls do not change its state, so threads may share it.

    config: as saved, see the subclasses. decoding: the settings it was evaluated with. memory: its training pictures.
    neighbours: how similar training pictures rank captions; None if they do not. attends: whether the decoder attends
    to the grid before each word. attention_grid: the side of the attended positions; None for the grid's own.
    interpolation: how photographs are resized. steps: the decoder's. confidence: None if captions have none.
    """

    attends: bool
    attention_grid: int | None
    interpolation: Interpolation
    steps: Steps

    def __init__(
        self, config: dict[str, Any], vocabulary: Vocabulary, memory: Memory, confidence: Confidence | None
    ) -> None:
        self.config = config
        self.decoding = Decoding(**config["decoding"])
        self.neighbours = None if config["neighbours"] is None else Neighbours(**config["neighbours"])
        self.vocabulary = vocabulary
        self.memory = memory
        self.confidence = confidence

    @property
    def takes_grids(self) -> bool:
        """Return whether it takes grids in place of photographs, because it was trained on grids made elsewhere."""
        return takes_grids(self.config)

    def caption(self, photographs: Sequence[bytes], **decoding: Any) -> list[Captioned]:
        """Return a result for each encoded photograph (JPEG, PNG, WebP, ...), in order.

        decoding: as in `from_grid`. The result of a photograph that cannot be decoded has the reason as its `error`;
        the others get their captions. Without a backbone, each item is the .npy file of a grid.
        """
        results: list[Captioned] = []
        for start in range(0, len(photographs), _BATCH):
            results += self._caption_batch(photographs[start : start + _BATCH], decoding)
        return results

    def _caption_batch(self, photographs: Sequence[bytes], decoding: dict[str, Any]) -> list[Captioned]:
        """Return a result for each of at most `_BATCH` photographs."""
        pictures: list[Picture] = []
        keys: list[int] = []
        errors: list[str | None] = []  # one per photograph; None if it gets a caption
        for photograph in photographs:
            try:
                pictures.append(self._picture(photograph))
                keys.append(key_of(photograph))
                errors.append(None)
            except ValueError as error:
                errors.append(str(error))
        captions = iter(self.from_grid(self.encode(pictures), keys, **decoding) if pictures else [])
        return [next(captions) if error is None else Captioned(error=error) for error in errors]

    def grids(self, photographs: Sequence[bytes]) -> Grids:
        """Return the grids (N, h, w, C) of encoded photographs; ValueError if one cannot be decoded."""
        return self.encode([self._picture(photograph) for photograph in photographs])

    def _picture(self, photograph: bytes) -> Picture:
        """Return the photograph decoded and resized, or the given grid; ValueError if it cannot be decoded."""
        spec = self.config["backbone"]
        if self.takes_grids:
            return read_grid(photograph, spec["shape"])
        return resize(decode(photograph), spec["image_size"], spec["fit"], self.interpolation)

    @abstractmethod
    def encode(self, pictures: list[Picture]) -> Grids:
        """Return the grids (N, h, w, C) of pictures, as `_picture` returns them."""

    def from_grid(
        self,
        grid: Grids,
        keys: Sequence[int] | None = None,
        attention: bool = False,
        explain: bool = False,
        min_confidence: float | None = None,
        otherwise: str = "",
        **decoding: Any,
    ) -> list[Captioned]:
        """Return a result for each cached grid of (N, h, w, C) float16.

        keys: `key_of` each photograph, for sampling. attention: whether to return attention maps; ValueError for a
        decoder without attention. explain: whether to return the training pictures that support a caption; ValueError
        if neighbours do not rank captions. min_confidence: from 0 to 1; captions of lower confidence are replaced by
        the text `otherwise`; ValueError if captions of this model or this search have no confidence. decoding:
        fields of Decoding, see `settings_of`. Raises ValueError for values that do not go together.
        """
        settings = settings_of(self.decoding, decoding)
        no_confidence = self._why_no_confidence(settings)
        if min_confidence is not None and no_confidence is not None:
            whose = "of this model" if self.confidence is None else "of this search"
            raise ValueError(f"min_confidence: the captions {whose} have no confidence: {no_confidence}")
        if attention and not self.attends:
            raise ValueError(f"the decoder {self.config['decoder']['name']} has no attention, so no attention maps")
        start = self.steps.start(np.asarray(grid, np.float32))
        captions = decode_captions(self.steps, start, len(grid), settings, keys)
        number = self.neighbours.number if self.neighbours is not None else 1
        nearest = self.memory.look_up(pool(np.asarray(grid)), number)
        ranked = self._ranked(start, captions, nearest, settings)
        best = [item.captions[0] for item in ranked]
        confidences: Sequence[float | None] = [None] * len(best)
        if self.confidence is not None and no_confidence is None:
            blind = self._blind_start if self.confidence.needs_gain else None
            similarities = np.array([item.similarity for item in ranked], np.float32)
            features = features_of(self.steps, blind, nearest.distances, similarities, best)
            confidences = self.confidence(features).tolist()
        maps = self._maps(start, best, grid.shape[1:3]) if attention else [None] * len(best)
        results = [
            replace(
                self._result(item.captions[: settings.n_best]),
                confidence=confidence,
                no_confidence=no_confidence,
                distance=distance,
                attention=attention_map,
                supporting=self._supporting(item) if explain else None,
            )
            for item, confidence, distance, attention_map in zip(
                ranked, confidences, nearest.distances.tolist(), maps, strict=True
            )
        ]
        return results if min_confidence is None else withhold(results, min_confidence, otherwise)

    def _why_no_confidence(self, settings: Decoding) -> str | None:
        """Return why captions decoded with these settings have no confidence; None if they have one."""
        if self.confidence is None:
            return _NONE_FITTED
        evaluated = {name: value for name, value in vars(self.decoding).items() if name not in _NOT_FITTED_TO}
        changed = [f"{name}={value}" for name, value in evaluated.items() if getattr(settings, name) != value]
        return f"it was fitted to captions of {', '.join(changed)}" if changed else None

    def _ranked(
        self, start: State, candidates: Sequence[list[Caption]], nearest: NearestPictures, settings: Decoding
    ) -> list[Ranked]:
        """Return the ranked captions of each of N pictures.

        start: the state before the first word. nearest: the most similar training pictures.
        """
        if not settings.neighbours:
            return [Ranked(captions) for captions in candidates]
        if self.neighbours is None or self.memory.captions is None:
            raise ValueError("neighbours: this model consults none: the model card says why")

        def score_copies(pictures: list[int], copies: list[Copy]) -> list[Caption]:
            return as_captions(self.steps, start.keep(np.array(pictures)), copies)

        return rank(self.memory, nearest, candidates, self.neighbours, settings, score_copies)

    def _supporting(self, ranked: Ranked) -> list[SupportingPicture]:
        """Return the training pictures that most support the best caption of a picture, strongest first."""
        opinion, neighbours, stored = ranked.opinion, self.neighbours, self.memory.captions
        if opinion is None or neighbours is None or stored is None:
            raise ValueError("neighbours: none rank these captions, so none explain them: the model card says why")
        support = support_of(stored, ranked.captions[0], opinion.pictures)
        weights = weights_of(opinion.cosines, neighbours.temperature)
        supporting = []
        for index in np.argsort(-support * weights, kind="stable")[:_SUPPORTING]:
            rows = stored.of(opinion.pictures[[index]]).tokens
            texts = [self.vocabulary.text(row[row >= 0].tolist()).replace(SPECIAL[UNK], "...") for row in rows]
            number = int(opinion.pictures[index])
            supporting.append(SupportingPicture(number, texts, float(opinion.cosines[index]), float(support[index])))
        return supporting

    @cached_property
    def _blind_start(self) -> State:
        """Return the state before the first word for the mean grid of the training pictures."""
        start: State = self.steps.start(self.memory.grid[None])
        return start

    def _maps(self, start: State, captions: Sequence[Caption], sides: Sequence[int]) -> list[npt.NDArray[np.float32]]:
        """Return the attention maps (tokens, h, w) of one caption per picture. sides: (h, w) of the grid."""
        _, alphas = teacher_force(self.steps, start, [[caption.with_end] for caption in captions], with_alphas=True)
        height, width = sides if self.attention_grid is None else (self.attention_grid,) * 2
        lengths = [len(caption.tokens) for caption in captions]
        return [row[0, :length].reshape(length, height, width) for row, length in zip(alphas, lengths, strict=True)]

    def _result(self, n_best: Sequence[Caption]) -> Captioned:
        """Return the result of a picture, without confidence and maps. n_best: its captions, best first."""
        best = n_best[0]
        texts = [(self.vocabulary.text(caption.tokens), caption.log_probability) for caption in n_best]
        return Captioned(
            caption=texts[0][0],
            tokens=self.vocabulary.tokens(best.tokens),
            token_probabilities=np.exp(best.token_log_probabilities[: len(best.tokens)]).tolist(),
            log_probability=texts[0][1],
            alternatives=texts[1:],
        )

    def from_cached(self, grids: Grids, keys: Sequence[int], **decoding: Any) -> list[Captioned]:
        """Return a result for each grid of a store, (N, h, w, C) float16, in order: the same as for its photograph.

        keys: `key_of_digest` of each photograph. decoding: as in `from_grid`.
        """
        results: list[Captioned] = []
        for start in range(0, len(grids), _BATCH):
            part = slice(start, start + _BATCH)
            results += self.from_grid(grids[part], keys[part], **decoding)
        return results

    def likely_words(self, grid: Grids, tokens: Sequence[str], number: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest tokens at each place of a caption, given the tokens before it, by teacher forcing.

        grid (1, h, w, C) float16: the photograph's. tokens: the caption's. number: how many tokens at each place, fewer
        if the vocabulary is smaller. Each comes with its probability, likeliest first. END and tokens that no caption
        contains are left out.
        """
        state: Any = self.steps.start(np.asarray(grid, np.float32))
        likely = []
        for token in [START, *map(self.vocabulary.id_of, tokens)][: len(tokens)]:
            output = self.steps.step(state, np.array([[token]]), number + len(NO_WORDS))
            state = output.state
            likeliest = zip(output.words[0, 0].tolist(), np.exp(output.values[0, 0]).tolist(), strict=True)
            words = [(self.vocabulary.tokens([word])[0], share) for word, share in likeliest if word not in NO_WORDS]
            likely.append(words[:number])
        return likely


def takes_grids(config: Mapping[str, Any]) -> bool:
    """Return whether a captioner that was saved with this config takes grids in place of photographs."""
    return "shape" in config["backbone"]


def settings_of(evaluated: Decoding, requested: Mapping[str, Any]) -> Decoding:
    """Return the settings of a search. evaluated: those the model was evaluated with. requested: fields of Decoding.

    Fields that are missing or None are as evaluated, with these exceptions: unless `search` is given, a beam selects
    beam search, and a temperature, top_k or top_p selects sampling; n_best widens a beam that is not given; sampling
    consults no neighbours. Raises ValueError for values that do not go together.
    """
    option_names = {option.name for option in fields(Decoding)}
    unknown = sorted(requested.keys() - option_names)
    if unknown:
        raise ValueError(f"{unknown[0]}: no such option; known: {', '.join(sorted(option_names))}")
    overrides = {name: value for name, value in requested.items() if value is not None}
    for_sampling = [name for name in ("temperature", "top_k", "top_p") if name in overrides]
    if "search" not in overrides and for_sampling and "beam" in overrides:
        raise ValueError(
            f"beam and {for_sampling[0]} do not go together: give beam for beam search, "
            "or temperature, top_k or top_p for sampling"
        )
    if "seed" in overrides and not for_sampling and overrides.get("search", evaluated.search) == "beam":
        raise ValueError("seed is for sampling: give temperature, top_k or top_p too")
    if for_sampling or "beam" in overrides:
        overrides.setdefault("search", "sample" if for_sampling else "beam")
    if "beam" not in overrides and overrides.get("search", evaluated.search) == "beam":
        overrides["beam"] = max(evaluated.beam, overrides.get("n_best", 1))
    # Limit the evaluated model's n_best and min_length to what the requested beam and max_length allow.
    if "n_best" not in overrides and "beam" in overrides:
        overrides["n_best"] = min(evaluated.n_best, overrides["beam"])
    if overrides.get("search") == "sample":
        overrides.setdefault("neighbours", False)
    if "min_length" not in overrides and "max_length" in overrides:
        overrides["min_length"] = min(evaluated.min_length, overrides["max_length"] - 1)
    return replace(evaluated, **overrides)


def withhold(results: Sequence[Captioned], min_confidence: float, otherwise: str) -> list[Captioned]:
    """Return the results, with the text `otherwise` in place of captions of confidence below `min_confidence`."""
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
    """Return `key_of` of the photograph with this SHA-256 digest (hex)."""
    return int(digest[:12], 16)
