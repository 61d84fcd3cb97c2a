"""Compare beam search over many pictures at once with the textbook form, one picture at a time.

    python -m bench.speed.beam_search [--rounds 3] [ROW ...]

The captions of both are identical. The decoder is first trained for a minute on invented captions of about ten words,
so that its hypotheses end like real ones. Both forms take turns; the fastest of their rounds counts.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.machine import describe, precisions, timed
from bench.speed.textbook import Textbook
from models.decoders.base import Decoder, make, valid_indices
from models.options import Decoding
from models.torch_steps import decode
from models.vocabulary import END, NULL, START
from tasks.config.machine import MachineConfig
from tasks.training.batches import decode_batch_size

PICTURES, ALONE = 512, 32
LENGTH, CAPTIONS = 20, 5


@dataclass(frozen=True)
class Row:
    """A problem size. goals: beam -> the ratio to reach."""

    side: int
    channels: int
    vocabulary: int
    goals: dict[int, float]


ROWS = {"4x4x400": Row(4, 400, 2633, {3: 9, 5: 7}), "14x14x2048": Row(14, 2048, 9490, {3: 8, 5: 6})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", metavar="ROW", default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="such as cuda")
    args = parser.parse_args()
    describe()
    print("\n| grid | beam | textbook, pictures/s | ours, pictures/s | ratio | goal | words per caption |")
    print("| --- " * 7 + "|")
    for name in args.rows:
        _compare(name, ROWS[name], args.rounds, args.device)


def _compare(name: str, row: Row, rounds: int, device: str) -> None:
    torch.manual_seed(0)
    grid = torch.randn(PICTURES, row.side, row.side, row.channels).to(device)
    decoder: Any = make("show_attend_tell", row.channels, row.vocabulary, {"dropout_output": 0.0}).to(device)
    _train(decoder, grid, _captions(row).to(device))
    textbook = Textbook(decoder.eval())
    for beam, goal in row.goals.items():
        decoding = Decoding(beam=beam, max_length=LENGTH)
        size = decode_batch_size(MachineConfig(), (row.side, row.side, row.channels), beam)
        best: dict[str, float] = {}
        for _ in range(rounds):
            alone = timed(best, "textbook", lambda: _one_by_one(textbook, grid[:ALONE], beam))  # noqa: B023
            ours = timed(best, "ours", lambda: _batched(decoder, grid, decoding, size))  # noqa: B023
        if ours[:ALONE] != alone:
            different = sum(one != other for one, other in zip(ours, alone, strict=False))
            raise SystemExit(f"{name}, beam {beam}: {different} of {ALONE} captions are not the textbook form's")
        slow, fast = ALONE / best["textbook"], PICTURES / best["ours"]
        words = sum(map(len, ours)) / len(ours)
        print(f"| {name} | {beam} | {slow:.1f} | {fast:.1f} | {fast / slow:.1f} | {goal} | {words:.1f} |", flush=True)


def _captions(row: Row) -> Tensor:
    """Return captions (N, R, T). Those of a picture are walks of 7 to 13 words through a small set of its own words."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.full((PICTURES, CAPTIONS, LENGTH), NULL)
    for picture in range(PICTURES):
        own = torch.randint(4, row.vocabulary, (14,), generator=generator)
        for caption in range(CAPTIONS):
            length = int(torch.randint(7, 14, (1,), generator=generator))
            places = torch.randperm(14, generator=generator)[:length].sort().values
            tokens[picture, caption, : length + 2] = torch.tensor([START, *own[places].tolist(), END])
    return tokens


def _train(decoder: Decoder, grid: Tensor, tokens: Tensor) -> None:
    optimiser = torch.optim.Adam(decoder.parameters(), 1e-3)
    for step in range(120):
        part = torch.randperm(PICTURES)[:16] if step else torch.arange(16)
        words, targets = tokens[part, :, :-1], tokens[part, :, 1:]
        valid = targets != NULL
        with torch.autocast(grid.device.type, torch.bfloat16, enabled="bfloat16" in precisions()):
            logits, _ = decoder(grid[part], words, valid_indices(valid))
        loss = functional.cross_entropy(logits.float(), targets[valid])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _one_by_one(textbook: Textbook, grid: Tensor, beam: int) -> list[list[int]]:
    return [textbook.beam_search(picture.flatten(0, 1), beam, LENGTH) for picture in grid]


def _batched(decoder: Decoder, grid: Tensor, decoding: Decoding, size: int) -> list[list[int]]:
    speaking = decoder.for_inference()
    results = [decode(speaking, part, decoding) for part in torch.split(grid, size)]
    return [captions[0].tokens for part in results for captions in part]


if __name__ == "__main__":
    main()
