"""The captioner on onnxruntime: the graphs of a registered captioner turn photographs into captions, without torch.

It is a folder of config.json, vocabulary.json, encoder.onnx (where it takes photographs), start.onnx, step.onnx and,
where its captions have a confidence, confidence.npz, with a copy of the code that it needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from ..captioned import NO_WORDS, BaseCaptioner, Captioned
from ..encoded_pictures import decode
from ..given_grids import read_grid
from ..options import Decoding
from ..search import Caption, Floats, Next, Words
from ..search import decode as decode_captions
from ..vocabulary import END, START, Vocabulary
from .confidence import Confidence
from .resizing import resize

Grids = npt.NDArray[np.float16]
Array = npt.NDArray[Any]
EVERY = "log_probabilities"  # the output of a step's graph with those of all words
_ENCODED = 4  # photographs at once: the feature maps of more do not stay in a processor's caches
_FEW = 4  # pictures that are read together with the mean grid: of more, it takes less time to read it afterwards


class OnnxCaptioner(BaseCaptioner[Array, Grids]):
    """A captioner on onnxruntime.

    steps: its decoder's. config: as a captioner in torch has it, with `onnx`: `picture` and `row`, the names of the
    arrays of the decoder's state, of which there is one for each picture, and one for each hypothesis; `attends`;
    `sides`, of the alphas; `interpolation`, by which photographs are resized; and `confidence`, the constants of
    models/confidence.py.
    """

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Load the captioner in a folder. threads: that a graph runs on; 0 for OMP_NUM_THREADS, or all cores."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        super().__init__(config, Vocabulary.from_json((folder / "vocabulary.json").read_text(encoding="utf-8")))
        self._spec = config["onnx"]
        self.attends = bool(self._spec["attends"])
        options = onnxruntime.SessionOptions()
        # OpenMP's variable may be a list, a number for each level of nesting.
        outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        options.intra_op_num_threads = threads or (int(outermost) if outermost.isdecimal() else 0)
        # Threads that wait sleep: while they spin, the search in Python, and other sessions, wait for a core.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # warnings are about graphs, which nobody here can change

        def session(name: str) -> Any:
            return onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])

        self._encoder = None if self.takes_grids else session("encoder")
        self.steps = DecoderSteps(session("start"), session("step"), self._spec, len(self.vocabulary))
        fitted = folder / "confidence.npz"
        self.confidence = Confidence.load(fitted, self._spec["confidence"]) if fitted.is_file() else None

    def grids(self, photographs: Sequence[bytes]) -> Grids:
        """Return the grids (N, h, w, C) float16 of encoded photographs; ValueError if one cannot be decoded."""
        return self.encode([self._picture(photograph) for photograph in photographs])

    def _picture(self, photograph: bytes) -> Array:
        spec = self.config["backbone"]
        if self._encoder is None:
            return read_grid(photograph, spec["shape"])
        return resize(decode(photograph), spec["image_size"], spec["fit"], self._spec["interpolation"])

    def encode(self, pictures: list[Array]) -> Grids:
        if self._encoder is None:
            return np.stack(pictures)
        parts = [np.stack(pictures[start : start + _ENCODED]) for start in range(0, len(pictures), _ENCODED)]
        return np.concatenate([self._encoder.run(["grid"], {"photographs": part})[0] for part in parts])

    def _as_grids(self, grids: npt.NDArray[np.float16]) -> Grids:
        return grids

    def _caption_grids(
        self, grid: Grids, keys: Sequence[int] | None, attention: bool, settings: Decoding
    ) -> list[Captioned]:
        values = np.asarray(grid).astype(np.float32)
        together = self._needs_blind and len(values) <= _FEW
        start = self.steps.start(values)
        distances = start.of_pictures.get("distance", np.zeros(len(values), np.float32))
        if together:
            both = _SeenAndBlind(self.steps)
            captions = decode_captions(both, both.start(start, self._blind_start), len(values), settings, keys)
        else:
            captions = decode_captions(self.steps, start, len(values), settings, keys)
        best = [n_best[0] for n_best in captions]
        blind = self._blind(best) if self._needs_blind and not together else [item.blind.sum() for item in best]
        confidences = self._confidences(distances, best, np.array(blind, np.float32))
        sides = self._spec["sides"] if attention else None
        distant = distances.tolist() if self.confidence is not None else [None] * len(values)
        return [
            self._result(n_best, confidence, distance, sides)
            for n_best, confidence, distance in zip(captions, confidences, distant, strict=True)
        ]

    def likely_words(self, grid: Grids, tokens: Sequence[str], number: int) -> list[list[tuple[str, float]]]:
        state, found = self.steps.start(np.asarray(grid).astype(np.float32)), []
        for before in [START, *map(self.vocabulary.id_of, tokens)][: len(tokens)]:
            said = self.steps.step(state, np.array([[before]]), min(number + len(NO_WORDS), len(self.vocabulary)))
            state = said.state
            found.append(self._as_words(said.words[0, 0].tolist(), np.exp(said.values[0, 0]).tolist(), number))
        return found

    def _result(
        self, n_best: list[Caption], confidence: float | None, distance: float | None, sides: list[int] | None
    ) -> Captioned:
        """Return the result of a picture, given its captions, best first. sides: of the maps, where they are asked."""
        best, length = n_best[0], len(n_best[0].tokens)
        texts = [(self.vocabulary.text(caption.tokens), caption.log_probability) for caption in n_best]
        return Captioned(
            caption=texts[0][0],
            tokens=self.vocabulary.tokens(best.tokens),
            token_probabilities=np.exp(best.of_words[:length]).tolist(),
            log_probability=texts[0][1],
            confidence=confidence,
            distance=distance,
            alternatives=texts[1:],
            attention=None if sides is None else best.alphas[:length].reshape(length, *sides),
        )

    @property
    def _needs_blind(self) -> bool:
        """Return whether the confidence needs the log-probability of captions for the mean grid."""
        return self.confidence is not None and self.confidence.needs_gain

    def _confidences(self, distances: Floats, captions: list[Caption], blind: Floats) -> list[float | None]:
        """Return the confidence of a caption of each picture.

        distances (N,): of the pictures from those trained on. blind (N,): the log-probability of each caption for the
        mean grid.
        """
        if self.confidence is None:
            return [None] * len(captions)
        totals = np.array([caption.of_words.sum() for caption in captions], np.float32)
        lengths = np.array([len(caption.of_words) for caption in captions])
        confidences: list[float | None] = self.confidence(distances, totals, lengths, blind).tolist()
        return confidences

    def _blind(self, captions: list[Caption]) -> Floats:
        """Return the log-probability of each caption for the mean of the training pictures' grids, (N,)."""
        count = len(captions)
        state = self._blind_start.select(np.zeros((1, count), np.int64))
        last, totals = np.full((1, count), START), np.zeros(count, np.float32)
        for place in range(max(len(caption.of_words) for caption in captions)):
            said = self.steps.step(state, last, 0)
            state = said.state
            for row, caption in enumerate(captions):
                if place < len(caption.of_words):
                    last[0, row] = caption.tokens[place] if place < len(caption.tokens) else END
                    totals[row] += said.values[0, row, last[0, row]]
        return totals

    @cached_property
    def _blind_start(self) -> State:
        """Return the state before the first word for the mean grid."""
        assert self.confidence is not None
        return self.steps.start(self.confidence.mean_grid[None])


