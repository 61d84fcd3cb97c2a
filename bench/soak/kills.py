"""Kill `attend run` with SIGKILL at random times of every stage, resume it, and compare with an undisturbed run.

    python -m bench.soak.kills [--kills 100] [--seed 0] [--at-once 1] [--s3]

Kills begin in the first millisecond of a new workspace, when MLflow and Prefect create their databases. --at-once:
number of runs that start together and are killed together. --s3: the workspace is in object storage (a server in this
process), and runs end after `evaluate`. The whole process group is killed, and Prefect's local server ends with it. At
the end of each round of kills, all artifacts must have the digests of the undisturbed run. There must be no temporary
file, no second model version and no MLflow run that is still RUNNING, and the databases must be intact. Otherwise the
exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from flows.operations.prefect_server import wait_until_healthy
from flows.pipeline import build_pipeline
from tasks.config.schema import Config, load
from tasks.mlflow_store.mlflow_pages import ui_command, ui_environment
from tasks.mlflow_store.tracking import connect
from tasks.pipeline.plan import Plan

STAGE_NAMES = ("ingest", "extract", "tensorise", "train", "evaluate", "register")
# Where the kills of a round fall; `start` is anywhere between the command and its first stage, the first milliseconds
# as likely as the seconds, while Prefect makes its database; `databases` is while MLflow's is made, before training.
ROUND = (
    *("start", "start", "start", "ingest", "extract", "extract", "tensorise"),
    *("databases", "train", "train", "train", "evaluate", "register"),
)
CONFIG = {
    "name": "killed",
    "data": {"adapter": "scenes", "pictures": 400, "side": 48},
    "grids": {"backbone": "tiny", "weights": "random:0", "image_size": 64},
    "captions": {"min_count": 1},
    "decoder": {"name": "show_attend_tell", "embedding": 32, "hidden": 48, "attention_size": 32},
    "training": {"epochs": 4, "batch_pictures": 8, "learning_rate": 0.005, "averaging": 0.9, "unknown_words": 0.1},
    "evaluation": {"beam": 3, "metrics": ["bleu", "truth"]},
    "machine": {"shard_rows": 32, "checkpoint_seconds": 0.3, "device": "cpu"},
}


def main() -> None:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    args = _arguments()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="attend-kills-") as folder, _storage(args.s3) as storage:
        root = Path(folder)
        began = time.monotonic()
        alone = _workspace(root / "alone", storage)
        lasted = _run(alone)
        expected = contents(alone)
        print(f"left alone: {time.monotonic() - began:.0f} s; {len(expected)} files", flush=True)
        killed, rounds = 0, 0
        fell: dict[str, int] = {}
        while killed < args.kills:
            rounds += 1
            workspace = _workspace(root / f"round-{rounds}", storage)
            targets = [target for target in ROUND if not (args.s3 and target in ("register", "databases"))]
            left = min(math.ceil((args.kills - killed) / args.at_once), len(targets))
            for target in (targets[at] for at in sorted(chance.sample(range(len(targets)), left))):
                where = _kill(workspace, target, lasted, chance, args.at_once)
                fell[where] = fell.get(where, 0) + args.at_once
                killed += args.at_once
                print(f"{killed:>4} killed in {where} (meant: {target})", flush=True)
            _run(workspace)
            check(workspace, expected)
            print(f"round {rounds}: the same {len(expected)} files, {killed} kills so far", flush=True)
    counts_by_stage = ", ".join(f"{count} in {stage}" for stage, count in sorted(fell.items()))
    print(f"{killed} kills ({counts_by_stage}), {rounds} rounds: every one ended as the run left alone")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--s3", action="store_true")
    return parser.parse_args()


@contextmanager
def _storage(s3: bool) -> Iterator[str]:
    """Start an S3 server with a bucket, and MLflow's. Yield the bucket's URL, empty for workspaces in folders."""
    if not s3:
        yield ""
        return
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update({"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"})
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    boto3.client("s3").create_bucket(Bucket="kills")
    with tempfile.TemporaryDirectory(prefix="attend-mlflow-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        connect(Path(folder))
        probe.close()
        log = Path(folder) / "log"
        with log.open("wb") as output:
            command = ui_command(Path(folder), port)
            mlflow = subprocess.Popen(
                command, stdout=output, stderr=output, env=ui_environment(), start_new_session=True
            )
        wait_until_healthy(f"http://127.0.0.1:{port}/health", mlflow, log, "MLflow")
        os.environ["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{port}"
        yield "s3://kills"
        os.killpg(mlflow.pid, signal.SIGKILL)
        mlflow.wait()
    server.stop()


def _workspace(folder: Path, storage: str) -> Path:
    """Create a folder with a config. The workspace is in it, or in object storage with a cache in it."""
    folder.mkdir()
    settings = {"workspace": str(folder / "workspace")}
    if storage:
        settings = {"workspace": f"{storage}/{folder.name}", "cache": str(folder / "workspace")}
    config = {**CONFIG, "machine": {**CONFIG["machine"], **settings}}  # type: ignore[dict-item]
    (folder / "killed.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _config(folder: Path) -> Config:
    return load(str(folder / "killed.yaml"))


def _stages(folder: Path) -> tuple[str, ...]:
    """Return the stages to run: `register` needs an MLflow server if the workspace is in object storage."""
    return STAGE_NAMES[:-1] if "://" in _config(folder).machine.address else STAGE_NAMES


def _plan(folder: Path, until: str = "") -> Plan:
    return Plan(build_pipeline(_config(folder)), until or _stages(folder)[-1])


def _start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    log = (folder / "log").open("ab")
    until = ["--until", _stages(folder)[-1]]
    return subprocess.Popen(
        [sys.executable, "-m", "flows.commands.cli", "run", str(folder / "killed.yaml"), *until],
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=environment | {"TMPDIR": str(folder)},
    )


def _run(folder: Path) -> dict[str, float]:
    """Run to the end and return the seconds of each stage. Raises SystemExit with the log if the run fails."""
    process = _start(folder)
    if process.wait() != 0:
        raise SystemExit((folder / "log").read_text(encoding="utf-8"))
    return {stage.name: artifact.ledger.seconds for stage, artifact in _plan(folder).update().artifacts.items()}


def _kill(folder: Path, target: str, lasted: dict[str, float], chance: random.Random, at_once: int) -> str:
    """Kill runs at a random time in a stage, and return the stage they were in. Runs that end before are not killed."""
    processes = [_start(folder) for _ in range(at_once)]
    workspace = _config(folder).workspace
    patterns = {"start": "", "databases": ".mlflow.db.draft*"}
    pattern = patterns.get(target, f"artifacts/{target}/*.partial")

    def going_on() -> bool:
        return any(process.poll() is None for process in processes)

    while going_on() and pattern and not list(workspace.glob(pattern)) and not _is_past(workspace, target):
        time.sleep(0.002)
    # A stage may go on from where it was killed before.
    wait = math.exp(chance.uniform(math.log(0.001), math.log(12))) if target == "start" else None
    wait = chance.uniform(0, 0.5 * lasted.get(target, 4.0)) if wait is None else wait
    end = time.monotonic() + wait
    while going_on() and time.monotonic() < end:
        time.sleep(0.002)
    working = [path.parent.name for path in workspace.glob("artifacts/*/*.partial")]
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode != 0:
            raise SystemExit((folder / "log").read_text(encoding="utf-8"))
        process.wait()
    return max(working, key=STAGE_NAMES.index) if working else "between stages"


def _is_past(workspace: Path, target: str) -> bool:
    """Return whether MLflow's database exists already; it is created once."""
    return target == "databases" and (workspace / "mlflow.db").exists()


