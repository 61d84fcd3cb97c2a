"""Extraction by two workers of a Dask cluster, also with one of them killed, beside one machine: the same bytes?

    python -m bench.cluster [--shards 40] [--rows 50] [--side 224]

One machine and each worker have one thread. The pictures are generated and MobileNetV2's weights random: what is
measured is the way, not what comes of it. Seconds are the stage's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from bench.machine import describe
from tasks.config import Config, validate
from tasks.ledger import digest_of_file
from tasks.stages import artifact

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PREFECT_LOGGING_LEVEL": "WARNING"}


def main() -> None:
    given = _arguments()
    describe()
    print("\n| extracted by | s | shards | pictures/s | speed-up |\n| --- | --- | --- | --- | --- |")
    alone: float | None = None
    bytes_alone: dict[str, str] = {}
    for name, number, kill in (("one machine", 0, False), ("two workers", 2, False), ("two, one killed", 2, True)):
        with tempfile.TemporaryDirectory() as folder, dask_workers(Path(folder), number) as (address, workers):
            config = config_of(Path(folder) / "workspace", given.shards, given.rows, given.side)
            if kill:
                kill_after(workers[0], config.workspace, given.shards // 4)
            extract(config, address)
            made, seconds = shards(config.workspace), artifact(config, "extract", "extract").ledger.seconds
        alone, bytes_alone = alone or seconds, bytes_alone or made
        rate = given.shards * given.rows / seconds
        print(f"| {name} | {seconds:.1f} | {len(made)} | {rate:.1f} | {alone / seconds:.2f} |", flush=True)
        if made != bytes_alone:
            raise SystemExit(f"{name}: not the same bytes as on one machine")
    print("\nThe shards are the same in all three, byte for byte.")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--side", type=int, default=224)
    return parser.parse_args()


def config_of(workspace: Path, number: int, rows: int, side: int) -> Config:
    """So many shards of so many pictures each; side: what they are resized to, px."""
    values = {
        "name": "cluster",
        "data": {"adapter": "scenes", "pictures": number * rows, "side": 64},
        "grids": {"backbone": "mobilenet_v2", "weights": "random:0", "image_size": side},
        "decoder": {"name": "lstm"},
        "machine": {"workspace": str(workspace), "shard_rows": rows, "device": "cpu", "threads": 1},
    }
    return validate(values, "cluster")


def extract(config: Config, dask: str | None) -> None:
    """`attend run --until extract`, in a process of its own."""
    config.workspace.mkdir(parents=True, exist_ok=True)
    file = config.workspace / "config.yaml"
    values = config.model_dump(mode="json", exclude_unset=True)
    values["machine"]["dask"] = dask
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [sys.executable, "-m", "flows.cli", "run", str(file), "--until", "extract"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])


@contextmanager
def dask_workers(folder: Path, number: int) -> Iterator[tuple[str | None, list[subprocess.Popen[bytes]]]]:
    """A scheduler's address and its workers, each a process of its own; None where there are to be no workers."""
    with socket.socket() as free, ExitStack() as stack:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        if number:
            host, port = address.removeprefix("tcp://").split(":")
            stack.enter_context(_process(folder, "scheduler", "--host", host, "--port", port))
        options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(folder / "dask"))
        workers = [stack.enter_context(_process(folder, "worker", address, *options)) for _ in range(number)]
        if number:
            from distributed import Client

            with Client(address, timeout=60, set_as_default=False) as client:
                client.wait_for_workers(number, timeout=60)
        yield (address if number else None), workers


@contextmanager
def _process(folder: Path, what: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options, "--no-dashboard"]
    with (
        (folder / f"{what}.log").open("ab") as log,
        subprocess.Popen(
            command, env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT, cwd=Path(__file__).resolve().parents[1]
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def kill_after(worker: subprocess.Popen[bytes], workspace: Path, number: int) -> None:
    """SIGKILL for a worker as soon as so many shards are published."""

    def wait() -> None:
        while worker.poll() is None and len(shards(workspace, digests=False)) < number:
            time.sleep(0.05)
        worker.send_signal(signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def shards(workspace: Path, digests: bool = True) -> dict[str, str]:
    """The published shards, by name, with the digests of their files where asked for."""
    found = sorted(workspace.glob("grids/*/shard-*.parquet"))
    return {path.stem: digest_of_file(path.with_suffix(".h5")) if digests else "" for path in found}


if __name__ == "__main__":
    main()
