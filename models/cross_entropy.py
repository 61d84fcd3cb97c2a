"""The cross-entropy of logits, and its gradient in the same pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 64  # at once on a CPU: so many rows of a large vocabulary stay in its caches


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The mean over tokens, float32, in nats: what torch's own `cross_entropy` of logits in float32 is.

    logits (M, V), of any precision. targets (M,). label_smoothing: the share of the target distribution that is spread
    over all words (Szegedy et al. 2016, section 7). Beside the logits' gradient nothing of their size is kept.
    """
    loss: Tensor = _CrossEntropy.apply(logits, targets, label_smoothing)
    return loss


class _CrossEntropy(torch.autograd.Function):
    """The gradient, (softmax - target distribution) / M, is at hand when the loss is: it is made then, row by row."""

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        count, words = logits.shape
        size = _ROWS if logits.device.type == "cpu" else max(count, 1)
        gradient = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device)
        parts = (torch.split(tensor, size) for tensor in (logits, targets, gradient))
        for rows, target, out in zip(*parts, strict=True):
            found = torch.log_softmax(rows.float(), dim=1)
            place = target.unsqueeze(1)
            total -= (1 - smoothing) * found.gather(1, place).sum() + smoothing / words * found.sum()
            found.exp_().scatter_add_(1, place, found.new_full(place.shape, smoothing - 1))
            out.copy_(found.sub_(smoothing / words).div_(count))
        context.save_for_backward(gradient)
        return total / count

    @staticmethod
    def backward(context: Any, given: Tensor) -> Any:
        (gradient,) = context.saved_tensors
        return gradient.mul_(given), None, None
