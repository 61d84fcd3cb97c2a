"""Measure seconds and memory of `attend status` and of `attend run` with nothing to do, on 120,000 pictures.

    python -m bench.speed.status [--pictures 120000] [--folder FOLDER]

The pictures are files of a few bytes and are never decoded; their grids are 1x1x4 and generated here. Each command is
run five times; the files are in the page cache. With --folder, the workspace is kept and only created once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.pipelines import run_one
from tasks.config.schema import Config
from tasks.data.manifest import MANIFEST
from tasks.grids.identity import identity_of
from tasks.grids.store import GridStore
from tasks.grids.weights import weight_digests
from tasks.pipeline.workspace import Workspace

TIMES = 5
LIMITS = {"status": (1.0, 300), "run": (3.0, None)}  # seconds, MiB


def main() -> None:
    args = _arguments()
    if args.make:
        _make(args.folder, args.pictures)
        return
    with tempfile.TemporaryDirectory(prefix="attend-status-") as scratch:
        folder = args.folder or Path(scratch)
        config = folder / "many.yaml"
        if not config.exists():
            # In a process of its own: a child's peak memory begins with that of its parent.
            subprocess.run(
                [sys.executable, "-m", "bench.speed.status", "--make", *_place(folder, args.pictures)], check=True
            )
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {args.pictures:,} pictures"
        )
        missed = False
        for command in (["status"], ["run", "--until", "remember"]):  # the report needs photographs
            times, memory = zip(*(_timed([command[0], str(config), *command[1:]]) for _ in range(TIMES)), strict=True)
            seconds, most = sorted(times)[TIMES // 2], max(memory)
            limit, room = LIMITS[command[0]]
            missed = missed or seconds > limit or (room is not None and most > room)
            print(f"attend {command[0]}: {seconds:.2f} s (limit {limit:.0f}), {most:.0f} MiB (limit {room or 'none'})")
    sys.exit(missed)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pictures", type=int, default=120_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _place(folder: Path, count: int) -> list[str]:
    return ["--folder", str(folder), "--pictures", str(count)]


def _make(folder: Path, count: int) -> None:
    """Write `many.yaml`, a config with all stages up to remember already run."""
    pictures = folder / "pictures"
    pictures.mkdir(parents=True)
    names = [f"{number:06d}.jpg" for number in range(count)]
    for name in names:
        (pictures / name).write_bytes(name.encode())
    rows = [
        {
            "file_name": name,
            "text": f"picture number {at % 7}",
            "split": "dev" if at < 50 else "test" if at < 100 else "train",
        }
        for at, name in enumerate(names)
    ]
    (pictures / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    values = {
        "data": {"adapter": "imagefolder", "path": str(pictures)},
        "grids": {"backbone": "tiny", "weights": "random:0", "image_size": 32},
        "decoder": {"name": "lstm", "embedding": 8, "hidden": 8},
        "training": {"epochs": 1, "batch_pictures": 1024},
        "evaluation": {"beam": 1},
        "machine": {"workspace": str(folder / "workspace"), "shard_rows": 4096},
    }
    unfinished = folder / "many.yaml.unfinished"
    unfinished.write_text(json.dumps({"name": "many", **values}), encoding="utf-8")
    config = Config.model_validate(json.loads(unfinished.read_text(encoding="utf-8")))
    manifest = run_one(config, "ingest").path
    digests = pq.read_table(manifest / MANIFEST, columns=["digest"])["digest"].to_pylist()
    identity = identity_of(config.grids, weight_digests(config.grids, config.machine)["weights"])
    store = GridStore(Workspace(config.workspace).grids, identity)
    store.open()
    chance = np.random.default_rng(0)
    for start in range(0, count, config.machine.shard_rows):  # the photographs cannot be read, so none is encoded
        part = digests[start : start + config.machine.shard_rows]
        grids = chance.normal(size=(len(part), 1, 1, 4)).astype(np.float16)
        store.publish(store.draft([grids], part, [(32, 32)] * len(part), store.next_number()))
    for stage in ("extract", "tensorise", "train", "remember"):
        run_one(config, stage)
    unfinished.rename(folder / "many.yaml")


def _timed(arguments: list[str]) -> tuple[float, float]:
    """Return the seconds and the peak memory in MiB of one `attend` command."""
    began = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.commands.cli", *arguments], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    output = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    if status != 0 or "fresh       remember" not in output:
        raise SystemExit(f"attend {' '.join(arguments)}: {output}")
    return seconds, used.ru_maxrss / 1024


if __name__ == "__main__":
    main()
