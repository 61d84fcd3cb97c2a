"""An epoch over a made-up cache as large as COCO's train split: grids read from files, and kept in the GPU's memory.

    python -m bench.gpu.epoch [--device cpu]

113,287 pictures of five captions: 4x4x400 is 1.4 GiB. At 7x7x1280 (13 GiB) and 14x14x2048 (85 GiB) a share of the
pictures is taken, and the seconds are those of the whole by proportion.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.gpu.machine import begin, head, row, synchronise
from models.decoders.base import make
from models.vocabulary import END, START
from tasks.common.progress import Stopwatch
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.config.training import TrainingConfig
from tasks.data.caption_files import CaptionedPicture
from tasks.grids.identity import identity_of
from tasks.grids.reader import GridReader
from tasks.grids.store import GridStore
from tasks.training.batches import GridBatches, ResidentBatches
from tasks.training.loop import TrainingLoop, WeightGroup
from tasks.training.objectives import CrossEntropy

COCO, V, BATCH = 113_287, 9490, 64
ROWS = {"4x4x400": (4, 400, COCO), "7x7x1280": (7, 1280, 24_000), "14x14x2048": (14, 2048, 6_000)}


def main() -> None:
    device = begin(__doc__)
    gpu = device.type == "cuda"
    head(("grid", "pictures", "grids", "GiB", "steps/s", "an epoch of COCO, s"))
    for name, (side, channels, pictures) in ROWS.items() if gpu else [("2x2x16", (2, 16, 256))]:
        with tempfile.TemporaryDirectory() as folder:
            reader, captioned = made_up(Path(folder), side, channels, pictures)
            for kind in ("read from files", "resident"):
                batches_class = ResidentBatches if kind == "resident" else GridBatches
                batches = batches_class(captioned, reader, BATCH, 0, device=device)
                rate = steps_a_second(batches, channels, device, Path(folder))
                steps = -(-COCO // BATCH)
                row(name, f"{pictures:,}", kind, f"{reader.size / 2**30:.1f}", f"{rate:.1f}", f"{steps / rate:,.0f}")


def made_up(folder: Path, side: int, channels: int, pictures: int) -> tuple[GridReader, list[CaptionedPicture]]:
    """Return a store of random grids, and their captions of eight to twelve words."""
    grids = GridsConfig(backbone="tiny", weights="random:0", image_size=64)
    store = GridStore(folder, identity_of(grids, "random:0"))
    store.open()
    generator = np.random.default_rng(0)
    names = [f"{index:064x}" for index in range(pictures)]
    for start in range(0, pictures, 512):
        part = names[start : start + 512]
        slab = generator.random((len(part), side, side, channels), dtype=np.float32).astype(np.float16)
        store.write([slab], part, [(64, 64)] * len(part))
    tokens = generator.integers(4, V, (pictures, 5, 14), dtype=np.int32)
    tokens[:, :, 0] = START
    for row_of, length in zip(tokens.reshape(-1, 14), generator.integers(8, 13, pictures * 5), strict=True):
        row_of[length + 1], row_of[length + 2 :] = END, 0
    captioned = [CaptionedPicture(name, own) for name, own in zip(names, tokens, strict=True)]
    return GridReader(store, store.rows()[0]), captioned


def steps_a_second(batches: Any, channels: int, device: torch.device, out: Path) -> float:
    """Return the steps a second of an epoch, after a few that do not count."""
    torch.manual_seed(0)
    decoder = make("show_attend_tell", channels, V, {})
    gpu = device.type == "cuda"
    training = TrainingConfig(epochs=2, precision="bfloat16" if gpu else "float32", batch_pictures=BATCH)
    machine = MachineConfig(device=device.type, compile=gpu)
    groups: Any = [WeightGroup(1e-4, decoder.parameters())]
    loop = TrainingLoop(decoder, groups, training, machine, batches, out, CrossEntropy(training))
    warm = 24 if gpu else 1
    watch, steps = Stopwatch(), 0
    for step in loop.ahead(batches.epoch(0)):
        if steps == warm:
            synchronise(device)
            watch = Stopwatch()
        loop.learn(step)
        steps += 1
    loop.tally.read()
    return (steps - warm) / watch.seconds()


if __name__ == "__main__":
    main()
