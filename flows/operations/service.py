"""`attend up`: what schedules need, on one machine: Prefect's server, pool, deployments and worker, and MLflow's pages.

One process looks after the others: it starts again what dies, and stops all of them when it is told to. It holds a
lock, and so long as it does `service.json` tells where everything is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock

from flows.operations.prefect_server import LINE_SECONDS, wait_until_healthy
from flows.operations.prefect_settings import environment
from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.progress import Stopwatch, lasting, say
from tasks.pipeline.workspace import Workspace
from tasks.registry.tracking import MLFLOW_UI, tracking_uri, ui_command, ui_environment

POOL = "attend"
ZOMBIES = Path(__file__).with_name("zombies.yaml")
_PREFECT = (sys.executable, "-m", "prefect", "--no-prompt")
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 3.0


@dataclass(frozen=True)
class Service:
    """Where everything is. process: of the one that looks after the others. groups: their process groups."""

    process: int
    prefect: str
    mlflow: str | None
    groups: list[int]

    @property
    def api(self) -> str:
        return f"{self.prefect}/api"


def running(workspace: Path) -> Service | None:
    """What `attend up` started for this workspace and is there still; None where nothing is."""
    with contextlib.suppress(FileNotFoundError):
        if _held(workspace):
            return Service(**json.loads(_told(workspace).read_text(encoding="utf-8")))
    return None


def up(project: Path, workspace: Path, port: int, mlflow_port: int) -> Service:
    """Start everything in the background and wait until it answers. AttendError, with nothing left, where it cannot."""
    if _held(workspace):
        found = running(workspace)
        where = found.prefect if found is not None else "it is starting or stopping"
        raise AttendError(f"{workspace}: is up already: {where} (stop it with `attend down`)")
    if not (project / "prefect.yaml").is_file():
        raise AttendError(f"{project}: no prefect.yaml there: run `attend up` where it is, or give --project FOLDER")
    for name, number in (("--port", port), ("--mlflow-port", mlflow_port)):
        if _answers(number):
            raise AttendError(f"{name}: {number} is taken by another program: give another{_left_behind(workspace)}")
    Workspace(workspace).prepare()
    _told(workspace).unlink(missing_ok=True)
    logs = logs_of(workspace)
    logs.mkdir(parents=True, exist_ok=True)
    arguments = [str(project), str(workspace), str(port), str(mlflow_port)]
    with (logs / "service.log").open("w") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "flows.operations.service", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=project,
        )
    say(f"starting Prefect's server, worker and deployments; logs are in {logs}")
    watch, reported = Stopwatch(), 0.0
    try:
        while keeper.poll() is None:
            found = running(workspace)
            if found is not None:
                return found
            if watch.seconds() - reported > LINE_SECONDS:
                reported = watch.seconds()
                say(f"still starting: {lasting(reported)} so far")
            time.sleep(0.5)
    except BaseException:  # it stops what it has started
        keeper.terminate()
        keeper.wait()
        raise
    lines = [line for line in (logs / "service.log").read_text().splitlines() if line.strip()]
    raise AttendError(f"{logs / 'service.log'}: could not start: {lines[-1] if lines else 'no reason told'}")


def down(workspace: Path) -> None:
    """Stop what `attend up` started; a run that is going on is stopped too, and goes on when it is next run."""
    found = running(workspace)
    if found is None:
        raise AttendError(f"{workspace}: nothing is up")
    os.kill(found.process, signal.SIGTERM)
    end = time.monotonic() + _STOP_SECONDS + 10
    while _held(workspace):
        if time.monotonic() > end:
            raise AttendError(f"{workspace}: process {found.process} does not end: stop it by hand")
        time.sleep(0.2)


class _StopAsked(BaseException):
    """SIGTERM or SIGINT."""


def keep(project: Path, workspace: Path, port: int, mlflow_port: int) -> None:
    """Start everything, start again what dies, and stop it all on SIGTERM. Runs until then."""

    def stop(*_: object) -> None:
        raise _StopAsked

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    url = f"http://127.0.0.1:{port}"
    env = environment(workspace) | {"PREFECT_API_URL": f"{url}/api", "ATTEND_WORKSPACE": str(workspace)}
    env["PREFECT_UI_URL"] = url
    embedded = tracking_uri(workspace).startswith("sqlite:")
    mlflow = f"http://127.0.0.1:{mlflow_port}" if embedded else None
    if mlflow is not None:
        env[MLFLOW_UI] = mlflow
    programs = {
        "server": ([*_PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)], env),
        "worker": ([*_PREFECT, "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1"], env),
    }
    children: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        children[name] = _start(name, *programs[name], workspace, project)

    with _lock(workspace).acquire(timeout=0):
        try:
            start("server")
            wait_until_healthy(f"{url}/api/health", children["server"], logs_of(workspace) / "server.log", "Prefect")
            _set_up(project, env)
            start("worker")
            if mlflow is not None:
                programs["mlflow"] = ui_command(workspace, mlflow_port), ui_environment()
                start("mlflow")
                wait_until_healthy(f"{mlflow}/health", children["mlflow"], logs_of(workspace) / "mlflow.log", "MLflow")
            while True:
                told = asdict(Service(os.getpid(), url, mlflow, [child.pid for child in children.values()]))
                write_atomically(_told(workspace), json.dumps(told, indent=1))
                while all(child.poll() is None for child in children.values()):
                    time.sleep(_LOOK_SECONDS)
                for name, child in list(children.items()):
                    if child.poll() is not None:
                        print(f"{name} ended with {child.returncode}: started again", flush=True)
                        _end(child.pid)
                        start(name)
        except _StopAsked:
            pass
        finally:
            _told(workspace).unlink(missing_ok=True)
            _stop(children)
            end = time.monotonic() + _STOP_SECONDS
            while _answers(port) and time.monotonic() < end:  # Prefect's command ends before its server does
                time.sleep(0.1)


def _set_up(project: Path, env: dict[str, str]) -> None:
    """Pool, deployments and automation; what is there already stays."""
    _call([*_PREFECT, "work-pool", "create", POOL, "--type", "process", "--overwrite"], project, env)
    _call([*_PREFECT, "deploy", "--all"], project, env)
    listed = _call([*_PREFECT, "automation", "ls"], project, env)
    if "attend-zombies" not in listed:
        _call([*_PREFECT, "automation", "create", "--from-file", str(ZOMBIES)], project, env)


def _call(command: list[str], project: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr, flush=True)
    if done.returncode != 0:
        raise SystemExit(f"`prefect {' '.join(command[4:])}` failed: see above")
    return done.stdout


def _start(
    name: str, command: list[str], env: dict[str, str], workspace: Path, project: Path
) -> subprocess.Popen[bytes]:
    with (logs_of(workspace) / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=project, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _stop(children: dict[str, subprocess.Popen[bytes]]) -> None:
    """The worker first, so that what it runs is told to the server."""
    end = time.monotonic() + _STOP_SECONDS
    for name in ("worker", "mlflow", "server"):
        child = children.get(name)
        if child is None or child.poll() is not None:
            continue
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(end - time.monotonic(), 1))
        _end(child.pid)


def _end(group: int) -> None:
    """Kill what is left of a process group: a server's own children outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _left_behind(workspace: Path) -> str:
    """Where the process that looked after the others was killed: how to stop these."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        groups = Service(**json.loads(_told(workspace).read_text(encoding="utf-8"))).groups
        return f", or stop what a killed `attend up` left: kill -- {' '.join(f'-{group}' for group in groups)}"
    return ""


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _lock(workspace: Path) -> filelock.FileLock:
    return filelock.FileLock(workspace / "locks" / "service.lock")


def _held(workspace: Path) -> bool:
    lock = _lock(workspace)
    if not Path(lock.lock_file).exists():
        return False
    try:
        with lock.acquire(timeout=0):
            return False
    except filelock.Timeout:
        return True


def _told(workspace: Path) -> Path:
    return workspace / "prefect" / "service.json"


def logs_of(workspace: Path) -> Path:
    return workspace / "prefect" / "logs"


if __name__ == "__main__":
    try:
        keep(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    except AttendError as error:
        sys.exit(str(error))
