"""The whole pipeline with its workspace in object storage and MLflow on PostgreSQL, then captions from elsewhere.

    python -m bench.soak.storage [--pictures 2000]

Starts PostgreSQL (Debian's `postgresql`), an S3 server (moto) and MLflow's server before both, in an environment of its
own, on loopback; runs `attend run demo` on two machines' worth of folders, the second time with nothing to do; and
then `attend caption` in a fresh environment and an empty home that know the servers' addresses and nothing else.
"""

from __future__ import annotations

import argparse
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import boto3

from bench.conformance.interfaces import build, environment
from bench.machine import describe
from models.encoded_pictures import decode

_HERE = Path(__file__).resolve().parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "attend", "AWS_SECRET_ACCESS_KEY": "attend", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET, MLFLOW_BUCKET = "attend", "mlflow"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pictures", type=int, default=2000)
    given = parser.parse_args()
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
        print("\n| machine | command | s | told |\n| --- | --- | --- | --- |")
        run = ["run", "demo", f"data.pictures={given.pictures}", f"machine.workspace=s3://{BUCKET}/night"]
        for machine in ("first", "second"):
            _tell(machine, ours, run, scratch / machine, addresses)
        picture = next(iter((scratch / "first").rglob("*.png")))
        assert decode(picture.read_bytes()).shape[0] == 3
        (scratch / "third").mkdir()
        shutil.copy(picture, scratch / "third" / "picture.png")
        reader = {name: value for name, value in addresses.items() if name == "MLFLOW_TRACKING_URI"}
        _tell("third", ours, ["caption", "picture.png"], scratch / "third", reader)


def _tell(machine: str, programs: Path, command: list[str], home: Path, addresses: dict[str, str]) -> None:
    """Run `attend` with an empty home of its own, and print what it took and its last line."""
    home.mkdir(exist_ok=True)
    known = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "MLFLOW_DISABLE_TELEMETRY": "true", **addresses}
    began = time.perf_counter()
    done = subprocess.run(
        [programs / "attend", *command], cwd=home, env=known, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"attend {' '.join(command)}: {done.stderr[-3000:]}")
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    print(f"| {machine} | `attend {' '.join(command)}` | {time.perf_counter() - began:.0f} | {last} |", flush=True)


@contextmanager
def servers(scratch: Path) -> Iterator[dict[str, str]]:
    """PostgreSQL, S3 and MLflow's server; the variables by which they are found."""
    with ExitStack() as stack:
        database = stack.enter_context(_postgresql(scratch / "postgresql"))
        port = _free()
        s3 = f"http://127.0.0.1:{port}"
        stack.enter_context(_server([sys.executable, "-m", "moto.server", "-p", str(port)], port, {}))
        for name in (BUCKET, MLFLOW_BUCKET):
            boto3.client("s3", endpoint_url=s3, **_for_boto()).create_bucket(Bucket=name)
        programs = environment(scratch / "mlflow", ["mlflow==3.17.2", "psycopg2-binary", "boto3"])
        port = _free()
        command = [
            *(str(programs / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", database, "--artifacts-destination", f"s3://{MLFLOW_BUCKET}/artifacts"),
        ]
        known = {**KEYS, "MLFLOW_S3_ENDPOINT_URL": s3, "PATH": f"{programs}:{os.environ['PATH']}"}
        stack.enter_context(_server(command, port, known))
        yield {**KEYS, "AWS_ENDPOINT_URL": s3, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}


@contextmanager
def _postgresql(folder: Path) -> Iterator[str]:
    """A cluster of its own, by Debian's programs, as a user who is not root; the database's address."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise SystemExit("there is no PostgreSQL: apt-get install postgresql")
    programs, port, password = found[-1].parent, _free(), secrets.token_hex(8)
    folder.mkdir()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
        user = {"user": account.pw_uid, "group": account.pw_gid}
    secret = folder.parent / "password"
    secret.write_text(password)
    data = folder / "data"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": folder, **user}
    make: list[str | Path] = [
        programs / "initdb",
        "-D",
        data,
        "-U",
        "attend",
        "--auth=scram-sha-256",
        f"--pwfile={secret}",
    ]
    subprocess.run(make, check=True, **quiet)
    serve = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1"]
    with _server(serve, port, {}, **user, cwd=folder):
        yield f"postgresql+psycopg2://attend:{password}@127.0.0.1:{port}/postgres"


@contextmanager
def _server(command: list[str], port: int, known: dict[str, str], **options: Any) -> Iterator[None]:
    """A process that answers on a port."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env={**os.environ, **known}, stdout=log, stderr=log, **options)
        try:
            _wait(process, port, log)
            yield
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], port: int, log: BinaryIO) -> None:
    for _ in range(600):
        if process.poll() is not None:
            log.seek(0)
            raise SystemExit(f"a server ended before it was ready: {log.read().decode()[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"port {port} does not answer")


def _free() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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
