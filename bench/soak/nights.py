"""Run a month of nightly runs with the commands of the systemd unit of `attend up --systemd`, with power cuts.

    python -m bench.soak.nights PHOTOS [--nights 30] [--cut-every 7] [--folder F]

PHOTOS: a folder of photographs; their captions are invented. Each night some of them are added and one is removed, and
the deployment `nightly` is run. Every --cut-every nights, all processes are killed in the middle of the run, as in a
power cut, and the unit's command is started again. Every night without a power cut must succeed, and the next run must
have nothing to do. Prints the sizes of logs and databases, which must stay bounded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from bench.machine import describe
from flows.operations.service import running_service
from tests.support import ask, free_port, run_of, small

_SHOWN = (1, 5, 10, 15, 20, 25, 30)
_BETWEEN = 5.0  # seconds between two runs: Prefect's server frees the place of one a moment after it has ended


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--nights", type=int, default=30)
    arguments.add_argument("--cut-every", type=int, default=7)
    arguments.add_argument("--folder", type=Path)
    args = arguments.parse_args()
    describe()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        _month(Path(folder), sorted(args.photos.glob("*.jpg")), args.nights, args.cut_every)


def _month(folder: Path, photos: list[Path], nights: int, cut_every: int) -> None:
    chance, workspace, cuts = random.Random(0), folder / "workspace", 0
    there = photos[:60]
    _write_config(folder)
    print("\n| night | photographs | version | seconds | logs, KiB | prefect.db, MiB | mlflow.db, MiB |")
    print("| --- " * 7 + "|", flush=True)
    command = _command_of_unit(folder)
    with _running(command, folder) as first:
        service = first
        for night in range(1, nights + 1):
            there = [*there[1:], *photos[60 + 4 * night : 64 + 4 * night]]
            _write_photographs(folder, there)
            started = time.monotonic()
            if night % cut_every == 0:
                _cut_in_the_middle(workspace, service, chance)
                service = _start(command, folder)
                cuts += 1
            _check(workspace, "Completed", *(["Cached"] if night % cut_every == 0 else []))  # it may have ended before
            seconds = time.monotonic() - started
            _check(workspace, "Cached")
            if night in _SHOWN or night == nights:
                logs = sum(path.stat().st_size for path in (workspace / "prefect" / "logs").iterdir())
                sizes = [(workspace / name).stat().st_size / 2**20 for name in ("prefect/prefect.db", "mlflow.db")]
                *_, last = (workspace / "history" / "photos.jsonl").read_text().splitlines()
                cells = f"{len(there)} | {json.loads(last)['version']} | {seconds:.0f} | {logs / 1024:.0f}"
                print(f"| {night} | {cells} | {sizes[0]:.1f} | {sizes[1]:.1f} |", flush=True)
        service.terminate()
        service.wait(180)
    print(f"\n{nights} nights, {cuts} power cuts: every night with power ended well")


def _write_config(folder: Path) -> None:
    data = {"adapter": "table", "path": str(folder / "photos" / "captions.csv"), "dev_share": 0.2}
    values = small(folder / "workspace", data=data, name="photos").model_dump(mode="json", exclude_unset=True)
    (folder / "photos.yaml").write_text(yaml.safe_dump(values))


def _write_photographs(folder: Path, photos: list[Path]) -> None:
    images = folder / "photos" / "images"
    images.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in photos}
    for path in images.iterdir():
        if path.name not in names:
            path.unlink()
    for path in photos:
        if not (images / path.name).exists():
            shutil.copyfile(path, images / path.name)
    lines = "\n".join(f"{path.name},a photograph called {path.name[:3]}" for path in photos)
    (folder / "photos" / "captions.csv").write_text(f"image,caption\n{lines}\n")


def _command_of_unit(folder: Path) -> list[str]:
    """Return the command line of the unit that `attend up --systemd user` writes."""
    words = [sys.executable, "-m", "flows.commands.cli", "up", str(folder / "photos.yaml"), "--systemd", "user"]
    words += ["--workspace", str(folder / "workspace"), "--project", str(folder)]
    words += ["--port", str(free_port()), "--mlflow-port", str(free_port())]
    unit = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield _start(command, folder)
    finally:
        service = running_service(folder / "workspace")
        for group in [] if service is None else [*service.groups, service.process]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    started = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 240
    while running_service(folder / "workspace") is None:
        if started.poll() is not None or time.monotonic() > end:
            raise SystemExit("the unit's command did not start")
        time.sleep(0.5)
    return started


def _cut_in_the_middle(workspace: Path, foreground: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Start the night's run, and kill all processes of the unit in the middle of it, like the unit's cgroup."""
    service = running_service(workspace)
    assert service is not None
    (deployment,) = _nightly(service.api)
    ask(f"{service.api}/deployments/{deployment}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    time.sleep(chance.uniform(4, 20))
    foreground.kill()
    victims = _below([service.process, *service.groups])
    for process in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    foreground.wait()


def _below(processes: list[int]) -> list[int]:
    """Return processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    tree = list(processes)
    for process in tree:
        tree += [child for child in children.get(process, []) if child not in tree]
    return tree


def _nightly(api: str) -> list[str]:
    query = {"deployments": {"name": {"any_": ["nightly"]}}}
    return [str(row["id"]) for row in ask(f"{api}/deployments/filter", query)]


def _check(workspace: Path, *expected: str) -> None:
    """Run the nightly deployment, and end if its state is not the expected one."""
    service = running_service(workspace)
    assert service is not None
    (deployment,) = _nightly(service.api)
    time.sleep(_BETWEEN)
    state = run_of(service.api, deployment)["state"]
    if state["name"] not in expected:
        raise SystemExit(f"the night ended as {state['name']}: {state['message']}")


if __name__ == "__main__":
    main()
