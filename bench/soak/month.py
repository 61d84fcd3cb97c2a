"""Simulate a month of nightly runs at the size of COCO and beyond: pictures are added and removed, machines die.

    python -m bench.soak.month [--pictures 123000] [--added 4000] [--nights 30] [--workers 8] [--seed 0]

The cluster's time is simulated. The bookkeeping (store, shards, indexes, publication, cleaning) is the program's own,
and is measured in seconds of this machine. A worker processes one shard after another. Sometimes it dies in the middle
of a shard, which another worker then makes again. The leader dies too, and the night's run starts again. A grid is two
numbers that identify its picture. Each night the script checks the following rules, and ends if one does not hold:
every picture has exactly one grid, its own; nothing published was extracted again; a run with nothing new extracts
nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import random
import resource
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.machine import describe
from tasks.common.log import silence
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.grids.extraction import ExtractHooks, Publish, ShardJob, ShardResult, bring_up_to_date
from tasks.grids.identity import Identity
from tasks.grids.index import INDEX
from tasks.grids.reader import GridReader
from tasks.grids.store import GridRow, Grids, GridStore
from tasks.pipeline.workspace import Workspace

RATE = 100.0  # pictures a second of one worker
WORKER_DIES, LEADER_DIES = 0.02, 0.25  # a shard; a night
Waiting = deque[ShardJob]
IDENTITY = Identity("bench", "random:0", 224, "squash", None, "float32", 1)


class LeaderDiedError(Exception):
    """The process that held the lock has died."""


@dataclass
class Cluster:
    """Workers that make shards in simulated time, and die at random."""

    workers: int
    chance: random.Random
    store: GridStore
    encoded: dict[str, int] = field(default_factory=dict)  # name -> how often it was encoded
    published: set[str] = field(default_factory=set)
    seconds: float = 0.0
    lost_shards: int = 0
    dies: int | None = None  # after so many shards the leader does, this time

    def __call__(self, works: Sequence[ShardJob], publish: Publish) -> None:
        waiting = deque(works)
        running: list[tuple[float, int, ShardJob]] = []  # when it ends, by which worker, what
        for worker in range(min(self.workers, len(waiting))):
            self._take(running, 0.0, worker, waiting)
        at = 0.0
        while running:
            at, worker, work = heapq.heappop(running)
            if self.chance.random() < WORKER_DIES:
                self.lost_shards += 1
                waiting.appendleft(work)
                self._take(running, at + 60, worker, waiting)  # a new one comes in its place
                continue
            if self.dies == 0:
                self.seconds += at
                raise LeaderDiedError
            self.dies = None if self.dies is None else self.dies - 1
            publish(self._make(work))
            self.published.update(name for name, _ in work.photographs)
            if waiting:
                self._take(running, at, worker, waiting)
        self.seconds += at

    def _take(self, running: list[tuple[float, int, ShardJob]], at: float, worker: int, waiting: Waiting) -> None:
        work = waiting.popleft()
        for name, _ in work.photographs:
            assert name not in self.published, f"{name} is extracted again"
            self.encoded[name] = self.encoded.get(name, 0) + 1
        heapq.heappush(running, (at + len(work.photographs) / RATE, worker, work))

    def again(self) -> int:
        """Return the encodings beyond one per picture: of shards that were lost with a worker, or not yet published."""
        return sum(self.encoded.values()) - len(self.encoded)

    def _make(self, work: ShardJob) -> ShardResult:
        names = [name for name, _ in work.photographs]
        draft = self.store.draft(
            [np.stack([grid_of(name) for name in names])], names, [(1, 1)] * len(names), work.number
        )
        return ShardResult(draft, [])


def grid_of(name: str) -> Grids:
    """Return a grid (1, 1, 2) float16 that is a function of the name."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.array([[[digest[0], digest[1]]]], dtype=np.float16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pictures", type=int, default=123_000)
    parser.add_argument("--added", type=int, default=4_000, help="a night, on average")
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    describe()
    silence()
    print(
        "\n| night | pictures | new | shards | workers lost | leaders lost | re-encoded | hours"
        " | bookkeeping, s | peak memory, MiB |"
    )
    print("| --- " * 10 + "|")
    with tempfile.TemporaryDirectory() as folder:
        _month(Path(folder), args)
    print("\nEach night every picture had one grid, its own, and none that was published was extracted again.")


def _month(folder: Path, args: Any) -> None:
    chance = random.Random(args.seed)
    machine = MachineConfig(workspace=str(folder), device="cpu")
    workspace = Workspace(folder)
    workspace.prepare()
    cluster = Cluster(args.workers, chance, GridStore(workspace.grids, IDENTITY))
    pictures: dict[str, Path] = {}
    for night in range(args.nights + 1):
        new = args.pictures if night == 0 else chance.randrange(2 * args.added) * (night % 7 != 0)  # none on Sundays
        for name in chance.sample(sorted(pictures), len(pictures) // 100):
            del pictures[name]
        pictures |= {chance.randbytes(32).hex(): Path("photograph") for _ in range(new)}
        before = cluster.seconds, cluster.lost_shards, cluster.again()
        lost, began = 0, time.perf_counter()
        cluster.dies = chance.randrange(max(new // 512, 1)) if chance.random() < LEADER_DIES and new else None
        while not _night(pictures, machine, cluster, folder / "out"):
            lost, cluster.dies = lost + 1, None
        seconds = time.perf_counter() - began
        _check(pictures, cluster, machine, folder / "out", chance)
        shards = len(cluster.store.shards())
        hours = (cluster.seconds - before[0]) / 3600
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if night % 5 == 0 or lost:
            print(
                f"| {night} | {len(pictures):,} | {new:,} | {shards:,} | {cluster.lost_shards - before[1]} | {lost} | "
                f"{cluster.again() - before[2]:,} | {hours:.2f} | {seconds:.1f} | {peak:,.0f} |",
                flush=True,
            )


def _night(pictures: dict[str, Path], machine: MachineConfig, cluster: Cluster, out: Path) -> bool:
    """Run the extraction. Return whether its leader survived."""
    out.mkdir(exist_ok=True)
    grids = GridsConfig(backbone="tiny", weights="random:0", image_size=224)
    try:
        bring_up_to_date(dict(pictures), IDENTITY, grids, machine, None, out, ExtractHooks(executor=cluster))
    except LeaderDiedError:
        return False
    return True


def _check(
    pictures: dict[str, Path], cluster: Cluster, machine: MachineConfig, out: Path, chance: random.Random
) -> None:
    table = pq.read_table(out / INDEX)
    digests = table["digest"].to_pylist()
    assert len(digests) == len(set(digests)) and set(digests) == set(pictures), "not every picture has one grid"
    places = zip(table["shard"].to_pylist(), table["row"].to_pylist(), strict=True)
    rows = {digest: GridRow(*place) for digest, place in zip(digests, places, strict=True)}
    sample = chance.sample(digests, 500)
    read = GridReader(cluster.store, {digest: rows[digest] for digest in sample}).read(sample)
    for digest, grid in zip(sample, read, strict=True):
        assert np.array_equal(grid, grid_of(digest)), f"{digest} has the grid of another picture"
    encoded = dict(cluster.encoded)
    assert _night(pictures, machine, cluster, out) and cluster.encoded == encoded, (
        "a run with nothing new extracted something"
    )


if __name__ == "__main__":
    main()
