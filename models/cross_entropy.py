"""The cross-entropy of logits, and its gradient in the same pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .vocabulary import NULL

_ROWS = 64  # rows of logits processed at once on a CPU: with a large vocabulary, this many stay in its caches


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the sum of the tokens' cross-entropy, float32, in nats, as torch's `cross_entropy` of float32 logits does.

    logits (M, V), of any precision. targets (M,): where they are NULL, the logits do not count. label_smoothing: the
    share of the target distribution that is spread over all words (Szegedy et al. 2016, section 7). Only the logits'
    gradient is stored: no other tensor of their size.
    """
    total: Tensor = _CrossEntropy.apply(logits, targets, label_smoothing)
    return total


class _CrossEntropy(torch.autograd.Function):
    """The cross-entropy with its gradient, softmax - target distribution.

    Both need the same softmax, so `forward` computes the gradient along with the loss, a chunk of rows at a time.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        count, words = logits.shape
        size = _ROWS if logits.device.type == "cpu" else max(count, 1)
        gradient = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device)
        chunks = (torch.split(tensor, size) for tensor in (logits, targets, gradient))
        for rows, target, out in zip(*chunks, strict=True):
            log_probabilities = torch.log_softmax(rows.float(), dim=1)
            index, counts = target.unsqueeze(1), (target != NULL).unsqueeze(1)
            likelihoods = (1 - smoothing) * log_probabilities.gather(1, index)
            if smoothing:
                likelihoods += smoothing / words * log_probabilities.sum(dim=1, keepdim=True)
            total -= torch.where(counts, likelihoods, 0.0).sum()
            # In place, to allocate nothing more of the rows' size.
            probabilities = log_probabilities.exp_()
            probabilities.scatter_add_(1, index, probabilities.new_full(index.shape, smoothing - 1))
            out.copy_(probabilities.sub_(smoothing / words).mul_(counts))
        context.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(context: Any, loss_gradient: Tensor) -> Any:
        (gradient,) = context.saved_tensors
        return gradient.mul_(loss_gradient), None, None
