"""A real server, worker and cron schedule on loopback, and what they do when things die. Takes some twenty minutes.

    python -m bench.soak.schedule [--port 4411]

1. three scheduled runs: the first does the work, the second and third say that there is nothing to do;
2. a run that comes while another trains steps aside;
3. the server is killed in the middle of that training: it is started again, and the training does not notice;
4. worker and run are killed in the middle of another: a later scheduled run completes the work.

Exit code 1 where one of these does not happen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOYMENT = "every-minute"
SMALL = {
    "data": {"adapter": "scenes", "pictures": 80, "side": 48},
    "grids": {"backbone": "tiny", "weights": "random:0", "image_size": 64},
    "captions": {"min_count": 1},
    "decoder": {"name": "show_attend_tell", "embedding": 16, "hidden": 24, "attention_size": 16},
    "training": {"epochs": 2, "batch_pictures": 8, "patience": 1000},
    "evaluation": {"beam": 2, "metrics": ["bleu", "truth"]},
    "machine": {"device": "cpu", "checkpoint_seconds": 2},
}
LONG = 600  # epochs that take some minutes


class Schedule:
    """A project whose pipeline is due every minute, and the server that runs it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.project, self.workspace, self.api = folder, folder / "workspace", f"http://127.0.0.1:{port}/api"
        self.port, self._began = port, time.monotonic()

    def say(self, text: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - self._began), 60)
        print(f"{minutes:02d}:{seconds:02d}  {text}", flush=True)

    def set_up(self) -> None:
        for name in ("flows", "tasks", "models"):
            (self.project / name).symlink_to(REPOSITORY / name)
        whole = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text(encoding="utf-8"))
        deployment = whole["deployments"][0]
        deployment |= {"name": DEPLOYMENT, "parameters": {"preset": str(self.project / "small.yaml")}}
        deployment["schedules"] = [{"cron": "* * * * *", "slug": "minute", "active": True}]
        (self.project / "prefect.yaml").write_text(yaml.safe_dump({**whole, "deployments": [deployment]}))
        self.train()

    def train(self, **settings: Any) -> None:
        """Write the config; the next scheduled run reads it."""
        training: Any = SMALL["training"]
        values = {**SMALL, "training": {**training, **settings}}
        (self.project / "small.yaml").write_text(json.dumps(values), encoding="utf-8")

    def attend(self, *arguments: str) -> str:
        place = ["--workspace", str(self.workspace)]
        command = [sys.executable, "-m", "flows.commands.cli", *arguments, *place]
        done = subprocess.run(command, cwd=self.project, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        return done.stdout

    def runs(self) -> list[dict[str, Any]]:
        """The deployment's runs that are not still to come, oldest first."""
        states = {"not_any_": ["SCHEDULED"]}
        found = self._ask(
            "/flow_runs/filter", {"flow_runs": {"state": {"type": states}}, "sort": "EXPECTED_START_TIME_ASC"}
        )
        return list(found)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.api + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def wait(self, what: str, found: Callable[[], Any], seconds: float) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                value = found()
            except OSError:  # the server is away
                value = None
            if value:
                return value
            time.sleep(1)
        raise SystemExit(f"not within {seconds:.0f} s: {what}\n{self.told()}")

    def told(self) -> str:
        logs = sorted((self.workspace / "prefect" / "logs").glob("*.log"))
        runs = "\n".join(_state(run) for run in self.runs())
        return runs + "".join(f"\n== {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def training_step(self) -> int:
        """How many steps the training that is going on has behind it; 0 where none is going on."""
        for note in self.workspace.glob("artifacts/train/*.partial/.progress.txt"):
            words = note.read_text(encoding="utf-8").split()  # `step 1,234 of ...`
            return int(words[1].replace(",", "")) if len(words) > 1 else 0
        return 0

    def processes(self, words: str) -> list[int]:
        """Processes of this schedule with these words in their command line or environment."""
        mine = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                told = (place / "cmdline").read_bytes().replace(b"\0", b" ") + (place / "environ").read_bytes()
            except OSError:
                continue
            if words.encode() in told and str(self.workspace).encode() in told:
                mine.append(int(place.name))
        return mine

    def kill(self, words: str) -> None:
        for number in self.processes(words):
            os.kill(number, signal.SIGKILL)


def _state(run: dict[str, Any]) -> str:
    state = run["state"]
    return f"{state['name']:<10} {state['message'] or ''}".strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=4411)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attend-schedule-") as folder:
        schedule = Schedule(Path(folder), given.port)
        schedule.set_up()
        ports = ["--port", str(given.port), "--mlflow-port", str(given.port + 1)]
        schedule.attend("up", *ports)
        schedule.say("up: server, pool, deployment, worker")
        try:
            _follow(schedule)
        finally:
            schedule.attend("down")
            schedule.say("down")


def _follow(schedule: Schedule) -> None:
    def done(count: int) -> list[dict[str, Any]]:
        ended = [run for run in schedule.runs() if run["state"]["type"] == "COMPLETED"]
        return ended if len(ended) >= count else []

    first, second, third = schedule.wait("three scheduled runs", lambda: done(3), 420)[:3]
    for run in (first, second, third):
        schedule.say(f"scheduled run: {_state(run)}")
    _must(first["state"]["name"] == "Completed", "the first did the work")
    for run in (second, third):
        _must(run["state"]["name"] == "Cached" and "nothing to do" in run["state"]["message"], "the others did nothing")

    schedule.train(epochs=LONG, seed=1)
    schedule.wait("a long training", lambda: schedule.training_step() > 0, 180)
    training = next(run for run in schedule.runs() if run["state"]["type"] == "RUNNING")
    schedule.say("a long training has begun")
    aside = schedule.wait(
        "a run that steps aside",
        lambda: [run for run in schedule.runs() if run["state"]["type"] == "CANCELLED"],
        180,
    )
    schedule.say(f"overlapping run: {_state(aside[-1])}")

    before = schedule.training_step()
    schedule.kill("prefect --no-prompt server start")
    schedule.kill("prefect.server.api.server")
    schedule.say(f"server killed at step {before} of the training")
    schedule.wait("the server again", schedule.runs, 120)
    schedule.say("the server answers again")
    ended = schedule.wait(
        "the end of the training",
        lambda: [
            run
            for run in schedule.runs()
            if run["id"] == training["id"] and run["state"]["type"] not in ("RUNNING", "PENDING")
        ],
        900,
    )[0]
    schedule.say(f"the training's run: {_state(ended)}")
    _must(ended["state"]["type"] == "COMPLETED", "the server's restart did not hurt it")

    schedule.train(epochs=LONG, seed=2)
    schedule.wait("another training", lambda: schedule.training_step() > 0, 300)
    before = schedule.training_step()
    schedule.kill("prefect --no-prompt worker start")
    schedule.kill("PREFECT__FLOW_RUN_ID")
    schedule.say(f"worker and run killed at step {before}")
    count = len(done(0))
    finished = schedule.wait("a later run that completes the work", lambda: done(count + 1), 1500)[count]
    schedule.say(f"a later scheduled run: {_state(finished)}")
    crashed = [run for run in schedule.runs() if run["state"]["type"] == "CRASHED"]
    for run in crashed:
        schedule.say(f"the killed run: {_state(run)}")
    said = schedule.attend(
        "caption", str(next(schedule.workspace.rglob("scene_000001.png"))), "--model", "models:/small/3"
    )
    schedule.say(f"models:/small/3 says: {said.split(':')[-1].strip()}")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"it is not so that {what}")


if __name__ == "__main__":
    main()
