"""`attend serve` beside `mlflow models serve`: requests a second and how long they take, by how many clients ask.

    python -m bench.speed.serving PICTURES [--workspace W] [--model models:/NAME@champion] [--seconds 20] [--beam 3]

Both run on the registered model, one after the other, each alone, with the same requests: MLflow's JSON with one
picture of the folder PICTURES. `one by one` is `attend serve --batch 1`. All must say the
same captions, without an error.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import describe
from tasks.datasets.base import picture_files
from tasks.registry import tracking
from tasks.registry.versions import resolve

_CLIENTS = (1, 8, 32)
_PICTURES = 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("pictures", type=Path)
    arguments.add_argument("--workspace", type=Path, default=Path("workspace"))
    arguments.add_argument("--model")
    arguments.add_argument("--seconds", type=float, default=20.0)
    arguments.add_argument("--beam", type=int, default=3)
    given = arguments.parse_args()
    workspace = given.workspace.absolute()
    describe()
    uri = resolve(given.model, workspace)
    files = picture_files(given.pictures)[:_PICTURES]
    bodies = [request(file.read_bytes(), given.beam) for file in files]
    said: dict[str, dict[int, str]] = {}
    print(f"\n{uri}, beam {given.beam}, {given.seconds:.0f} s each\n")
    print("| server | clients | requests/s | ratio | p50, ms | p95, ms | errors |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rates: dict[int, float] = {}
    for name, command in servers(uri, workspace).items():
        with running(command, workspace) as port:
            said[name] = load(port, bodies, len(bodies), 4, math.inf)[2]
            for clients in _CLIENTS:
                seconds, errors, _ = load(port, bodies, sys.maxsize, clients, given.seconds)
                rate = len(seconds) / given.seconds
                ratio = f"{rate / rates[clients]:.2f}" if clients in rates else "1.00"
                rates.setdefault(clients, rate)
                cut = statistics.quantiles(seconds, n=100)
                print(
                    f"| {name} | {clients} | {rate:.1f} | {ratio} | {1000 * cut[49]:.0f} | {1000 * cut[94]:.0f} "
                    f"| {errors} |",
                    flush=True,
                )
                if errors:
                    raise SystemExit(f"{name}: {errors} requests failed")
    first, *others = said.values()
    if any(other != first for other in others):
        raise SystemExit("the servers do not say the same captions")
    print(f"\nall three say the same of {len(first)} pictures")


def servers(uri: str, workspace: Path) -> dict[str, list[str]]:
    """The commands, without a port."""
    here = Path(sys.executable).parent
    mlflow = [str(here / "mlflow"), "models", "serve", "--model-uri", uri, "--env-manager", "local", "--workers", "1"]
    attend = [str(here / "attend"), "serve", "--model", uri, "--workspace", str(workspace)]
    return {
        "mlflow models serve": mlflow,
        "attend serve, one by one": [*attend, "--batch", "1"],
        "attend serve": attend,
    }


@contextmanager
def running(command: list[str], workspace: Path, place: Path | None = None) -> Iterator[int]:
    """A server in a process of its own, ready, on a port that is free. place: the folder it runs in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "MLFLOW_TRACKING_URI": tracking.tracking_uri(workspace),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}",  # MLflow looks for uvicorn there
    }
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        env=environment,
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(1200):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)}: ended before it was ready")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/ping")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def request(photograph: bytes, beam: int) -> bytes:
    frame = {"columns": ["image"], "data": [[base64.b64encode(photograph).decode()]]}
    return json.dumps({"dataframe_split": frame, "params": {"beam_size": beam}}).encode()


def load(
    port: int, bodies: list[bytes], most: int, clients: int, seconds: float
) -> tuple[list[float], int, dict[int, str]]:
    """Seconds of each request, how many failed, and what was said: `clients` ask one request after another.

    It ends after so many requests or seconds.
    """
    lasted: list[float] = []
    said: dict[int, str] = {}
    errors = [0]
    taken = iter(range(most))
    lock = threading.Lock()
    ends = time.perf_counter() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() < ends:
            with lock:
                number = next(taken, None)
            if number is None:
                return
            begun = time.perf_counter()
            connection.request(
                "POST", "/invocations", bodies[number % len(bodies)], {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            told = response.read()
            lasted.append(time.perf_counter() - begun)
            if response.status != 200:
                errors[0] += 1
                continue
            (row,) = json.loads(told)["predictions"]
            if row["error"] is not None:
                errors[0] += 1
            said[number % len(bodies)] = row["caption"]

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lasted, errors[0], said


if __name__ == "__main__":
    main()
