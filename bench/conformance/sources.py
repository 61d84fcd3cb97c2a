"""Compare each captioner with its source: the same weights in our decoder and in NumPy code written from the source.

    python -m bench.conformance.sources

The NumPy code computes in float64 and shares nothing with ours: no fused products, no keys cached between steps. For
each preset, a decoder of the preset's sizes reads a random grid and a caption of nine words, in both of our paths
(whole captions under teacher forcing, as in training, and word by word, as in inference). The script prints the largest
relative difference of the logits and of the alphas over the steps. It ends with an error if one is above 1e-6.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.machine import describe
from models.decoders.base import make
from models.vocabulary import START
from tasks.config.schema import load

Array = npt.NDArray[np.float64]
Weights = Mapping[str, Array]
TOLERANCE = 1e-6
_CHANNELS = {"regnet_x_400mf": 400, "vgg16_conv5": 512, "googlenet": 1024, "mobilenet_v2": 1280, "resnet101": 2048}
STEPS, VOCABULARY, SIDE = 9, 50, 4


@dataclass
class Told:
    """The result of a step of a source: logits (V,), alphas (P,) or None, and the next hidden and cell state."""

    logits: Array
    alphas: Array | None
    hidden: Array
    cell: Array


@dataclass(frozen=True)
class Source:
    """A captioner as its source defines it.

    first: (weights, annotation vectors (P, D)) -> (h0, c0). step: (weights, annotation vectors, h, c, word embedding)
    -> the source's result after this word. positions: side of the attended positions, pooled from those of the grid.
    """

    first: Callable[[Weights, Array], tuple[Array, Array]]
    step: Callable[[Weights, Array, Array, Array, Array], Told]
    positions: int | None = None


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    powers: Array = np.exp(x - x.max())
    shares: Array = powers / powers.sum()
    return shares


def affine(w: Weights, layer: str, x: Array) -> Array:
    """Return W x + b of a layer, without b if it has none."""
    product: Array = x @ w[f"{layer}.weight"].T
    return product + w[f"{layer}.bias"] if f"{layer}.bias" in w else product


def lstm_cell(w: Weights, x: Array, h: Array, c: Array, z: Array | None) -> tuple[Array, Array]:
    """Return (h, c) of an LSTM cell with forget gates (Hochreiter and Schmidhuber 1997) that reads [x, z]."""
    gates = affine(w, "word_gates", x) + affine(w, "hidden_gates", h)
    if z is not None:
        gates = gates + affine(w, "context_gates", z)
    i, f, o, g = np.split(gates, 4)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def score(w: Weights, features: Array) -> Array:
    return affine(w, "head", features)


# EECS 498/598, assignment 5: https://web.eecs.umich.edu/~justincj/teaching/eecs498/ (rnn, lstm, regnet_attention).


def _projected_mean(w: Weights, a: Array) -> tuple[Array, Array]:
    """h0 = W mean(a) + b; c0 = 0."""
    h = affine(w, "project", a.mean(0))
    return h, np.zeros_like(h)


def _rnn_step(w: Weights, _: Array, h: Array, c: Array, x: Array) -> Told:
    h = np.tanh(affine(w, "word_gates", x) + affine(w, "hidden_gates", h))
    return Told(score(w, h), None, h, c)


def _lstm_step(w: Weights, _: Array, h: Array, c: Array, x: Array) -> Told:
    h, c = lstm_cell(w, x, h, c, None)
    return Told(score(w, h), None, h, c)


def _projected_both(w: Weights, a: Array) -> tuple[Array, Array]:
    """h0 = c0 = mean over positions of the projected grid."""
    h = affine(w, "project", a).mean(0)
    return h, h


def _regnet_step(w: Weights, a: Array, h: Array, c: Array, x: Array) -> Told:
    """x_attn = A softmax(h . a_i / sqrt(H)), A the projected grid; the gates read [x, h, x_attn]."""
    projected = affine(w, "project", a)
    alphas = softmax(projected @ h / math.sqrt(len(h)))
    h, c = lstm_cell(w, x, h, c, alphas @ projected)
    return Told(score(w, h), alphas, h, c)


# Show, Attend and Tell, as the authors' code has it.


def _tanh_states(w: Weights, a: Array) -> tuple[Array, Array]:
    mean = a.mean(0)
    return np.tanh(affine(w, "first_hidden", mean)), np.tanh(affine(w, "first_cell", mean))


def _tanh_alphas(w: Weights, a: Array, h: Array) -> Array:
    """softmax(v . tanh(W_a a + b + W_h h))."""
    mixed = np.tanh(affine(w, "attention.key", a) + affine(w, "attention.query", h))
    return softmax(affine(w, "attention.score", mixed)[:, 0])


def _paper_step(w: Weights, a: Array, h: Array, c: Array, x: Array) -> Told:
    """The gate beta of section 4.2.1, and tanh(E y + L_h h + L_z z) before the words' logits."""
    alphas = _tanh_alphas(w, a, h)
    z = sigmoid(affine(w, "gate", h)) * (alphas @ a)
    h, c = lstm_cell(w, x, h, c, z)
    return Told(score(w, np.tanh(x + affine(w, "output.hidden", h) + affine(w, "output.context", z))), alphas, h, c)


