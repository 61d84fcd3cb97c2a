"""Each decoder's first step, and its gradient, against NumPy written from the papers' equations.

The gradient is of the NumPy function, by central differences in float64: it shares nothing with ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bench.conformance import sources
from bench.conformance.sources import SOURCES
from models.decoders.base import make
from models.vocabulary import START

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]
C, V, E, H, A = 3, 7, 4, 5, 6
NEXT = 5


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    powers: Array = np.exp(x - x.max())
    shares: Array = powers / powers.sum()
    return shares


def lstm(gates: Array, cell: Array) -> Array:
    """Hochreiter and Schmidhuber 1997 with forget gates: input, forget, output, candidate."""
    i, f, o, g = np.split(gates, 4)
    new: Array = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    hidden: Array = sigmoid(o) * np.tanh(new)
    return hidden


def scores(w: Weights, logits_of: Array) -> Array:
    return w["head.weight"] @ logits_of + w["head.bias"]


def word(w: Weights) -> Array:
    row: Array = w["embed.weight"][START]
    return row


def rnn_step(w: Weights, grid: Array) -> Array:
    """h0 = W v + b, v the mean annotation vector; h = tanh(W_x x + W_h h0 + b); W_o h + b_o."""
    h0 = w["project.weight"] @ grid.mean(0) + w["project.bias"]
    h = np.tanh(w["word_gates.weight"] @ word(w) + w["word_gates.bias"] + w["hidden_gates.weight"] @ h0)
    return scores(w, h)


def lstm_step(w: Weights, grid: Array) -> Array:
    h0 = w["project.weight"] @ grid.mean(0) + w["project.bias"]
    gates = w["word_gates.weight"] @ word(w) + w["word_gates.bias"] + w["hidden_gates.weight"] @ h0
    return scores(w, lstm(gates, np.zeros(H)))


def attention_lstm_step(w: Weights, grid: Array) -> Array:
    """Gates of [x, h, x_attn]; x_attn = sum_i softmax_i(h . a_i / sqrt(H)) a_i over the projected grid."""
    a = grid @ w["project.weight"].T + w["project.bias"]
    h0 = a.mean(0)
    x_attn = softmax(a @ h0 / np.sqrt(H)) @ a
    gates = w["word_gates.weight"] @ word(w) + w["word_gates.bias"] + w["hidden_gates.weight"] @ h0
    return scores(w, lstm(gates + w["context_gates.weight"] @ x_attn, h0))


def first_states(w: Weights, grid: Array) -> tuple[Array, Array]:
    """Xu et al. 2015, section 3.1.2: h0 and c0 are perceptrons of the mean annotation vector."""
    mean = grid.mean(0)
    return (
        np.tanh(w["first_hidden.weight"] @ mean + w["first_hidden.bias"]),
        np.tanh(w["first_cell.weight"] @ mean + w["first_cell.bias"]),
    )


def additive(w: Weights, grid: Array, h: Array) -> Array:
    """Equations 4 and 5, f_att = v . tanh(W_a a + b + W_h h)."""
    mixed = np.tanh(grid @ w["attention.key.weight"].T + w["attention.key.bias"] + w["attention.query.weight"] @ h)
    return softmax(mixed @ w["attention.score.weight"][0])


def after(w: Weights, context: Array, h0: Array, c0: Array) -> Array:
    """Equations 1 to 3."""
    gates = w["word_gates.weight"] @ word(w) + w["word_gates.bias"] + w["hidden_gates.weight"] @ h0
    return lstm(gates + w["context_gates.weight"] @ context, c0)


def show_attend_tell_step(w: Weights, grid: Array) -> Array:
    """Equations 1 to 7 with the gate beta of section 4.2.1 and the deep output."""
    h0, c0 = first_states(w, grid)
    z = sigmoid(w["gate.weight"] @ h0 + w["gate.bias"]) * (additive(w, grid, h0) @ grid)
    h = after(w, z, h0, c0)
    return scores(w, np.tanh(word(w) + w["output.hidden.weight"] @ h + w["output.context.weight"] @ z))


def captionnet_step(w: Weights, grid: Array) -> Array:
    """Keys W a + b, values a, query h; softmax(q k / sqrt(H)); an MLP over [h, z, x]."""
    h0, c0 = first_states(w, grid)
    keys = grid @ w["attention.key.weight"].T + w["attention.key.bias"]
    z = softmax(keys @ h0 / np.sqrt(H)) @ grid
    h = after(w, z, h0, c0)
    joined = np.concatenate([h, z, word(w)])
    return scores(w, np.maximum(w["output.layer.weight"] @ joined + w["output.layer.bias"], 0))


def googlenet_step(w: Weights, grid: Array) -> Array:
    """Additive attention over the grid projected to two channels, without a gate."""
    reduced = grid @ w["basis"].T
    h0, c0 = first_states(w, reduced)
    return scores(w, after(w, additive(w, reduced, h0) @ reduced, h0, c0))


def hard_attention_step(w: Weights, grid: Array) -> Array:
    """Once trained: the annotation vector at the likeliest position (equation 9 at its mode)."""
    h0, c0 = first_states(w, grid)
    z = sigmoid(w["gate.weight"] @ h0 + w["gate.bias"]) * grid[additive(w, grid, h0).argmax()]
    return scores(w, after(w, z, h0, c0))


SIZES: dict[str, Any] = {"embedding": E, "hidden": H, "dropout_output": 0.0}
CASES: dict[str, tuple[str, dict[str, Any], Callable[[Weights, Array], Array]]] = {
    "rnn": ("rnn", {}, rnn_step),
    "lstm": ("lstm", {}, lstm_step),
    "attention_lstm": ("attention_lstm", {}, attention_lstm_step),
    "show_attend_tell": ("show_attend_tell", {"attention_size": A, "output": "deep"}, show_attend_tell_step),
    "captionnet": (
        "show_attend_tell",
        {"attention": "scaled_general", "gate": False, "output": "mlp", "output_size": A},
        captionnet_step,
    ),
    "googlenet": ("show_attend_tell", {"attention_size": A, "gate": False, "pca_dim": 2}, googlenet_step),
    "hard_attention": ("hard_attention", {"attention_size": A}, hard_attention_step),
}


@pytest.mark.parametrize("case", CASES)
def test_first_step_and_gradient_are_the_papers(case: str) -> None:
    name, options, equations = CASES[case]
    torch.manual_seed(11)
    decoder = make(name, C, V, {**SIZES, **options}).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    grid = torch.randn(1, 2, 2, C)
    logits, _ = decoder.step(decoder.start(grid), torch.tensor([[START]]))
    (-torch.log_softmax(logits[0, 0], dim=-1)[NEXT]).backward()

    weights = {key: value.double().numpy() for key, value in decoder.state_dict().items()}
    vectors = grid[0].flatten(0, 1).double().numpy()
    expected = equations(weights, vectors)
    assert relative(logits[0, 0].detach().numpy(), expected) < 1e-5

    def loss() -> float:
        return float(-np.log(softmax(equations(weights, vectors))[NEXT]))

    for key, parameter in decoder.named_parameters():
        assert parameter.grad is not None or not differences(loss, weights[key]).any(), key
        if parameter.grad is not None:
            assert relative(parameter.grad.numpy(), differences(loss, weights[key])) < 1e-5, key


def differences(loss: Callable[[], float], weight: Array, step: float = 1e-5) -> Array:
    """The gradient of `loss` by each entry of `weight`, which is changed in place and restored."""
    gradient = np.zeros_like(weight)
    for place in np.ndindex(weight.shape):
        kept = weight[place]
        weight[place] = kept + step
        above = loss()
        weight[place] = kept - step
        gradient[place] = (above - loss()) / (2 * step)
        weight[place] = kept
    return gradient


def relative(ours: npt.NDArray[Any], theirs: Array) -> float:
    return float(np.linalg.norm(ours - theirs) / max(float(np.linalg.norm(theirs)), 1e-2))


@pytest.mark.parametrize("preset", SOURCES)
def test_a_preset_computes_what_its_source_does(preset: str) -> None:
    """Nine words, logits and alphas, by the code of training and by that of inference: see bench/conformance."""
    for path, (logits, alphas) in sources.differences(preset).items():
        assert max(logits, alphas) <= sources.TOLERANCE, path


def test_the_two_forms_of_show_attend_and_tell_differ() -> None:
    """What is compared is not blind to what tells them apart."""
    tutorial, paper = SOURCES["show_attend_tell"], SOURCES["show_attend_tell_paper"]
    for mixed in (replace(tutorial, first=paper.first), replace(tutorial, step=SOURCES["googlenet"].step)):
        with mock.patch.dict(SOURCES, {"show_attend_tell": mixed}):
            assert sources.differences("show_attend_tell")["inference"][0] > 1e-2
