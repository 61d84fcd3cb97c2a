"""A fine-tuning step from photographs, and encoding, with what is done for processors and without it.

    python -m bench.speed.tuning_step [--rounds 4] [--threads N] [BACKBONE:PX ...]

A step is the forward and backward pass of 16 photographs with five captions each, in the precision that the processor
has. All forms take turns on the same weights and photographs; the fastest of their rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from bench.machine import describe, precisions
from models import end_to_end
from models.backbones.base import Backbone, make
from models.backbones.encoder import Encoder
from models.decoders.base import make as make_decoder

PICTURES, CAPTIONS, WORDS, VOCABULARY = 16, 5, 13, 2536
BACKBONES = ("mobilenet_v2:224", "timm:tf_efficientnet_lite2:260")


def main() -> None:
    given = _arguments()
    torch.set_num_threads(given.threads)
    describe()
    print("\n| backbone | work | form | seconds | ratio |\n| --- | --- | --- | --- | --- |")
    for name in given.backbones:
        backbone_name, _, size = name.rpartition(":")
        torch.manual_seed(0)
        photographs = torch.randint(0, 256, (PICTURES, int(size), int(size), 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        backbone = make(backbone_name)
        for work, forms in (("step", _steps(backbone, photographs)), ("encoding", _encodings(backbone, photographs))):
            best = _fastest(forms, given.rounds)
            for form, seconds in best.items():
                ratio = next(iter(best.values())) / seconds
                print(f"| {backbone_name}, {size} px | {work} | {form} | {seconds:.2f} | {ratio:.2f} |", flush=True)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("backbones", nargs="*", default=BACKBONES)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_intermixed_args()


def _steps(backbone: Backbone, photographs: Tensor) -> dict[str, Callable[[], float]]:
    """Return the forms of a training step, by name."""
    options = {"output": "deep", "pca_dim": 512}
    model = end_to_end.EndToEnd(backbone, make_decoder("show_attend_tell", 1280, VOCABULARY, options)).train()
    backbone.unfreeze(1, photographs.shape[-1])
    words = torch.randint(4, VOCABULARY, (PICTURES, CAPTIONS, WORDS))
    places = torch.arange(words.numel())
    precision = precisions()[-1]

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits, _ = model(photographs, words, places)
        functional.cross_entropy(logits.float(), words.flatten()).backward()
        model.zero_grad(set_to_none=True)

    def plain() -> None:
        with mock.patch.object(end_to_end, "_grouped_convolutions", lambda _: contextlib.nullcontext()):
            step()

    return {
        f"{precision}, plain": partial(_seconds, plain),
        "grouped convolutions in float32": partial(_seconds, step),
    }


def _encodings(backbone: Backbone, photographs: Tensor) -> dict[str, Callable[[], float]]:
    """Return the forms of encoding photographs in float32, by name."""
    with mock.patch.object(type(backbone), "fold", lambda _: None):
        plain = Encoder(backbone)
    folded = Encoder(backbone)
    return {
        "float32, plain": partial(_seconds, partial(plain, photographs)),
        "batch norms folded": partial(_seconds, partial(folded, photographs)),
    }


def _seconds(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def _fastest(forms: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the seconds of each form's fastest round; in each round the forms take turns."""
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(rounds):
        best = {name: min(best[name], seconds_of()) for name, seconds_of in forms.items()}
    return best


if __name__ == "__main__":
    main()