@dataclass(frozen=True)
class State:
    """The state of a decoder between words, its arrays by name.

    of_rows (N, R, ...): one entry for each of a picture's hypotheses. of_pictures (N, ...): the same for all of them.
    """

    of_rows: dict[str, Array]
    of_pictures: dict[str, Array]

    def select(self, rows: Words) -> State:
        """Return the state of the rows with indices `rows` (N, R') within each picture."""
        pictures = np.arange(len(rows))[:, None]
        return State({name: values[pictures, rows] for name, values in self.of_rows.items()}, self.of_pictures)

    def keep(self, pictures: Words) -> State:
        """Return the state of the pictures with indices `pictures` (N',)."""
        rows, of_pictures = (
            {name: values[pictures] for name, values in part.items()} for part in (self.of_rows, self.of_pictures)
        )
        return State(rows, of_pictures)


class DecoderSteps:
    """A decoder's graphs, as search uses them."""

    def __init__(self, start: Any, step: Any, spec: dict[str, Any], vocabulary: int) -> None:
        """start, step: the sessions. spec: the saved config's `onnx`. vocabulary: V."""
        self._start, self._step, self._vocabulary = start, step, vocabulary
        self._of_rows, self._attends = spec["row"], spec["attends"]
        self._of_pictures = [item.name for item in start.get_outputs() if item.name not in self._of_rows]
        self._inputs = {item.name for item in step.get_inputs()}

    def start(self, grid: Floats) -> State:
        """Return the state before the first word, R = 1, for grid (N, h, w, C).

        Where captions have a confidence, it has the distance (N,) of each picture from those trained on.
        """
        names = [*self._of_rows, *self._of_pictures]
        values = dict(zip(names, self._start.run(names, {"grid": grid}), strict=True))
        return State({name: values[name] for name in self._of_rows}, {name: values[name] for name in self._of_pictures})

    def step(self, state: State, tokens: Words, shortlist: int) -> Next:
        """Return the `shortlist` likeliest words after tokens (N, R), or all words in order for a shortlist of 0."""
        said = self.run(state, tokens, shortlist, ["likeliest", "likeliest_words"] if shortlist else [EVERY])
        after = State({name: said[f"next.{name}"] for name in self._of_rows}, state.of_pictures)
        values = said["likeliest"] if shortlist else said[EVERY]
        words = said["likeliest_words"] if shortlist else np.broadcast_to(np.arange(self._vocabulary), values.shape)
        return Next(values, words, after, None, said["alphas"])

    def run(self, state: State, tokens: Words, shortlist: int, wanted: list[str]) -> dict[str, Array]:
        """Return what the step's graph gives: what is wanted, the alphas, and the tensors of rows, as `next.NAME`."""
        arrays = {**state.of_rows, **state.of_pictures, "tokens": tokens}
        arrays["shortlist"] = np.array([min(max(shortlist, 1), self._vocabulary)])
        outputs = [*wanted, *(["alphas"] if self._attends else []), *(f"next.{name}" for name in self._of_rows)]
        found = self._step.run(outputs, {name: arrays[name] for name in arrays if name in self._inputs})
        return {"alphas": np.zeros((*tokens.shape, 0), np.float32), **dict(zip(outputs, found, strict=True))}


