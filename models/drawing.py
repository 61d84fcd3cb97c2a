"""Random draws from distributions, without waiting for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def draw(probabilities: Tensor) -> Tensor:
    """Return an index (...) drawn from each distribution (..., K), by the exponential race (Yellott 1977).

    These are the numbers of `torch.multinomial` for one draw, which however waits for a GPU in order to refuse values
    that are no probabilities.
    """
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)