def contents(folder: Path, until: str = "") -> dict[str, str]:
    """Return the digest of every file of the stages up to `until`, by default all, by stage and name.

    Times and ids are left out.
    """
    files = {}
    for status in _plan(folder, until).verify().statuses:
        if status.artifact is None or not status.fresh:
            raise SystemExit(f"{folder.name}: {status.stage.name} is {status.state}: {'; '.join(status.why)}")
        ledger = status.artifact.ledger
        files[f"{status.stage.name} key"] = ledger.key
        files |= {f"{status.stage.name} product {name}": digest for name, digest in ledger.products.items()}
        for name, record in (ledger.files | ledger.shared).items():
            if name == "history.parquet":
                table = pq.read_table(status.artifact.path / name).drop_columns("seconds")
                files[name] = json.dumps(table.to_pylist())
            elif name != "registration.json" and not name.startswith("mlartifacts/"):
                files[f"{status.stage.name} {name}"] = record.sha256
    return files


def check(folder: Path, expected: dict[str, str]) -> None:
    """Raise SystemExit if a workspace differs from that of an undisturbed run: other contents, or leftover files."""
    workspace = _config(folder).workspace
    after = contents(folder)
    wrong = [name for name in expected.keys() | after.keys() if expected.get(name) != after.get(name)]
    for pattern in (".*.tmp", "*.partial", ".removed-*", "*.damaged", "attend-*"):
        # Prefect's database, half made when its server was killed, is set aside.
        wrong += [str(path) for path in folder.rglob(pattern) if "prefect" not in path.parts]
    wrong += [str(path) for path in (workspace / "locks" / "sessions").glob("*")]
    wrong += [str(path) for path in (workspace / "runs" / "mlflow").glob("*")]
    if "register" in _stages(folder):
        wrong += _wrong_in_mlflow(workspace)
    with sqlite3.connect(f"file:{workspace / 'prefect' / 'prefect.db'}?mode=ro", uri=True) as store:
        if store.execute("pragma integrity_check").fetchone() != ("ok",):
            wrong.append("prefect.db is damaged")
    if wrong:
        raise SystemExit(f"{folder.name}: " + "; ".join(wrong) + "\n" + (folder / "log").read_text(encoding="utf-8"))


def _wrong_in_mlflow(workspace: Path) -> list[str]:
    """Return the errors in the MLflow store of a workspace whose model was registered once."""
    wrong = []
    with sqlite3.connect(f"file:{workspace / 'mlflow.db'}?mode=ro", uri=True) as store:
        if store.execute("pragma integrity_check").fetchone() != ("ok",):
            wrong.append("mlflow.db is damaged")
        versions = store.execute("select count(*) from model_versions").fetchone()[0]
        if versions != 1:
            wrong.append(f"{versions} model versions")
        runs = store.execute("select status, count(*) from runs group by status").fetchall()
        if runs != [("FINISHED", 2)]:  # the training, and its evaluation's scores
            wrong.append(f"MLflow runs: {runs}")
        logged = len(list((workspace / "mlartifacts" / "killed" / "models").glob("m-*")))
        if logged != 1:
            wrong.append(f"{logged} logged models")
    return wrong


if __name__ == "__main__":
    main()
