"""A recurrence over whole captions, arranged for speed; what it computes is `RecurrentDecoder.step`, word after word.

- All that reads the hidden state is one product a step, and the words' part of the gates one for all steps.
- The recurrence's weights are cast once, and get their gradients in one product over all steps, not in T small ones
  added up: faster, and under bfloat16 nearer to the true gradient.
- The step may be compiled (torch.compile): one step, not the loop, so that lengths do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from .recurrent import Recurrence, RecurrentDecoder

# (decoder, state, what reads h, gates, W_asked and W_h in one, W_context) -> the state after the word
Step = Callable[["RecurrentDecoder", "Recurrence", Tensor, Tensor, Tensor, Tensor | None], "Recurrence"]


class _Late(torch.autograd.Function):
    """The place in the graph where the steps' products x_t W^T get their gradient with respect to W.

    forward (base, W, x) -> base, unchanged: each step adds its x_t W^T itself, by weights without gradient, and
    appends x_t (N, R, I) to the list x. backward: dW = sum over n, r, t of g x_t, g (N, R, T, O) the gradient of base.
    """

    @staticmethod
    def forward(context: Any, base: Tensor, weight: Tensor, inputs: list[Tensor]) -> Tensor:
        context.inputs, context.dtype = inputs, weight.dtype
        return base.view_as(base)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        inputs = torch.stack(context.inputs, dim=2).flatten(0, 2)
        weight = gradient.flatten(0, 2).to(inputs.dtype).T @ inputs
        return gradient, weight.to(context.dtype), None


def read_captions(decoder: RecurrentDecoder, state: Recurrence, word_gates: Tensor, step: Step) -> list[Recurrence]:
    """The states after each word: those of T calls of `RecurrentDecoder.step`.

    state: before the first word, R rows. word_gates (N, R, T, G): the words' part of the gates. step: `one_step`, or
    that compiled.
    """
    layers = list(decoder.asking().values())
    hidden_weight = decoder.hidden_gates.weight
    context_weight = None if decoder.context_gates is None else decoder.context_gates.weight
    dtype = word_gates.dtype
    hiddens: list[Tensor] = []
    contexts: list[Tensor] = []
    gates = _Late.apply(word_gates, hidden_weight, hiddens)
    if context_weight is not None:
        gates = _Late.apply(gates, context_weight, contexts)
    weights: list[Tensor] = [layer.weight for layer in layers]
    asked = asked_biases(decoder).to(dtype).expand(*word_gates.shape[:3], -1)
    if layers:
        asked = _Late.apply(asked, torch.cat(weights), hiddens)
    reading = reading_weights(decoder).detach().to(dtype)
    looking = None if context_weight is None else context_weight.detach().to(dtype)
    states = []
    for ask, gate in zip(asked.unbind(2), gates.unbind(2), strict=True):
        hiddens.append(state.hidden.detach().to(dtype))
        state = step(decoder, state, ask, gate, reading, looking)
        contexts.append(state.context.detach().to(dtype))
        states.append(state)
    return states


def reading_weights(decoder: RecurrentDecoder) -> Tensor:
    """(sum of A + G, H): of all that reads the hidden state, the layers that are asked and then the cell."""
    return torch.cat([*(layer.weight for layer in decoder.asking().values()), decoder.hidden_gates.weight])


def asked_biases(decoder: RecurrentDecoder) -> Tensor:
    """(sum of A,): of the layers that are asked; zeros where one has none."""
    none = decoder.hidden_gates.weight.new_zeros
    layers = decoder.asking().values()
    return torch.cat([none(0), *(none(layer.out_features) if layer.bias is None else layer.bias for layer in layers)])


def one_step(
    decoder: RecurrentDecoder, state: Recurrence, asked: Tensor, gates: Tensor, reading: Tensor, looking: Tensor | None
) -> Recurrence:
    """One word. asked (..., sum of A): of what reads the hidden state, the biases. gates (N, R, G): the words' part.

    reading (sum of A + G, H): the weights of all that reads the hidden state. looking (G, D'): of the context.
    """
    layers = decoder.asking()
    sizes = [layer.out_features for layer in layers.values()]
    product = functional.linear(state.hidden, reading)
    ask, more = torch.split(product, [sum(sizes), gates.shape[-1]], dim=-1)
    parts = torch.split(ask + asked, sizes, dim=-1) if sizes else ()
    state = decoder.look(state, dict(zip(layers, parts, strict=True)))
    gates = gates + more
    if looking is not None:
        gates = gates + functional.linear(state.context, looking)
    return decoder.turn(state, gates)
