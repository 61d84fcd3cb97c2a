"""Run the pipeline with its workspace in object storage and MLflow on PostgreSQL, then caption on another machine.

    python -m bench.soak.storage [--pictures 2000]

Starts PostgreSQL (Debian's `postgresql`), an S3 server (moto) and MLflow's server in front of both, in a separate
environment, on loopback. Then runs `attend run demo` in two sets of folders, like two machines; the second run has
nothing to do. Finally runs `attend caption` in a fresh environment with an empty home folder, which knows only the
servers' addresses.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import boto3

from bench.conformance.interfaces import build, environment
from bench.machine import describe
from models.encoded_pictures import decode
from tests.servers import postgresql, running
from tests.support import free_port

_HERE = Path(__file__).resolve().parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "attend", "AWS_SECRET_ACCESS_KEY": "attend", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET, MLFLOW_BUCKET = "attend", "mlflow"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pictures", type=int, default=2000)
    args = parser.parse_args()
    describe()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attend-storage-")))
        scratch.chmod(0o755)  # PostgreSQL runs as another user
        addresses = stack.enter_context(servers(scratch))
        ours = environment(scratch / "attend", ["--require-hashes", "-r", str(_HERE / "requirements-dev.lock")])
        wheel = build(scratch)
        subprocess.run(
            [_uv(), "pip", "install", "--quiet", "--python", ours / "python", "--no-deps", wheel], check=True
        )
        print("\n| machine | command | seconds | last line of output |\n| --- | --- | --- | --- |")
        run = ["run", "demo", f"data.pictures={args.pictures}", f"machine.workspace=s3://{BUCKET}/night"]
        for machine in ("first", "second"):
            _run_on(machine, ours, run, scratch / machine, addresses)
        picture = next(iter((scratch / "first").rglob("*.png")))
        assert decode(picture.read_bytes()).shape[0] == 3
        (scratch / "third").mkdir()
        shutil.copy(picture, scratch / "third" / "picture.png")
        reader = {name: value for name, value in addresses.items() if name == "MLFLOW_TRACKING_URI"}
        _run_on("third", ours, ["caption", "picture.png"], scratch / "third", reader)


def _run_on(machine: str, programs: Path, command: list[str], home: Path, addresses: dict[str, str]) -> None:
    """Run `attend` with its own empty home folder, and print its seconds and the last line of its output."""
    home.mkdir(exist_ok=True)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "MLFLOW_DISABLE_TELEMETRY": "true", **addresses}
    began = time.perf_counter()
    done = subprocess.run(
        [programs / "attend", *command], cwd=home, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"attend {' '.join(command)}: {done.stderr[-3000:]}")
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    print(f"| {machine} | `attend {' '.join(command)}` | {time.perf_counter() - began:.0f} | {last} |", flush=True)


@contextmanager
def servers(scratch: Path) -> Iterator[dict[str, str]]:
    """Run PostgreSQL, S3 and MLflow's server, and yield the environment variables with their addresses."""
    with ExitStack() as stack:
        database = stack.enter_context(postgresql("mlflow"))
        port = free_port()
        s3 = f"http://127.0.0.1:{port}"
        stack.enter_context(running([sys.executable, "-m", "moto.server", "-p", str(port)], port, scratch / "s3.log"))
        for name in (BUCKET, MLFLOW_BUCKET):
            boto3.client("s3", endpoint_url=s3, **_for_boto()).create_bucket(Bucket=name)
        programs = environment(scratch / "mlflow", ["mlflow==3.17.2", "psycopg2-binary", "boto3"])
        port = free_port()
        command = [
            *(str(programs / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *(
                "--backend-store-uri",
                f"postgresql+psycopg2://{database}/mlflow",
                "--artifacts-destination",
                f"s3://{MLFLOW_BUCKET}/artifacts",
            ),
        ]
        env = {**os.environ, **KEYS, "MLFLOW_S3_ENDPOINT_URL": s3, "PATH": f"{programs}:{os.environ['PATH']}"}
        stack.enter_context(running(command, port, scratch / "mlflow.log", env))
        yield {**KEYS, "AWS_ENDPOINT_URL": s3, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}


def _for_boto() -> dict[str, str]:
    return {
        "aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
        "region_name": KEYS["AWS_DEFAULT_REGION"],
    }


def _uv() -> Path:
    return Path(sys.executable).with_name("uv")


if __name__ == "__main__":
    main()