def _hard_step(w: Weights, a: Array, h: Array, c: Array, x: Array) -> Told:
    """The paper's step, with the annotation vector at the most likely position instead of the expected one."""
    alphas = _tanh_alphas(w, a, h)
    z = sigmoid(affine(w, "gate", h)) * a[alphas.argmax()]
    h, c = lstm_cell(w, x, h, c, z)
    return Told(score(w, np.tanh(x + affine(w, "output.hidden", h) + affine(w, "output.context", z))), alphas, h, c)


# The PyTorch tutorial's form: full_att(relu(encoder_att(a) + decoder_att(h))), init_h and init_c plain linear layers,
# fc(h). Its LSTMCell reads [embedding, gate * context]. A bias of decoder_att or full_att changes nothing that another
# bias, or the softmax, does not.


def _linear_states(w: Weights, a: Array) -> tuple[Array, Array]:
    mean = a.mean(0)
    return affine(w, "first_hidden", mean), affine(w, "first_cell", mean)


def _tutorial_step(w: Weights, a: Array, h: Array, c: Array, x: Array) -> Told:
    mixed = np.maximum(affine(w, "attention.key", a) + affine(w, "attention.query", h), 0)
    alphas = softmax(affine(w, "attention.score", mixed)[:, 0])
    h, c = lstm_cell(w, x, h, c, sigmoid(affine(w, "gate", h)) * (alphas @ a))
    return Told(score(w, h), alphas, h, c)


def _captionnet_step(w: Weights, a: Array, h: Array, c: Array, x: Array) -> Told:
    """Keys W a + b, values a, query h: softmax over positions of q k / sqrt(H); relu(W [h, z, x] + b) before the head.

    The source takes its softmax over the axis of queries. There is one query, so all alphas are 1 and the attention has
    no effect: a bug of the source.
    """
    alphas = softmax(affine(w, "attention.key", a) @ h / math.sqrt(len(h)))
    z = alphas @ a
    h, c = lstm_cell(w, x, h, c, z)
    return Told(score(w, np.maximum(affine(w, "output.layer", np.concatenate([h, z, x])), 0)), alphas, h, c)


def _zero_states(w: Weights, _: Array) -> tuple[Array, Array]:
    return np.zeros(w["hidden_gates.weight"].shape[1]), np.zeros(w["hidden_gates.weight"].shape[1])


def _googlenet_step(w: Weights, a: Array, h: Array, c: Array, x: Array) -> Told:
    """Additive attention without a gate over the grid's 128 channels of an SVD."""
    alphas = _tanh_alphas(w, a, h)
    h, c = lstm_cell(w, x, h, c, alphas @ a)
    return Told(score(w, h), alphas, h, c)


SOURCES: dict[str, Source] = {
    "rnn": Source(_projected_mean, _rnn_step),
    "lstm": Source(_projected_mean, _lstm_step),
    "regnet_attention": Source(_projected_both, _regnet_step),
    "captionnet": Source(_linear_states, _captionnet_step),  # cnn_to_h0 and cnn_to_c0: linear, nothing after
    "googlenet": Source(_zero_states, _googlenet_step),
    "show_attend_tell": Source(_linear_states, _tutorial_step),
    "show_attend_tell_tuned": Source(_linear_states, _tutorial_step, positions=14),
    "show_attend_tell_paper": Source(_tanh_states, _paper_step),
    "hard_attention": Source(_tanh_states, _hard_step),
    "flickr8k": Source(_tanh_states, _paper_step),
}


