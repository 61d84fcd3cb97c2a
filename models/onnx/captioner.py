"""The captioner on onnxruntime: the graphs of a registered captioner turn photographs into captions, without torch.

It is a folder of config.json, vocabulary.json, encoder.onnx (if it takes photographs), start.onnx, step.onnx,
memory.npz and, if its captions have a confidence, confidence.npz, with a copy of the code that it needs.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from ..captioned import BaseCaptioner, Grids, Picture
from ..confidence import Confidence
from ..decoding_rules import Floats, Words
from ..neighbours import Memory
from ..search import StepOutput
from ..vocabulary import Vocabulary

Array = npt.NDArray[Any]
ALL_WORDS = "log_probabilities"  # the output of a step's graph for all words
_ENCODED = 4  # photographs encoded at once: the feature maps of more do not fit into a processor's caches


class OnnxCaptioner(BaseCaptioner):
    """A captioner on onnxruntime.

    config: as for the captioner in torch, with `onnx`: `picture` and `row`, the names of the decoder state's arrays
    that have an entry for each picture or for each hypothesis; `attends`; `attention_grid`; and `interpolation`.
    """

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Load the captioner in a folder. threads: how many a graph runs on; 0 for OMP_NUM_THREADS, or all cores."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        super().__init__(
            config,
            Vocabulary.from_json((folder / "vocabulary.json").read_text(encoding="utf-8")),
            Memory.load(folder),
            Confidence.load(folder),
        )
        spec = config["onnx"]
        self.attends, self.attention_grid = spec["attends"], spec["attention_grid"]
        self.interpolation = spec["interpolation"]
        options = onnxruntime.SessionOptions()
        # OMP_NUM_THREADS may be a list with a number for each level of nesting.
        outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        options.intra_op_num_threads = threads or (int(outermost) if outermost.isdecimal() else 0)
        # Waiting threads sleep: if they spun, the search in Python and other sessions would wait for a core.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # warnings are about the graphs, which a user cannot change

        def session(name: str) -> Any:
            return onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])

        self._encoder = None if self.takes_grids else session("encoder")
        self.steps = DecoderSteps(session("start"), session("step"), spec, len(self.vocabulary))

    def encode(self, pictures: list[Picture]) -> Grids:
        if self._encoder is None:
            return np.stack(pictures)
        parts = [np.stack(pictures[start : start + _ENCODED]) for start in range(0, len(pictures), _ENCODED)]
        return np.concatenate([self._encoder.run(["grid"], {"photographs": part})[0] for part in parts])


@dataclass(frozen=True)
class State:
    """The state of a decoder between words, its arrays by name.

    of_rows (N, R, ...): one entry for each of a picture's hypotheses. of_pictures (N, ...): the same for all of them.
    alphas (N, R, P): of the word just read.
    """

    of_rows: dict[str, Array]
    of_pictures: dict[str, Array]
    alphas: Floats

    def select(self, rows: Words) -> State:
        """Return the state of the rows with indices `rows` (N, R') within each picture."""
        pictures = np.arange(len(rows))[:, None]
        of_rows = {name: values[pictures, rows] for name, values in self.of_rows.items()}
        return State(of_rows, self.of_pictures, self.alphas[:, :0])  # no step has read a word of these rows yet

    def keep(self, pictures: Words) -> State:
        """Return the state of the pictures with indices `pictures` (N',)."""
        rows, of_pictures = (
            {name: values[pictures] for name, values in part.items()} for part in (self.of_rows, self.of_pictures)
        )
        return State(rows, of_pictures, self.alphas[pictures])


class DecoderSteps:
    """A decoder's graphs, as search uses them."""

    def __init__(self, start: Any, step: Any, spec: dict[str, Any], vocabulary: int) -> None:
        """start, step: the sessions. spec: the saved config's `onnx`. vocabulary: V."""
        self._start, self._step, self._vocabulary = start, step, vocabulary
        self._of_rows, self._attends = spec["row"], spec["attends"]
        self._of_pictures = [item.name for item in start.get_outputs() if item.name not in self._of_rows]
        self._inputs = {item.name for item in step.get_inputs()}

    def start(self, grid: Floats) -> State:
        """Return the state before the first word, R = 1, for grid (N, h, w, C)."""
        names = [*self._of_rows, *self._of_pictures]
        values = dict(zip(names, self._start.run(names, {"grid": grid}), strict=True))
        rows, pictures = ({name: values[name] for name in part} for part in (self._of_rows, self._of_pictures))
        return State(rows, pictures, np.zeros((len(grid), 1, 0), np.float32))

    def step(self, state: State, tokens: Words, shortlist: int) -> StepOutput:
        """Return the `shortlist` likeliest words after tokens (N, R), or all words in order for a shortlist of 0."""
        arrays = {**state.of_rows, **state.of_pictures, "tokens": tokens}
        arrays["shortlist"] = np.array([min(max(shortlist, 1), self._vocabulary)])
        scores = ["likeliest", "likeliest_words"] if shortlist else [ALL_WORDS]
        outputs = [*scores, *(["alphas"] if self._attends else []), *(f"next.{name}" for name in self._of_rows)]
        values = self._step.run(outputs, {name: arrays[name] for name in arrays if name in self._inputs})
        output = dict(zip(outputs, values, strict=True))
        alphas = output.get("alphas", np.zeros((*tokens.shape, 0), np.float32))
        after = State({name: output[f"next.{name}"] for name in self._of_rows}, state.of_pictures, alphas)
        if shortlist:
            return StepOutput(output["likeliest"], output["likeliest_words"], after)
        words = np.broadcast_to(np.arange(self._vocabulary), output[ALL_WORDS].shape)
        return StepOutput(output[ALL_WORDS], words, after)
