"""The export of a captioner to ONNX: its encoder, and its decoder's start and step, as graphs for onnxruntime.

models/onnx runs them; each exported folder has a copy of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from models.backbones.base import Backbone
from models.backbones.encoder import Encoder
from models.captioner import Captioner
from models.decoders.base import State
from models.decoders.ensemble import EnsembleState
from models.onnx.captioner import OnnxCaptioner
from models.vocabulary import FORBIDDEN
from tasks.common.errors import AttendError, reason_of

_ALPHAS = "alphas"
_PICTURES, _ROWS, _WORDS = 2, 3, 2  # size of the example that the graphs are traced with
_TOLERANCE = 1e-3  # of log-probabilities; a different order of rounding causes a tenth of that


def export(captioner: Captioner, folder: Path) -> None:
    """Write a captioner's graphs in float32, with its config and vocabulary, into a new folder.

    Raises AttendError if a part of it cannot be exported, or the graphs' results differ from its own.
    """
    folder.mkdir(parents=True)
    decoder, name = captioner.decoder, captioner.config["decoder"]["name"]
    grid = _example_grid(captioner)
    with torch.no_grad(), silenced("torch.onnx", "torch.export", "torch.__trace", "onnxscript", "onnx_ir"):
        state = decoder.start(grid)
        layout = _Layout(state)
        start = _Start(decoder, layout)
        _write(start, {"grid": grid}, [{0: "pictures"}], layout.names, folder / "start.onnx", f"decoder {name}")
        inputs, sizes = _example_step(captioner, state, layout)
        outputs = ["log_probabilities", *([_ALPHAS] if decoder.attends else [])]
        outputs += [f"next.{row}" for row in layout.rows]
        step = _Step(decoder, layout, len(captioner.vocabulary))
        _write(step, inputs, sizes, outputs, folder / "step.onnx", f"decoder {name}")
        if captioner.backbone is not None:
            side = captioner.config["backbone"]["image_size"]
            encoder = _Encoder(captioner.backbone, side)
            photographs = torch.randint(0, 256, (_PICTURES, side, side, 3), dtype=torch.uint8)
            title = f"backbone {captioner.config['backbone']['name']}"
            _write(encoder, {"photographs": photographs}, [{0: "pictures"}], ["grid"], folder / "encoder.onnx", title)
    _add_shortlist(folder / "step.onnx")
    _write_settings(captioner, layout, folder)
    _check(captioner, grid, folder)


class _Layout:
    """The names of the tensors of a decoder's state: one per hypothesis (`rows`), one per picture (`pictures`).

    Names begin with the number of the ensemble's member. Tensors that no step reads and empty ones, such as the context
    of a decoder without attention, are left out, because a graph has no unused inputs.
    """

    def __init__(self, state: State | EnsembleState) -> None:
        self._members = state.states if isinstance(state, EnsembleState) else (state,)
        self._ensemble = isinstance(state, EnsembleState)
        self._empty = [name for name in self._names("row") if name in self._without_channels()]
        left_out = {*self._without_channels(), *self._not_read()}
        self.rows = [name for name in self._names("row") if name not in left_out]
        self.pictures = [name for name in self._names("picture") if name not in left_out]

    @property
    def names(self) -> list[str]:
        """Return all names, in the order of `tensors`."""
        return [*self.rows, *self.pictures]

    def _names(self, one_per: str) -> list[str]:
        names = [member.names_of(one_per) for member in self._members]
        return [f"{number}.{name}" for number, member_names in enumerate(names) for name in member_names]

    def _not_read(self) -> set[str]:
        """Return the names of the tensors that no step reads."""
        numbered = ((number, item) for number, member in enumerate(self._members) for item in fields(member))
        return {f"{number}.{item.name}" for number, item in numbered if not item.metadata.get("is_read", True)}

    def _without_channels(self) -> set[str]:
        """Return the names of the tensors whose last dimension is 0."""
        names = [*self._names("row"), *self._names("picture")]
        return {name for name in names if _tensor(self._members, name).shape[-1] == 0}

    def tensors(self, state: State | EnsembleState) -> dict[str, Tensor]:
        """Return the tensors of a state, by name."""
        members = state.states if isinstance(state, EnsembleState) else (state,)
        return {name: _tensor(members, name) for name in self.names}

    def state(self, tensors: Mapping[str, Tensor], tokens: Tensor) -> Any:
        """Return the state made of these tensors, by name, for a step that reads tokens (N, R)."""
        empty = torch.zeros(*tokens.shape, 0, device=tokens.device)
        tensors = {**tensors, **dict.fromkeys(self._empty, empty)}
        states = []
        for number, member in enumerate(self._members):
            values = {
                name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}.")
            }
            states.append(replace(member, **values))
        return EnsembleState(tuple(states)) if self._ensemble else states[0]


def _tensor(members: Sequence[State], name: str) -> Tensor:
    """Return the tensor with a name in the states of members."""
    number, _, field = name.partition(".")
    tensor: Tensor = getattr(members[int(number)], field)
    return tensor


class _Start(nn.Module):
    """A decoder's start: grid (N, h, w, C) float32 -> the tensors of its state."""

    def __init__(self, decoder: Any, layout: _Layout) -> None:
        super().__init__()
        self.decoder, self.layout = decoder, layout

    def forward(self, grid: Tensor) -> tuple[Tensor, ...]:
        # Cloned, because two outputs of a graph cannot be the same tensor.
        return tuple(tensor.clone() for tensor in self.layout.tensors(self.decoder.start(grid)).values())


