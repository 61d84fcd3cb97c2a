"""Compare `attend serve` with `mlflow models serve`: requests per second and latency by the number of clients.

    python -m bench.speed.serving PICTURES [--workspace W] [--model models:/NAME@champion] [--seconds 20] [--beam 3]

The servers run on the registered model one after another, with the same requests: MLflow's JSON with one picture of the
folder PICTURES. `attend serve` runs once for each runtime that the version was registered for. All servers must answer
without an error and give the same captions, except runtimes with smaller weights, whose different captions are counted.
The ratio is to `attend serve` on torch.
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
from typing import get_args

from bench.machine import describe
from models.options import Runtime
from tasks.datasets.base import picture_files
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import bundle_of
from tasks.mlflow_store.versions import find

_CLIENTS = (1, 8, 32)
_PICTURES = 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("pictures", type=Path)
    arguments.add_argument("--workspace", type=Path, default=Path("workspace"))
    arguments.add_argument("--model")
    arguments.add_argument("--seconds", type=float, default=20.0)
    arguments.add_argument("--beam", type=int, default=3)
    args = arguments.parse_args()
    workspace = args.workspace.absolute()
    describe()
    uri = find(args.model, workspace).address
    files = picture_files(args.pictures)[:_PICTURES]
    bodies = [request(file.read_bytes(), args.beam) for file in files]
    captions: dict[str, dict[int, str]] = {}
    print(f"\n{uri}, beam {args.beam}, {args.seconds:.0f} s each\n")
    print("| server | clients | requests/s | ratio | p50, ms | ratio | p95, ms | errors | different captions |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    first: dict[int, tuple[float, float]] = {}  # by how many clients: requests/s and p50 of the first server
    for name, command in servers(uri, workspace).items():
        with running(command, workspace) as port:
            captions[name] = load(port, bodies, len(bodies), 4, math.inf)[2]
            for clients in _CLIENTS:
                seconds, errors, _ = load(port, bodies, sys.maxsize, clients, args.seconds)
                rate = len(seconds) / args.seconds
                cut = statistics.quantiles(seconds, n=100)
                of_torch = first.setdefault(clients, (rate, cut[49]))
                in_torch = next(iter(captions.values()))
                differing = sum(captions[name][number] != in_torch[number] for number in in_torch)
                ratios = rate / of_torch[0], cut[49] / of_torch[1]
                print(
                    f"| {name} | {clients} | {rate:.1f} | {ratios[0]:.2f} | {1000 * cut[49]:.0f} | {ratios[1]:.2f} "
                    f"| {1000 * cut[94]:.0f} | {errors} | {differing} of {len(in_torch)} |",
                    flush=True,
                )
                if errors:
                    raise SystemExit(f"{name}: {errors} requests failed")
                if differing and not name.endswith(("float16", "int8")):
                    raise SystemExit(f"{name} does not say the same captions")


def servers(uri: str, workspace: Path) -> dict[str, list[str]]:
    """Return the commands of the servers, without a port."""
    here = Path(sys.executable).parent
    mlflow = [str(here / "mlflow"), "models", "serve", "--model-uri", uri, "--env-manager", "local", "--workers", "1"]
    attend = [str(here / "attend"), "serve", "--model", uri, "--workspace", str(workspace)]
    files = find(uri, workspace).files
    kept = [
        name for name in get_args(Runtime) if files is not None and (files / "artifacts" / bundle_of(name)).is_dir()
    ]
    on = {f"attend serve, {name}": [*attend, "--runtime", name] for name in kept}
    return {**on, "mlflow models serve": mlflow}


@contextmanager
def running(command: list[str], workspace: Path, folder: Path | None = None) -> Iterator[int]:
    """Run a server in a separate process on a free port, and wait until it is ready. folder: it runs in this one."""
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
        cwd=folder,
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
    """Return the seconds of each request, the failures and the captions; each client sends one request at a time.

    It ends after a number of requests or seconds.
    """
    lasted: list[float] = []
    captions: dict[int, str] = {}
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
            body = response.read()
            lasted.append(time.perf_counter() - begun)
            if response.status != 200:
                errors[0] += 1
                continue
            (row,) = json.loads(body)["predictions"]
            if row["error"] is not None:
                errors[0] += 1
            captions[number % len(bodies)] = row["caption"]

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lasted, errors[0], captions


if __name__ == "__main__":
    main()
