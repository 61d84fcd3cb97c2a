"""Compare extraction on two workers of a Dask cluster, also with one of them killed, with extraction on one machine.

    python -m bench.soak.cluster [--shards 40] [--rows 150] [--side 224]

The shards must have the same bytes. The single machine and each worker use one thread. The scheduler, Prefect's server
and the flow share the cores with the workers. The pictures are generated and MobileNetV2's weights are random, because
only the process is measured, not the quality of its output. Seconds are those of the stage.
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
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.machine import describe
from bench.pipelines import planned
from tasks.common.files import digest_of_file
from tasks.config.schema import Config, validate

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PREFECT_LOGGING_LEVEL": "WARNING"}
_START_SECONDS = 180  # that a server or a worker may take to start on a busy machine


class Cluster(NamedTuple):
    """address: the scheduler's. environment: variables for its clients, which include Prefect's server."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]
    environment: dict[str, str]


def main() -> None:
    args = _arguments()
    describe()
    print("\n| extraction on | seconds | shards | pictures/s | speed-up |\n| --- | --- | --- | --- | --- |")
    alone: float | None = None
    bytes_alone: dict[str, str] = {}
    for name, number, kill in (
        ("one machine", 0, False),
        ("two workers", 2, False),
        ("two workers, one killed", 2, True),
    ):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            config = config_of(Path(folder) / "workspace", args.shards, args.rows, args.side)
            cluster = stack.enter_context(dask_workers(Path(folder), number)) if number else None
            if cluster is not None and kill:
                kill_after(cluster.workers[0], config.workspace, args.shards // 4)
            extract(config, cluster)
            grids_made, seconds = shards(config.workspace), planned(config, "extract").by_kind["extract"].ledger.seconds
        alone, bytes_alone = alone or seconds, bytes_alone or grids_made
        rate = args.shards * args.rows / seconds
        print(f"| {name} | {seconds:.1f} | {len(grids_made)} | {rate:.1f} | {alone / seconds:.2f} |", flush=True)
        if grids_made != bytes_alone:
            raise SystemExit(f"{name}: not the same bytes as on one machine")
    print("\nThe shards are the same in all three, byte for byte.")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--side", type=int, default=224)
    return parser.parse_args()


def config_of(workspace: Path, number: int, rows: int, side: int) -> Config:
    """Return a config with `number` shards of `rows` pictures each. side: size they are resized to, in pixels."""
    values = {
        "name": "cluster",
        "data": {"adapter": "scenes", "pictures": number * rows, "side": 64},
        "grids": {"backbone": "mobilenet_v2", "weights": "random:0", "image_size": side},
        "decoder": {"name": "lstm"},
        "machine": {
            "workspace": str(workspace),
            "shard_rows": rows,
            "device": "cpu",
            "threads": 1,
        },
    }
    return validate(values, "cluster")


def extract(config: Config, cluster: Cluster | None) -> None:
    """Run `attend run --until extract` in a separate process; on this machine alone if the cluster is None."""
    config.workspace.mkdir(parents=True, exist_ok=True)
    file = config.workspace / "config.yaml"
    values = config.model_dump(mode="json", exclude_unset=True)
    values["machine"]["dask"] = cluster.address if cluster is not None else None
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [sys.executable, "-m", "flows.commands.cli", "run", str(file), "--until", "extract"]
    environment = cluster.environment if cluster is not None else ENVIRONMENT
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])


@contextmanager
def dask_workers(folder: Path, number: int) -> Iterator[Cluster]:
    """Run a Dask scheduler and workers, each in a separate process, and the Prefect server they report to."""
    dask, prefect = _free_port(), _free_port()
    environment = {
        **ENVIRONMENT,
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    local = ("--host", "127.0.0.1", "--port")
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", "flows.operations.run_flow")
    address = f"tcp://127.0.0.1:{dask}"
    with ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(_process(folder, environment, *command))

        start("prefect", "server", "start", *local, str(prefect))
        scheduler = start("distributed.cli.dask_scheduler", "--no-dashboard", *local, str(dask))
        workers = [
            start("distributed.cli.dask_worker", address, *options, "--local-directory", str(folder / "dask"))
            for _ in range(number)
        ]
        _wait_for(environment["PREFECT_API_URL"], address, number)
        yield Cluster(address, scheduler, workers, environment)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_for(prefect: str, dask: str, number: int) -> None:
    """Wait until the server answers and the scheduler has the given number of workers."""
    from distributed import Client

    last = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{prefect}/health", timeout=5).close()
            break
        except OSError:
            if time.monotonic() > last:
                raise
            time.sleep(0.2)
    with Client(dask, timeout=_START_SECONDS, set_as_default=False) as client:
        client.wait_for_workers(number, timeout=_START_SECONDS)


@contextmanager
def _process(folder: Path, environment: dict[str, str], *module: str) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / f"{module[0]}.log").open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", *module],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).resolve().parents[2],
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def kill_after(process: subprocess.Popen[bytes], workspace: Path, number: int) -> None:
    """Kill a worker with SIGKILL as soon as a number of shards is published."""

    def wait() -> None:
        while process.poll() is None and len(shards(workspace, digests=False)) < number:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def shards(workspace: Path, digests: bool = True) -> dict[str, str]:
    """Return the published shards by name, optionally with the digests of their files."""
    files = sorted(workspace.glob("grids/*/shard-*.parquet"))
    return {path.stem: digest_of_file(path.with_suffix(".h5")) if digests else "" for path in files}


if __name__ == "__main__":
    main()
