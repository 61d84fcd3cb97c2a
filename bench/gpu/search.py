"""Captions a second: beam search and sampling, word by word and replayed from graphs; the captions are the same.

python -m bench.gpu.search [--device cpu]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.gpu.machine import begin, head, row, seconds_of
from models.decoders.base import make
from models.graphs import cuda_graphs
from models.options import Decoding
from models.replayed_search import ReplayedSearch
from models.search import Caption, Steps, decode

ROWS = {"14x14x2048": (14, 2048, 9490), "7x7x1280": (7, 1280, 9490), "4x4x400": (4, 400, 2633)}
DECODINGS = {
    "beam 5": Decoding(beam=5, max_length=20),
    "sample 5": Decoding(search="sample", n_best=5, max_length=20),
}


def main() -> None:
    device = begin(__doc__)
    gpu = device.type == "cuda"
    pictures = 256 if gpu else 16
    head(("grid", "search", "form", "pictures/s", "ratio"))
    for name in ROWS if gpu else ["4x4x400"]:
        side, channels, vocabulary = ROWS[name]
        torch.manual_seed(0)
        decoder = make("show_attend_tell", channels, vocabulary, {}).eval().to(device)
        grid = torch.randn(pictures, side, side, channels, device=device)
        for search, decoding in DECODINGS.items():
            _compare((name, search), decoder.for_inference(), grid, decoding)


def _compare(labels: tuple[str, str], stepper: Steps[Any], grid: Tensor, decoding: Decoding) -> None:
    """Print the rows of one search; SystemExit where the forms' captions differ."""
    keys, device = range(len(grid)), grid.device
    forms: dict[str, Callable[[], list[list[Caption]]]] = {
        "word by word": lambda: decode(stepper, grid, decoding, keys)
    }
    if device.type == "cuda":
        replayed = ReplayedSearch(stepper, cuda_graphs(device))
        forms["replayed"] = lambda: replayed.decode(grid, decoding, keys)
    seconds = {form: seconds_of(work, device, 10 if device.type == "cuda" else 2) for form, work in forms.items()}
    captions = [[[caption.tokens for caption in found] for found in work()] for work in forms.values()]
    if any(found != captions[0] for found in captions):
        raise SystemExit(f"{', '.join(labels)}: replayed captions are not those of word by word")
    for form, taken in seconds.items():
        row(*labels, form, f"{len(grid) / taken:,.0f}", f"{seconds['word by word'] / taken:.1f}")


if __name__ == "__main__":
    main()
