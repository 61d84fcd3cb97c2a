"""Kill `attend run` with SIGKILL at random instants of every stage, resume it, and compare with a run left alone.

    python -m bench.soak.kills [--kills 100] [--seed 0]

The whole process group dies, and Prefect's local server ends with it. At the end of each round of kills the artifacts
must be those of the run left alone, to the last digest; no temporary file, no second model version, no MLflow run still
RUNNING, and the databases whole. Exit code 1 where they are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from flows.pipeline import build_pipeline
from tasks.config.schema import load
from tasks.pipeline.plan import plan

STAGE_NAMES = ("ingest", "extract", "tensorise", "train", "evaluate", "register")
# Where the kills of a round fall; `start` is anywhere between the command and its first stage.
ROUND = ("start", "ingest", "extract", "extract", "tensorise", "train", "train", "train", "evaluate", "register")
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
    given = _arguments()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="attend-kills-") as folder:
        place = Path(folder)
        began = time.monotonic()
        alone = _workspace(place / "alone")
        lasted = _run(alone)
        expected = contents(alone)
        print(f"left alone: {time.monotonic() - began:.0f} s; {len(expected)} files", flush=True)
        killed, rounds = 0, 0
        fell: dict[str, int] = {}
        while killed < given.kills:
            rounds += 1
            workspace = _workspace(place / f"round-{rounds}")
            left = min(given.kills - killed, len(ROUND))
            for target in (ROUND[at] for at in sorted(chance.sample(range(len(ROUND)), left))):
                where = _kill(workspace, target, lasted, chance)
                fell[where] = fell.get(where, 0) + 1
                killed += 1
                print(f"{killed:>4} killed in {where} (meant: {target})", flush=True)
            _run(workspace)
            _check(workspace, expected)
            print(f"round {rounds}: the same {len(expected)} files, {killed} kills so far", flush=True)
    told = ", ".join(f"{count} in {stage}" for stage, count in sorted(fell.items()))
    print(f"{killed} kills ({told}), {rounds} rounds: every one ended as the run left alone")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _workspace(folder: Path) -> Path:
    folder.mkdir()
    config = {**CONFIG, "machine": {**CONFIG["machine"], "workspace": str(folder / "workspace")}}  # type: ignore[dict-item]
    (folder / "killed.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    log = (folder / "log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "flows.commands.cli", "run", str(folder / "killed.yaml")],
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=environment | {"TMPDIR": str(folder)},
    )


def _run(folder: Path) -> dict[str, float]:
    """Run to the end; stage -> seconds it took. SystemExit with the log where it fails."""
    process = _start(folder)
    if process.wait() != 0:
        raise SystemExit((folder / "log").read_text(encoding="utf-8"))
    found = plan(build_pipeline(load(str(folder / "killed.yaml"))))
    return {status.stage.name: status.artifact.ledger.seconds for status in found if status.artifact is not None}


def _kill(folder: Path, target: str, lasted: dict[str, float], chance: random.Random) -> str:
    """Kill a run at a random instant of a stage; the stage it was in. One that ends before is left as it is."""
    process = _start(folder)
    artifacts = folder / "workspace" / "artifacts"
    wait = chance.uniform(0, 12)
    if target != "start":
        while process.poll() is None and not list((artifacts / target).glob("*.partial")):
            time.sleep(0.002)
        wait = chance.uniform(0, 0.5 * lasted[target])  # it may go on from where it was killed before
    end = time.monotonic() + wait
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    working = [path.parent.name for path in artifacts.glob("*/*.partial")]
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    elif process.returncode != 0:
        raise SystemExit((folder / "log").read_text(encoding="utf-8"))
    process.wait()
    return max(working, key=STAGE_NAMES.index) if working else "between stages"


def contents(folder: Path) -> dict[str, str]:
    """Every file that a run leaves, by stage and name, with its digest; what tells times and ids left out."""
    files = {}
    for status in plan(build_pipeline(load(str(folder / "killed.yaml"))), read="all"):
        if status.artifact is None or not status.fresh:
            raise SystemExit(f"{folder.name}: {status.stage.name} is {status.state}: {'; '.join(status.why)}")
        ledger = status.artifact.ledger
        files[f"{status.stage.name} key"] = ledger.key
        files |= {f"{status.stage.name} product {name}": digest for name, digest in ledger.products.items()}
        for name, record in (ledger.files | ledger.shared).items():
            if name == "history.parquet":
                table = pq.read_table(status.artifact.path / name).drop_columns("seconds")
                files[name] = json.dumps(table.to_pylist())
            elif name != "registration.json":
                files[f"{status.stage.name} {name}"] = record.sha256
    return files


def _check(folder: Path, expected: dict[str, str]) -> None:
    workspace = folder / "workspace"
    found = contents(folder)
    wrong = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    for pattern in (".*.tmp", "*.partial", ".removed-*", "*.damaged", "attend-*"):
        wrong += [str(path) for path in folder.rglob(pattern)]
    wrong += [str(path) for path in (workspace / "locks" / "sessions").glob("*")]
    wrong += [str(path) for path in (workspace / "runs" / "mlflow").glob("*")]
    with sqlite3.connect(f"file:{workspace / 'mlflow.db'}?mode=ro", uri=True) as store:
        if store.execute("pragma integrity_check").fetchone() != ("ok",):
            wrong.append("mlflow.db is damaged")
        versions = store.execute("select count(*) from model_versions").fetchone()[0]
        if versions != 1:
            wrong.append(f"{versions} model versions")
        runs = store.execute("select status, count(*) from runs group by status").fetchall()
        if runs != [("FINISHED", 1)]:
            wrong.append(f"MLflow runs: {runs}")
        logged = len(list((workspace / "mlartifacts" / "killed" / "models").glob("m-*")))
        if logged != 1:
            wrong.append(f"{logged} logged models")
    with sqlite3.connect(f"file:{workspace / 'prefect' / 'prefect.db'}?mode=ro", uri=True) as store:
        if store.execute("pragma integrity_check").fetchone() != ("ok",):
            wrong.append("prefect.db is damaged")
    if wrong:
        raise SystemExit(f"{folder.name}: " + "; ".join(wrong) + "\n" + (folder / "log").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
