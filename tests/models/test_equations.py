"""Each decoder, and the gradient of its first step, against NumPy written from its source (bench/conformance/sources.py).

The gradient is of the NumPy function, by central differences in float64: it shares nothing with ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from bench.conformance import sources
from bench.conformance.sources import SOURCES, Array, Source, float64_weights, relative, run_source, softmax
from models.decoders.base import make
from models.vocabulary import START

C, V, E, H, A = 3, 7, 4, 5, 6
NEXT = 5


SIZES: dict[str, Any] = {"embedding": E, "hidden": H, "dropout_output": 0.0}
DEEP = {"attention_size": A, "output": "deep"}
CASES: dict[str, tuple[str, dict[str, Any], Source]] = {
    "rnn": ("rnn", {}, SOURCES["rnn"]),
    "lstm": ("lstm", {}, SOURCES["lstm"]),
    "attention_lstm": ("attention_lstm", {}, SOURCES["regnet_attention"]),
    "show_attend_tell": ("show_attend_tell", DEEP, SOURCES["show_attend_tell_paper"]),
    "tutorial": (
        "show_attend_tell",
        {"attention_size": A, "attention": "additive_relu", "first_state": "linear"},
        SOURCES["show_attend_tell"],
    ),
    "captionnet": (
        "show_attend_tell",
        {"attention": "scaled_general", "gate": False, "output": "mlp", "output_size": A, "first_state": "linear"},
        SOURCES["captionnet"],
    ),
    "googlenet": (
        "show_attend_tell",
        {"attention_size": A, "gate": False, "pca_dim": 2},
        replace(SOURCES["googlenet"], first=SOURCES["show_attend_tell_paper"].first),
    ),
    "hard_attention": ("hard_attention", DEEP, SOURCES["hard_attention"]),
}


@pytest.mark.parametrize("case", CASES)
def test_first_step_and_gradient_are_the_papers(case: str) -> None:
    name, options, source = CASES[case]
    torch.manual_seed(11)
    decoder = make(name, C, V, {**SIZES, **options}).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    grid = torch.randn(1, 2, 2, C)
    logits, _ = decoder.step(decoder.start(grid), torch.tensor([[START]]))
    (-torch.log_softmax(logits[0, 0], dim=-1)[NEXT]).backward()

    weights = float64_weights(decoder)

    def expected() -> Array:
        return run_source(source, weights, grid[0].double().numpy(), [START])[0].logits

    assert relative(logits[0, 0].detach().numpy(), expected()) < 1e-5

    def loss() -> float:
        return float(-np.log(softmax(expected())[NEXT]))

    for key, parameter in decoder.named_parameters():
        numeric = differences(loss, weights[key])
        assert parameter.grad is not None or not numeric.any(), key
        if parameter.grad is not None:
            # Of a gradient near 0, the differences are only their own rounding.
            assert np.linalg.norm(parameter.grad.numpy() - numeric) < 1e-5 * max(
                float(np.linalg.norm(numeric)), 1e-2
            ), key


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


def test_a_tanh_that_the_source_does_not_have_is_seen() -> None:
    found = sources.differences("captionnet", overrides=["decoder.first_state=grid"])
    assert all(logits > 1e-2 and alphas > 1e-3 for logits, alphas in found.values())