class _SeenAndBlind:
    """Steps that say at once what a decoder says for each picture's grid, and for the mean of the training grids.

    Of a few pictures that takes little longer than their grids alone, because a step reads the same weights. The state
    has both: (N, R, 2, ...) of rows, (N, 2, ...) of pictures.
    """

    def __init__(self, steps: DecoderSteps) -> None:
        self._steps = steps

    def start(self, seen: State, blind: State) -> State:
        """Return the state of both. seen: of the pictures. blind: of the mean grid."""

        def both(own: dict[str, Array], other: dict[str, Array], axis: int) -> dict[str, Array]:
            return {
                name: np.stack([values, np.broadcast_to(other[name], values.shape)], axis)
                for name, values in own.items()
            }

        return State(both(seen.of_rows, blind.of_rows, 2), both(seen.of_pictures, blind.of_pictures, 1))

    def step(self, state: State, tokens: Words, shortlist: int) -> Next:
        count, rows = tokens.shape
        apart = State(
            {name: _merged(values.swapaxes(1, 2)) for name, values in state.of_rows.items()},
            {name: _merged(values) for name, values in state.of_pictures.items()},
        )
        wanted = [EVERY, *(["likeliest", "likeliest_words"] if shortlist else [])]
        found = self._steps.run(apart, np.repeat(tokens, 2, axis=0), shortlist, wanted)
        said = {name: values.reshape(count, 2, rows, *values.shape[2:]) for name, values in found.items()}
        after = State({name: said[f"next.{name}"].swapaxes(1, 2) for name in state.of_rows}, state.of_pictures)
        every, alphas = said[EVERY], said["alphas"][:, 0]
        if not shortlist:
            words = np.broadcast_to(np.arange(every.shape[-1]), every[:, 0].shape)
            return Next(every[:, 0], words, after, every[:, 1], alphas)
        words = said["likeliest_words"][:, 0]
        blind = np.take_along_axis(every[:, 1], words, axis=-1)
        return Next(said["likeliest"][:, 0], words, after, blind, alphas)


def _merged(values: Array) -> Array:
    """Return an array (N, 2, ...) as (2 N, ...)."""
    return values.reshape(-1, *values.shape[2:])
