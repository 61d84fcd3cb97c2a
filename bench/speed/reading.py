"""Reading the cache: a shuffled epoch against the files read in order, and against h5py one row a caption.

    python -m bench.speed.reading [--rows 2600] [--cold-gib N]

Grids of 14x14x2048, 803 KB each, and of 4x4x400. Warm: all in the page cache, fully random order. Cold: a cache larger
than memory (by 2 GiB unless --cold-gib says otherwise, 0 leaves it out), dropped from the page cache before each
reading, in blocks with read-ahead. What is read in order are the files' bytes; an epoch gives batches as training gets
them, in float32.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bench.machine import describe
from models.vocabulary import END, START
from tasks.data.caption_files import CaptionedPicture
from tasks.grids.identity import Identity
from tasks.grids.reader import GridReader
from tasks.grids.store import GridStore
from tasks.training.batches import GridBatches

LARGE, SMALL = (14, 14, 2048), (4, 4, 400)
CAPTIONS, SHARD, BATCH = 5, 512, 16
BYTES = 2 * int(np.prod(LARGE))
IDENTITY = Identity("bench", "random:0", 448, "squash", None, "float32", 1)
GOALS = {"warm": 0.9, "cold": 0.75, "h5py": 50.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2600, help="of the warm cache")
    parser.add_argument("--cold-gib", type=float, default=_memory() / 2**30 + 2)
    parser.add_argument("--block", type=int, default=32, help="training.block of the cold epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the caches are made for a while")
    given = parser.parse_args()
    describe()
    print("\n| what | rows/s | ratio | goal |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for shape, rows in ((LARGE, given.rows), (SMALL, 20 * given.rows)):
            _warm(shown_tracking_uri(Path(scratch) / str(rows), rows, shape), shape, given.rounds)
    if given.cold_gib:
        rows = int(given.cold_gib * 2**30 / BYTES)
        free = shutil.disk_usage(given.folder or tempfile.gettempdir()).free
        if free < rows * BYTES * 1.05:
            raise SystemExit(f"the cold cache needs {given.cold_gib:.0f} GiB, {free / 2**30:.0f} are free: --folder")
        with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
            _cold(shown_tracking_uri(Path(scratch) / "cold", rows, LARGE), given.block)


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def shown_tracking_uri(folder: Path, rows: int, shape: tuple[int, int, int]) -> GridStore:
    store = GridStore(folder, IDENTITY)
    store.open()
    values = np.random.default_rng(0).normal(size=(SHARD, *shape)).astype(np.float16)
    for first in range(0, rows, SHARD):
        count = min(SHARD, rows - first)
        values[:, 0, 0, 0] = np.arange(SHARD) + first % 1000  # shards differ
        store.write([values[:count]], [f"{first + row:08d}" for row in range(count)], [(1, 1)] * count)
    return store


def batches_of(store: GridStore, block: int | None) -> GridBatches:
    rows = store.rows()[0]
    tokens = np.array([[START, 4, END]] * CAPTIONS)
    return GridBatches([CaptionedPicture(digest, tokens) for digest in rows], GridReader(store, rows), BATCH, 0, block)


def _warm(store: GridStore, shape: tuple[int, int, int], rounds: int) -> None:
    name = f"warm, {'x'.join(map(str, shape))}"
    batches = batches_of(store, None)
    rows = len(batches.captioned)
    best: dict[str, float] = {}
    for number in range(rounds):
        best["order"] = min(best.get("order", 1e9), in_order(store))
        best["copy"] = min(best.get("copy", 1e9), _copy(batches, number))
        best["epoch"] = min(best.get("epoch", 1e9), _epoch(batches, number))
    _tell(f"{name}, the files in order", rows / best["order"])
    _tell(
        f"{name}, shuffled, as kept (float16)",
        rows / best["copy"],
        best["order"] / best["copy"],
        GOALS["warm"] if shape == LARGE else None,
    )
    _tell(f"{name}, a shuffled epoch (float32 batches)", rows / best["epoch"], best["order"] / best["epoch"])
    captions = min(_one_a_caption(store) for _ in range(rounds))
    _tell(f"{name}, h5py, one row a caption: captions/s", 1 / captions)
    given = best["epoch"] / rows / CAPTIONS
    _tell(f"{name}, a shuffled epoch: captions/s", 1 / given, captions / given, GOALS["h5py"])


def _cold(store: GridStore, block: int) -> None:
    batches = batches_of(store, block)
    rows = len(batches.captioned)
    drop(store)
    order = in_order(store)
    drop(store)
    epoch = _epoch(batches, 0)
    size = f"{rows * BYTES / 2**30:.0f} GiB"
    _tell(f"cold, 14x14x2048, {size}, the files in order", rows / order)
    _tell(f"cold, 14x14x2048, {size}, an epoch in blocks of {block}", rows / epoch, order / epoch, GOALS["cold"])


def _tell(what: str, rate: float, ratio: float | None = None, goal: float | None = None) -> None:
    print(f"| {what} | {rate:,.0f} | {'' if ratio is None else f'{ratio:.2f}'} | {goal or ''} |", flush=True)


def in_order(store: GridStore) -> float:
    """Seconds to read every byte of the shards into one buffer, file after file."""
    buffer = bytearray(8 << 20)
    began = time.perf_counter()
    for shard in store.shards():
        with shard.path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - began


def _copy(batches: GridBatches, number: int) -> float:
    order = batches.order(number)
    began = time.perf_counter()
    for at in range(0, len(order), BATCH):
        batches.grids.read([batches.captioned[place].digest for place in order[at : at + BATCH]])
    return time.perf_counter() - began


def _epoch(batches: GridBatches, number: int) -> float:
    began = time.perf_counter()
    for _ in batches.epoch(number):
        pass
    return time.perf_counter() - began


class Captions(Dataset[Tensor]):
    """As tutorials write it: an item a caption, its picture's row read by h5py."""

    def __init__(self, path: Path) -> None:
        self.grid: Any = h5py.File(path, "r")["grid"]

    def __len__(self) -> int:
        return len(self.grid) * CAPTIONS

    def __getitem__(self, place: int) -> Tensor:
        return torch.from_numpy(self.grid[place // CAPTIONS]).float()


def _one_a_caption(store: GridStore) -> float:
    """Seconds a caption, over those of one shard: a second and a half at the least."""
    began, seen = time.perf_counter(), 0
    for batch in DataLoader(Captions(store.shards()[0].path), batch_size=BATCH * CAPTIONS, shuffle=True):
        seen += len(batch)
        if time.perf_counter() - began > 1.5:
            break
    return (time.perf_counter() - began) / seen


def drop(store: GridStore) -> None:
    for shard in store.shards():
        with shard.path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