class _Step(nn.Module):
    """A decoder's step: tokens (N, R) and the tensors of its state -> log-probabilities, alphas, the rows' tensors.

    Tokens that no caption may contain have a log-probability of -inf.
    """

    forbidden: Tensor

    def __init__(self, decoder: Any, layout: _Layout, words: int) -> None:
        super().__init__()
        self.decoder, self.layout = decoder, layout
        self.register_buffer("forbidden", torch.zeros(words).index_fill(0, torch.tensor(FORBIDDEN), -torch.inf))

    def forward(self, tokens: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        state = self.layout.state(dict(zip(self.layout.names, tensors, strict=True)), tokens)
        logits, state = self.decoder.step(state, tokens)
        after = self.layout.tensors(state)
        alphas = [state.alphas] if self.decoder.attends else []
        allowed = torch.log_softmax(logits.float(), dim=-1) + self.forbidden
        return (allowed, *alphas, *(after[name].clone() for name in self.layout.rows))


class _Encoder(nn.Module):
    """A backbone: photographs (N, S, S, 3) uint8 -> grid (N, h, w, C) float16."""

    def __init__(self, backbone: Backbone, size: int) -> None:
        super().__init__()
        self.backbone = Encoder(backbone).backbone.to(memory_format=torch.contiguous_format)
        self.backbone.fix_size(size)

    def forward(self, photographs: Tensor) -> Tensor:
        grid: Tensor = self.backbone(self.backbone.normalised(photographs.permute(0, 3, 1, 2)))
        limit = torch.finfo(torch.float16).max
        return grid.clamp(-limit, limit).to(torch.float16)


def _example_grid(captioner: Captioner) -> Tensor:
    """Return random grids (N, h, w, C) float32 for the captioner's decoder."""
    spec = captioner.config["backbone"]
    if captioner.backbone is None:
        return torch.rand(_PICTURES, *spec["shape"])
    photographs = torch.randint(0, 256, (_PICTURES, 3, spec["image_size"], spec["image_size"]), dtype=torch.uint8)
    grids: Tensor = Encoder(captioner.backbone)(photographs)
    return grids.float()


def _example_step(captioner: Captioner, state: Any, layout: _Layout) -> tuple[dict[str, Tensor], list[dict[int, str]]]:
    """Return example inputs of the step by name, and for each input the names of its varying dimensions."""
    words = len(captioner.vocabulary)
    state = state.expand(_ROWS)
    tensors = [layout.tensors(state)]
    for _ in range(_WORDS):
        tokens = torch.randint(0, words, (_PICTURES, _ROWS))
        _, state = captioner.decoder.step(state, tokens)
        tensors.append(layout.tensors(state))
    sizes: list[dict[int, str]] = [{0: "pictures", 1: "rows"}]
    for name in layout.names:
        varying = {0: "pictures", **({1: "rows"} if name in layout.rows else {})}
        shapes = [part[name].shape for part in tensors[-2:]]
        varying |= {side: "words" for side, (old, new) in enumerate(zip(*shapes, strict=True)) if old != new}
        sizes.append(varying)
    return {"tokens": tokens, **tensors[-1]}, sizes


def _write(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    sizes: Sequence[Mapping[int, str]],
    outputs: Sequence[str],
    path: Path,
    title: str,
) -> None:
    """Write the graph of a module to a file.

    sizes: for each input, the names of its varying dimensions. title: the module, for messages. Raises AttendError if
    it cannot be exported.
    """
    dims = {name: torch.export.Dim(name) for varying in sizes for name in varying.values()}
    shapes = [{side: dims[name] for side, name in varying.items()} for varying in sizes]
    own = next(iter(module.forward.__annotations__))
    dynamic = {own: shapes[0], **({"tensors": tuple(shapes[1:])} if len(shapes) > 1 else {})}
    try:
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=dynamic,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    except Exception as error:  # the exporter raises errors of many kinds
        reason = reason_of(error.__cause__ or error)
        raise AttendError(
            f"registry.runtimes: onnx: the {title} cannot be exported: {type(error).__name__}: {reason}: leave onnx out"
        ) from error


@contextlib.contextmanager
def silenced(*names: str) -> Iterator[None]:
    """Silence loggers below errors, and all warnings, which advise developers of models."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _add_shortlist(path: Path) -> None:
    """Add the outputs `likeliest` and `likeliest_words` to a step's graph; its new input `shortlist` is their size."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(path)
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info("shortlist", TensorProto.INT64, [1]))
    names = ["likeliest", "likeliest_words"]
    graph.node.append(helper.make_node("TopK", ["log_probabilities", "shortlist"], names, axis=-1, sorted=1))
    for name, kind in zip(names, (TensorProto.FLOAT, TensorProto.INT64), strict=True):
        graph.output.append(helper.make_tensor_value_info(name, kind, ["pictures", "rows", "kept"]))
    onnx.save(model, path)