def main() -> None:
    describe()
    print("\n| preset | decoder | path | logits | alphas |\n| --- | --- | --- | --- | --- |")
    worst = 0.0
    for preset in SOURCES:
        for path, (logits, alphas) in differences(preset).items():
            worst = max(worst, logits, alphas)
            print(f"| {preset} | {load_decoder(preset).name} | {path} | {logits:.1e} | {alphas:.1e} |", flush=True)
    if worst > TOLERANCE:
        sys.exit(f"a decoder differs from its source by {worst:.1e}")


def load_decoder(preset: str) -> Any:
    """Return the config section of a preset's decoder."""
    return load(preset, ["data.path=."]).decoder


def differences(preset: str, seed: int = 0, overrides: Sequence[str] = ()) -> dict[str, tuple[float, float]]:
    """Return, by path, the largest relative difference of a preset's logits and alphas from its source's.

    overrides: settings that replace those of the preset.
    """
    source, config = SOURCES[preset], load(preset, ["data.path=.", *overrides])
    channels = _CHANNELS[config.grids.backbone]
    torch.manual_seed(seed)
    options = {**config.decoder.options(), "dropout_output": 0.0, "dropout_words": 0.0, "dropout_grid": 0.0}
    decoder = make(config.decoder.name, channels, VOCABULARY, options)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
        if decoder.basis is not None:
            decoder.basis.copy_(torch.linalg.qr(torch.randn(channels, len(decoder.basis)))[0].T)
    grid = torch.randn(1, SIDE, SIDE, channels)
    words = torch.tensor([[[START, *torch.randint(4, VOCABULARY, (STEPS - 1,)).tolist()]]])
    expected = run_source(source, float64_weights(decoder), grid[0].double().numpy(), words[0, 0].tolist())
    paths = {"inference": _by_word(decoder.eval(), grid, words)}
    # In training, hard attention draws positions: what it computes then is another test's.
    paths["training"] = _whole(decoder if preset == "hard_attention" else decoder.train(), grid, words)
    return {path: _largest(ours, expected) for path, ours in paths.items()}


def float64_weights(decoder: Any) -> dict[str, Array]:
    """Return the weights of a decoder by name."""
    return {name: value.double().numpy() for name, value in decoder.state_dict().items()}


def run_source(source: Source, weights: Weights, grid: Array, words: list[int]) -> list[Told]:
    """Return the source's results after each word. grid: (h, w, C)."""
    if source.positions is not None:
        grid = _adaptive_average(grid, source.positions)
    vectors = grid.reshape(-1, grid.shape[-1])
    if "basis" in weights:
        vectors = vectors @ weights["basis"].T
    hidden, cell = source.first(weights, vectors)
    outputs = []
    for word in words:
        outputs.append(source.step(weights, vectors, hidden, cell, weights["embed.weight"][word]))
        hidden, cell = outputs[-1].hidden, outputs[-1].cell
    return outputs


def _adaptive_average(grid: Array, side: int) -> Array:
    """Return a grid (h, w, C) averaged to side x side: i is the mean of rows floor(i h / s) to ceil((i + 1) h / s)."""
    h, w = grid.shape[:2]
    rows = [(i * h // side, -(-(i + 1) * h // side)) for i in range(side)]
    columns = [(i * w // side, -(-(i + 1) * w // side)) for i in range(side)]
    return np.array([[grid[a:b, c:d].mean((0, 1)) for c, d in columns] for a, b in rows])


def _by_word(decoder: Any, grid: torch.Tensor, words: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (logits, alphas) after each word, one word at a time, with the inference code."""
    states = []
    with torch.no_grad():
        stepper = decoder.for_inference()
        state = stepper.start(grid)
        for step in range(words.shape[-1]):
            logits, state = stepper.step(state, words[:, :, step])
            states.append((logits[0, 0], state.alphas[0, 0]))
    return states


def _whole(decoder: Any, grid: torch.Tensor, words: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (logits, alphas) after each word of a whole caption, with the training code."""
    logits, states = decoder(grid, words, torch.arange(words.numel()))
    return [(logits[step].detach(), states.alphas[0, 0, step].detach()) for step in range(words.shape[-1])]


def _largest(ours: list[tuple[torch.Tensor, torch.Tensor]], expected: list[Told]) -> tuple[float, float]:
    logits = max(relative(own.numpy(), source.logits) for (own, _), source in zip(ours, expected, strict=True))
    alphas = [
        relative(own.numpy(), source.alphas)
        for (_, own), source in zip(ours, expected, strict=True)
        if source.alphas is not None
    ]
    return logits, max(alphas, default=0.0)


def relative(ours: npt.NDArray[Any], theirs: Array) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


if __name__ == "__main__":
    main()
