"""The gradient of a weight that a recurrence uses at every step, in one product instead of one per step.

A cell computes y_t = b_t + W x_t for t = 1..T, where x_t depends on the steps before. Backpropagation gives g_t, the
loss's gradient with respect to y_t, and by the chain rule

    dL/dW = sum over t of g_t x_t^T        dL/dx_t = W^T g_t        dL/db_t = g_t

Autograd computes the first sum as T small products. But the g_t and x_t of all steps, side by side, give it as one
large product: dL/dW = [g_1 ... g_T] [x_1 ... x_T]^T. This is faster, and under bfloat16 nearer to the true gradient,
because the sum is taken in the product's float32 accumulator.

So each step multiplies by a copy of W that needs no gradient, which still gives dL/dx_t, and adds the result to b_t.
The stacked b = [b_1 ... b_T] is passed through `defer_gradient`, which returns it unchanged in the forward pass. In the
backward pass autograd gives it dL/db = [g_1 ... g_T]. The large product needs nothing else but the x_t, which the steps
have appended to a list by then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def defer_gradient(base: Tensor, weight: Tensor, inputs: list[Tensor], read: Tensor | None = None) -> Tensor:
    """Return `base` unchanged, but such that `weight` gets its gradient in the backward pass.

    base (N, R, T, O): b_1 ... b_T. weight (O, I): W. inputs: an empty list, to which the caller appends each step's x_t
    (N, R, I), without gradient; of the dtype that the product is to be taken in. read (M,): the words that may have a
    gradient, as indices into N * R * T words; None for all.
    """
    deferred: Tensor = _DeferredGradient.apply(base, weight, inputs, read)
    return deferred


class _DeferredGradient(torch.autograd.Function):
    """The autograd function behind `defer_gradient`."""

    @staticmethod
    def forward(context: Any, base: Tensor, weight: Tensor, inputs: list[Tensor], read: Tensor | None) -> Tensor:
        context.inputs, context.read, context.dtype = inputs, read, weight.dtype
        return base.view_as(base)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        inputs, of_words = torch.stack(context.inputs, dim=2).flatten(0, 2), gradient.flatten(0, 2)
        if context.read is not None:
            inputs, of_words = inputs.index_select(0, context.read), of_words.index_select(0, context.read)
        weight_gradient = of_words.to(inputs.dtype).T @ inputs
        return gradient, weight_gradient.to(context.dtype), None, None
