"""Small decoders, and captions for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.decoders import DECODERS
from models.decoders.base import Decoder, make
from models.options import RecurrentOptions
from models.vocabulary import END, NULL, START

CHANNELS, VOCABULARY, HIDDEN = 6, 12, 8


ATTENDING = [name for name, member in DECODERS.items() if member.attends]


RECURRENT = [name for name, member in DECODERS.items() if issubclass(member.options, RecurrentOptions)]


LOOKING = [name for name in RECURRENT if name in ATTENDING]


# The smallest that has all its parts.
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"layers": 2, "heads": 2, "encoder_layers": 1, "feed_forward": 9, "dropout_layers": 0.0}
}


def decoder_of(name: str, options: dict[str, Any] | None = None) -> Decoder:
    torch.manual_seed(3)
    sizes = {"embedding": 5, "hidden": HIDDEN, "dropout_output": 0.0}
    return make(name, CHANNELS, VOCABULARY, {**sizes, **SMALL.get(name, {}), **(options or {})}).eval()


def captions(*rows: list[int]) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([[*row, *[NULL] * (length - len(row))] for row in rows])


def example() -> tuple[Tensor, Tensor]:
    """Two pictures of three captions of different lengths, one of them a row of padding."""
    torch.manual_seed(5)
    grid = torch.randn(2, 2, 3, CHANNELS)
    first = captions([START, 4, 5, 6, END], [START, 7, END], [START, 5, 5, 8, END])
    second = captions([START, 9, 4, 7, END], [START, 10, 11, 4, END], [])
    return grid, torch.stack([first, second])