def _write_settings(captioner: Captioner, layout: _Layout, folder: Path) -> None:
    """Write config.json, vocabulary.json, memory.npz and confidence.npz."""
    decoder = captioner.decoder
    spec: dict[str, Any] = {
        "row": layout.rows,
        "picture": layout.pictures,
        "attends": decoder.attends,
        "attention_grid": decoder.attention_grid,
        "interpolation": captioner.interpolation,
    }
    config = {**captioner.config, "onnx": spec}
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True), encoding="utf-8")
    (folder / "vocabulary.json").write_text(captioner.vocabulary.to_json(), encoding="utf-8")
    captioner.memory.save(folder)
    if captioner.confidence is not None:
        captioner.confidence.save(folder)


@torch.no_grad()
def _check(captioner: Captioner, grid: Tensor, folder: Path) -> None:
    """Raise AttendError if the results of the exported graphs differ from the captioner's on random inputs.

    grid (N, h, w, C) float32.
    """
    exported, decoder = OnnxCaptioner(folder), cast(Any, captioner.decoder)
    generator = torch.Generator().manual_seed(0)
    grid = grid[:1]
    rows = torch.zeros(1, _ROWS + 1, dtype=torch.long)
    states = decoder.start(grid).select(rows), exported.steps.start(grid.numpy()).select(rows.numpy())
    for _ in range(_WORDS + 1):
        tokens = torch.randint(0, len(captioner.vocabulary), rows.shape, generator=generator)
        logits, after = decoder.step(states[0], tokens)
        output = exported.steps.step(states[1], tokens.numpy(), 0)
        states = after, output.state
        allowed = [word for word in range(logits.shape[-1]) if word not in FORBIDDEN]
        expected = torch.log_softmax(logits.float(), dim=-1)[..., allowed]
        difference = float((expected - torch.from_numpy(output.values[..., allowed])).abs().max())
        if not difference < _TOLERANCE:
            name = captioner.config["decoder"]["name"]
            raise AttendError(
                f"registry.runtimes: onnx: the exported decoder {name} differs from its own log-probabilities by "
                f"{difference:.2g}: leave onnx out, and report this"
            )
    if captioner.backbone is not None:
        side = captioner.config["backbone"]["image_size"]
        photograph = torch.randint(0, 256, (1, side, side, 3), dtype=torch.uint8, generator=generator)
        grids = Encoder(captioner.backbone)(photograph.permute(0, 3, 1, 2)).float().numpy()
        exported_grid = exported.encode([photograph[0].numpy()]).astype(np.float32)
        difference = float(np.abs(grids - exported_grid).max() / max(np.abs(grids).max(), 1e-6))
        if not difference < 10 * _TOLERANCE:
            name = captioner.config["backbone"]["name"]
            raise AttendError(
                f"registry.runtimes: onnx: the exported backbone {name} differs from its own grids by {difference:.2g} "
                "of their greatest value: leave onnx out, and report this"
            )
