"""Training over a cache far larger than memory: what stays resident, and how fast it is read, in both orders.

    python -m bench.soak.large [--gb 60] [--folder FOLDER]

Grids of 14x14x2048, generated; a small attention LSTM with one caption a picture, so that reading is what takes the
time. Resident is what /proc tells of the process (its own memory and mapped pages), above what it had with the model
made and nothing read. The disk's own rate is that of the files read in order, dropped from the page cache before.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from bench.machine import describe
from bench.speed.reading import BYTES, LARGE, batches_of, drop, in_order, shown_tracking_uri
from models.decoders.base import make
from tasks.config.training import TrainingConfig
from tasks.training.batches import GridBatches
from tasks.training.objectives import Count, CrossEntropy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gb", type=float, default=60, help="size of the cache, 10^9 bytes")
    parser.add_argument("--block", type=int, default=32, help="training.block of the second order")
    parser.add_argument("--folder", type=Path, help="where the cache is made for a while")
    given = parser.parse_args()
    describe()
    rows = int(given.gb * 1e9 / BYTES)
    free = shutil.disk_usage(given.folder or tempfile.gettempdir()).free
    if free < rows * BYTES * 1.01:
        raise SystemExit(f"the cache needs {given.gb:.0f} GB, {free / 1e9:.0f} are free: --folder")
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        store = shown_tracking_uri(Path(scratch), rows, LARGE)
        drop(store)
        seconds = in_order(store)
        print(f"\n{rows:,} grids, {rows * BYTES / 1e9:.0f} GB\n")
        print(
            "| what | pictures | s | MB/s | of the disk's | resident beyond what was, MiB |\n| --- "
            + "| --- " * 5
            + "|"
        )
        disk = rows * BYTES / seconds / 1e6
        print(f"| the files in order | {rows:,} | {seconds:.0f} | {disk:,.0f} | 1 | |", flush=True)
        for name, block in ((f"blocks of {given.block}", given.block), ("random", None)):
            for learns in (False, True):
                drop(store)
                _epoch(f"{name}, {'trained on' if learns else 'read alone'}", batches_of(store, block), learns, disk)


def _epoch(name: str, batches: GridBatches, learns: bool, disk: float) -> None:
    torch.manual_seed(0)
    decoder: Any = make("attention_lstm", LARGE[2], 100, {"embedding": 16, "hidden": 32, "attention_size": 16})
    optimiser = torch.optim.AdamW(decoder.parameters(), 1e-3, fused=True)
    objective = CrossEntropy(TrainingConfig())
    done = 0
    with _Resident() as resident:
        began = time.perf_counter()
        for batch in batches.epoch(0):
            if learns:
                optimiser.zero_grad()
                objective(decoder, batch, Count.of(batch), 0.0).loss.backward()
                optimiser.step()
            done += len(batch.pictures)
        seconds = time.perf_counter() - began
    rate = done * BYTES / seconds / 1e6
    print(f"| {name} | {done:,} | {seconds:.0f} | {rate:,.0f} | {rate / disk:.2f} | {resident.most:,.0f} |", flush=True)


class _Resident:
    """The most that was resident while the block took, MiB above what was when it began."""

    def __init__(self) -> None:
        self.most = 0.0
        self._end = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Resident:
        self._before = _resident()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            self.most = max(self.most, _resident() - self._before)


def _resident() -> float:
    told = Path("/proc/self/status").read_text(encoding="ascii")
    return int(told.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
