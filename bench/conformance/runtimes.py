"""Compare the captions of every preset's decoder on onnxruntime and torch, on the same grids.

    python -m bench.conformance.runtimes PRESET_OR_YAML [section.field=value ...]

Uses the grids and captions of a run, up to 1,000 pictures of the evaluated split. Each preset's decoder is first
trained on them for some steps, so that words have different probabilities. So are a Transformer and Up-Down, which no
preset has. A caption that differs is a tie if both runtimes give the two captions the same probability, to 1e-4.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.machine import describe
from bench.pipelines import planned
from models.captioned import key_of_digest
from models.captioner import Captioner
from models.decoders.base import valid_indices
from models.decoders.ensemble import make
from models.likelihood import log_probabilities, padded
from models.neighbours import pool
from models.onnx.captioner import OnnxCaptioner
from models.options import Decoding
from models.vocabulary import NULL, Vocabulary
from tasks.captioner.exported.graphs import export
from tasks.config.presets import presets
from tasks.config.schema import load
from tasks.data.caption_files import read_captions, read_vocabulary
from tasks.grids.index import open_grids
from tasks.neighbours.make_memory import memory_of

_PICTURES, _STEPS, _BATCH, _RATE = 1_000, 40, 32, 0.003
_TOGETHER = 100  # pictures captioned at once
_OTHERS = {"transformer": "transformer", "up_down": "up_down"}


def main() -> None:
    config = load(sys.argv[1], sys.argv[2:])
    artifacts = planned(config, "tensorise").by_kind
    grids = open_grids(artifacts["extract"], config.machine)
    vocabulary = read_vocabulary(artifacts["tensorise"].path)
    train, held_out = (
        read_captions(artifacts["tensorise"].path, split) for split in ("train", config.evaluation.split)
    )
    digests = [picture.digest for picture in held_out[:_PICTURES]]
    describe()
    print(f"\n{len(digests):,} pictures of {config.evaluation.split}; {_STEPS} steps of training each\n")
    print("| decoder | preset | identical captions | ties | other differences | largest log-probability difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    shapes: dict[str, tuple[str, dict[str, Any], Decoding]] = {}
    for name in presets():
        own = load(name, sys.argv[2:3])
        options = own.decoder.options()
        key = f"{own.decoder.name} {sorted(options.items(), key=str)} {own.evaluation.decoding()}"
        shapes.setdefault(key, (name, {"name": own.decoder.name, "options": options}, own.evaluation.decoding()))
    for name in _OTHERS:
        shapes[name] = ("none", {"name": name, "options": {}}, config.evaluation.decoding())
    held = torch.from_numpy(grids.read(digests))
    for preset, shape, decoding in shapes.values():
        torch.manual_seed(0)
        whole = {**shape, "channels": held.shape[-1], "vocabulary": len(vocabulary)}
        try:
            decoder = make(**whole)
        except ValueError as error:  # of sizes that this backbone's grids do not have
            print(f"| {shape['name']} | {preset} | not of these grids: {error} | | | |", flush=True)
            continue
        teach(decoder, train, grids)
        cells = compared(decoder, whole, decoding, vocabulary, held, digests)
        print(f"| {shape['name']} | {preset} | {cells} |", flush=True)


def teach(decoder: Any, train: list[Any], grids: Any) -> None:
    """Train a decoder by teacher forcing for some steps."""
    optimiser = torch.optim.AdamW(decoder.parameters(), _RATE)
    generator = np.random.default_rng(0)
    decoder.train()
    for _ in range(_STEPS):
        chosen = [train[number] for number in generator.integers(len(train), size=_BATCH)]
        grid = torch.from_numpy(grids.read([picture.digest for picture in chosen])).float()
        words = torch.from_numpy(np.stack([picture.tokens[0] for picture in chosen])).long().unsqueeze(1)
        targets = words[:, :, 1:]
        token_indices = valid_indices(targets != NULL)
        logits, _ = decoder(grid, words[:, :, :-1].contiguous(), token_indices)
        loss = functional.cross_entropy(logits.float(), targets.flatten()[token_indices])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    decoder.eval()


def compared(
    decoder: Any,
    shape: dict[str, Any],
    decoding: Decoding,
    vocabulary: Vocabulary,
    held: torch.Tensor,
    digests: list[str],
) -> str:
    """Return how the captions of both runtimes compare, as cells of the table."""
    spec = {"name": "imported", "shape": list(held.shape[1:])}
    config = {"backbone": spec, "decoder": shape, "decoding": {**vars(decoding), "neighbours": False}}
    memory = memory_of(held.numpy().mean(axis=0, dtype=np.float32), pool(held.numpy()), 64)
    captioner = Captioner({**config, "neighbours": None}, vocabulary, None, decoder, memory)
    keys = [key_of_digest(digest) for digest in digests]
    with tempfile.TemporaryDirectory() as scratch:
        export(captioner, Path(scratch) / "exported")
        exported = OnnxCaptioner(Path(scratch) / "exported")
        same = ties = different = 0
        apart = 0.0
        for start in range(0, len(held), _TOGETHER):
            grid, some = held[start : start + _TOGETHER], keys[start : start + _TOGETHER]
            values = grid.numpy()
            rows = zip(captioner.from_grid(values, some), exported.from_grid(values, some), grid, strict=True)
            for one, other, own in rows:
                if one.tokens == other.tokens:
                    same += 1
                    apart = max(apart, abs(one.log_probability - other.log_probability))
                elif likelihood_gap(captioner, own, one.tokens, other.tokens) < 1e-4:
                    ties += 1
                else:
                    different += 1
                    print(f"torch: {one.caption} {one.log_probability}; onnx: {other.caption} {other.log_probability}")
    return f"{same:,} of {len(held):,} | {ties} | {different} | {apart:.1e}"


def likelihood_gap(captioner: Captioner, grid: torch.Tensor, one: list[str], other: list[str]) -> float:
    """Return the difference between the log-probabilities of two captions, computed by torch."""
    ids = [[captioner.vocabulary.id_of(word) for word in words] + [2] for words in (one, other)]
    words = padded(ids).unsqueeze(0)
    totals = log_probabilities(captioner.decoder, grid.float().unsqueeze(0), words)[0].sum(dim=1)
    return float((totals[0] - totals[1]).abs())


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - started:.0f} s")
