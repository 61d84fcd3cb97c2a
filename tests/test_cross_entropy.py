"""Our cross-entropy is torch's own, and so is its gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from models.cross_entropy import cross_entropy
from models.vocabulary import NULL


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [0, 1, 64, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradient_are_torchs(dtype: torch.dtype, rows: int, smoothing: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(rows, 37, dtype=dtype) * 4
    targets = torch.randint(37, (rows,)).masked_fill(torch.rand(rows) < 0.1, NULL)
    found = []
    for function in (functional.cross_entropy, cross_entropy):
        given = logits.clone().requires_grad_()
        own = given.float() if function is functional.cross_entropy else given
        options: Any = {"reduction": "sum", "ignore_index": NULL} if function is functional.cross_entropy else {}
        loss = function(own, targets, label_smoothing=smoothing, **options)
        (0.3 * loss).backward()
        assert given.grad is not None and loss.dtype == torch.float32
        found.append((loss, given.grad))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)
