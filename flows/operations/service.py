"""`attend up`: start everything that scheduled runs need on one machine, and `attend down`: stop it.

These are Prefect's server, work pool, deployments and worker, and MLflow's UI. One process, the supervisor, starts the
others, restarts any that dies, and stops all of them on a signal. It holds a lock; meanwhile `service.json` contains
their addresses and process groups.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import filelock

from flows.operations.deploy import PREFECT, WORKER, ServiceOptions, check_project, deploy, logs_of, prefect_file
from flows.operations.flow_runs import end, environment_of, paused_pool, stop_runs, unfinished_runs
from flows.operations.prefect_server import LINE_SECONDS, LocalServer, wait_or_start_again, wait_until_healthy
from flows.operations.prefect_settings import environment
from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.log import log, show_log
from tasks.common.ports import is_listening
from tasks.common.progress import duration
from tasks.common.wording import counted
from tasks.mlflow_store.mlflow_pages import ui_command, ui_environment
from tasks.mlflow_store.tracking import MLFLOW_UI, connect, tracking_uri
from tasks.pipeline.workspace import Workspace

_STOP_SECONDS, _CHILD_STOP_SECONDS = 60.0, 20.0  # for all programs, and for each program
_RUN_STOP_SECONDS = 60.0  # for flow runs to reach a checkpoint
_CHECK_SECONDS = 3.0
_MAX_LOG = 10 * 2**20  # bytes


@dataclass(frozen=True)
class Service:
    """The addresses and processes started by `attend up`.

    process: the supervisor's process id. prefect, mlflow: URLs; mlflow is None if MLflow's server is elsewhere.
    groups: the process groups of the other processes.
    """

    process: int
    prefect: str
    mlflow: str | None
    groups: list[int]

    @property
    def api(self) -> str:
        """Return the URL of Prefect's API."""
        return f"{self.prefect}/api"


def running_service(workspace: Path) -> Service | None:
    """Return the service started by `attend up` for this workspace; None if none is running."""
    with contextlib.suppress(FileNotFoundError):
        if is_locked(workspace):
            return Service(**json.loads(_service_file(workspace).read_text(encoding="utf-8")))
    return None


def up(options: ServiceOptions) -> Service:
    """Start the service in the background and wait until it answers.

    Raises AttendError, after stopping everything, if it cannot start.
    """
    project, workspace = Path(options.project), Path(options.workspace)
    if is_locked(workspace):
        service = running_service(workspace)
        state = service.prefect if service is not None else "it is starting or stopping"
        raise AttendError(f"{workspace}: already up ({state}): stop it with `attend down`")
    check_project(project)
    _kill_orphans(workspace, (options.port, options.mlflow_port))
    for name, number in (("--port", options.port), ("--mlflow-port", options.mlflow_port)):
        if is_listening(number):
            raise AttendError(f"{name}: {number} is taken by another program: give another port")
    Workspace(workspace).prepare()
    _service_file(workspace).unlink(missing_ok=True)
    logs = logs_of(workspace)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "service.log").unlink(missing_ok=True)
    command = [sys.executable, "-m", "flows.operations.service", json.dumps(asdict(options))]
    supervisor = _start("service", command, None, workspace, project)
    log.info(f"starting Prefect's server, worker and the deployments of {prefect_file(project)}; logs are in {logs}")
    started = reported = time.monotonic()
    try:
        while supervisor.poll() is None:
            service = running_service(workspace)
            if service is not None:
                return service
            if time.monotonic() - reported > LINE_SECONDS:
                reported = time.monotonic()
                log.info(f"still starting: {duration(reported - started)} so far")
            time.sleep(0.5)
    except BaseException:  # the supervisor then stops the programs that it has started
        supervisor.terminate()
        supervisor.wait()
        raise
    lines = [line for line in (logs / "service.log").read_text().splitlines() if line.strip()]
    raise AttendError(f"{logs / 'service.log'}: could not start: {lines[-1] if lines else 'the log is empty'}")


class _StopRequested(BaseException):
    """The arrival of SIGTERM or SIGINT."""


def _stop_on_signals() -> None:
    """Raise _StopRequested in this process when SIGTERM or SIGINT arrives."""

    def stop(*_: object) -> None:
        raise _StopRequested

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)


def up_until_stopped(options: ServiceOptions, started: Callable[[Service], None]) -> list[str]:
    """Start the service, wait for SIGTERM or SIGINT, and stop it like `down`, whose sentences are returned.

    started: called when the service answers. Raises AttendError if it cannot start, or ends without a signal.
    """
    workspace = Path(options.workspace)
    _stop_on_signals()
    try:
        started(up(options))
        while is_locked(workspace):
            time.sleep(_CHECK_SECONDS)
    except _StopRequested:
        return down(workspace) if is_locked(workspace) else []
    raise AttendError(f"{logs_of(workspace) / 'service.log'}: the service has ended: its last lines say why")


def down(workspace: Path) -> list[str]:
    """Stop the service started by `attend up`, and return a sentence for each flow run that was in progress.

    A run stops at its next checkpoint; one that takes too long is killed. The next run continues it. Raises AttendError
    if nothing is running, or if the supervisor does not end.
    """
    service = running_service(workspace)
    if service is None:
        raise AttendError(f"{workspace}: nothing to stop: no service of `attend up` is running here")
    os.kill(service.process, signal.SIGTERM)
    deadline = time.monotonic() + _RUN_STOP_SECONDS + _STOP_SECONDS + 10
    while is_locked(workspace):
        if time.monotonic() > deadline:
            raise AttendError(f"{workspace}: process {service.process} does not end: stop it by hand")
        time.sleep(0.2)
    try:
        return _stopped_file(workspace).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def supervise(options: ServiceOptions) -> None:
    """Start all programs, restart any that dies, and stop them on SIGTERM or SIGINT. Returns only then."""
    project, workspace, port = Path(options.project), Path(options.workspace), options.port
    _stop_on_signals()
    url = f"http://127.0.0.1:{port}"
    env = environment(workspace) | {"PREFECT_API_URL": f"{url}/api", "ATTEND_WORKSPACE": str(workspace)}
    env["PREFECT_UI_URL"] = url
    embedded = tracking_uri(workspace).startswith("sqlite:")
    mlflow = f"http://127.0.0.1:{options.mlflow_port}" if embedded else None
    if mlflow is not None:
        env[MLFLOW_UI] = mlflow
    programs = {
        "server": ([*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)], env),
        "worker": (WORKER, env),
    }
    children: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        children[name] = _start(name, *programs[name], workspace, project)

    def start_server() -> LocalServer:
        log_file = logs_of(workspace) / "server.log"  # the server appends to it
        log_start = log_file.stat().st_size if log_file.exists() else 0
        start("server")
        return LocalServer(url, children["server"], log_file, log_start, "Prefect")

    with filelock.FileLock(workspace / "locks" / "service.lock", timeout=5):  # `is_locked` holds it for a moment
        try:
            server = start_server()
            if mlflow is not None:  # they start at the same time
                connect(workspace)  # creates the database atomically, which MLflow's server would not
                command = ui_command(workspace, options.mlflow_port)
                programs["mlflow"] = (command, {**ui_environment(), "ATTEND_WORKSPACE": str(workspace)})
                start("mlflow")
            wait_or_start_again(server, start_server, workspace)
            deploy(options, env)
            _end_dead_runs(f"{url}/api", "CANCELLED", "it was stopped with the machine or the service")
            start("worker")
            if mlflow is not None:
                wait_until_healthy(f"{mlflow}/health", children["mlflow"], logs_of(workspace) / "mlflow.log", "MLflow")
            while True:
                service = Service(os.getpid(), url, mlflow, [child.pid for child in children.values()])
                write_atomically(_service_file(workspace), json.dumps(asdict(service), indent=1))
                while all(child.poll() is None for child in children.values()):
                    time.sleep(_CHECK_SECONDS)
                    _rotate_logs(logs_of(workspace))
                for name in [name for name, child in children.items() if child.poll() is not None]:
                    _clean_up_after(name, children[name], f"{url}/api")
                    start(name)
        except _StopRequested:
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signal_number, signal.SIG_IGN)
        finally:
            _service_file(workspace).unlink(missing_ok=True)
            _stop(children, f"{url}/api", workspace)
            deadline = time.monotonic() + _STOP_SECONDS
            while is_listening(port) and time.monotonic() < deadline:  # Prefect's command ends before its server does
                time.sleep(0.1)


def _start(
    name: str, command: list[str], env: dict[str, str] | None, workspace: Path, project: Path
) -> subprocess.Popen[bytes]:
    """Start a program as the leader of a new process group, with its output appended to `NAME.log`.

    env: None for the environment of this process.
    """
    with (logs_of(workspace) / f"{name}.log").open("ab") as log_file:
        return subprocess.Popen(
            command,
            cwd=project,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )


def _rotate_logs(folder: Path) -> None:
    """Move the content of a log of over 10 MiB to a second file. The programs keep appending to the first."""
    for path in (folder / f"{name}.log" for name in ("service", "server", "worker", "mlflow")):
        with contextlib.suppress(OSError):
            if path.stat().st_size > _MAX_LOG:
                with contextlib.suppress(OSError):  # the disk may be full
                    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
                os.truncate(path, 0)


def _clean_up_after(name: str, child: subprocess.Popen[bytes], api: str) -> None:
    """Kill the remaining processes of a dead program's group, and end the runs that died with the worker."""
    print(f"{name} ended with exit code {child.returncode}: restarting it", flush=True)
    _kill_group(child.pid)
    if name == "worker":
        _end_dead_runs(api, "CRASHED", "its process and the worker's were killed")


def _stop(children: dict[str, subprocess.Popen[bytes]], api: str, workspace: Path) -> None:
    """Stop the flow runs and then the worker, while the server can still record their end; then the others."""
    stopped: list[str] = []
    try:
        if "worker" in children:
            with paused_pool(api):
                stopped = stop_runs(api, _RUN_STOP_SECONDS)
                _stop_child(children, "worker")
    except OSError as error:  # the server does not answer
        print(f"the flow runs could not be stopped: {error}", flush=True)
    _stopped_file(workspace).write_text("".join(f"{line}\n" for line in stopped), encoding="utf-8")
    for name in ("worker", "mlflow", "server"):
        _stop_child(children, name)


def _stop_child(children: dict[str, subprocess.Popen[bytes]], name: str) -> None:
    """Terminate a child process, wait, and kill the rest of its process group."""
    child = children.pop(name, None)
    if child is None or child.poll() is not None:
        return
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_CHILD_STOP_SECONDS)
    _kill_group(child.pid)


def _end_dead_runs(api: str, state: Literal["CANCELLED", "CRASHED"], why: str) -> None:
    """End the flow runs whose process is dead, so that they do not hold the slot of the next run."""
    try:
        for run in unfinished_runs(api):
            if not run.is_alive():
                end(api, run, state, f"{why}; the next run continues where it stopped")
                print(f"{run.name}: {state.lower()}: {why}", flush=True)
    except OSError as error:  # the automation attend-zombies will end them
        print(f"runs whose process is gone could not be ended: {error}", flush=True)


def _kill_group(group: int) -> None:
    """Kill the rest of a process group, because a server's child processes outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _kill_orphans(workspace: Path, ports: tuple[int, int]) -> None:
    """Kill the servers and the worker left by a killed supervisor of this workspace, and wait for their ports."""
    try:
        groups = Service(**json.loads(_service_file(workspace).read_text(encoding="utf-8"))).groups
    except (OSError, ValueError, TypeError):
        return
    # The ids may be other programs' by now; the environment of the orphans names this workspace.
    orphans = [group for group in groups if f"ATTEND_WORKSPACE={workspace}\0" in environment_of(group)]
    if not orphans:
        return
    log.info(f"stopping what an `attend up` that was killed left: {counted(len(orphans), 'process', 'processes')}")
    for group in orphans:
        _kill_group(group)
    deadline = time.monotonic() + _CHILD_STOP_SECONDS
    while any(map(is_listening, ports)) and time.monotonic() < deadline:
        time.sleep(0.1)


def is_locked(workspace: Path) -> bool:
    """Return whether a supervisor holds the workspace's lock."""
    return Workspace(workspace).is_locked("service")


def _stopped_file(workspace: Path) -> Path:
    """Return the file with a sentence for each flow run that `attend down` stopped."""
    return workspace / "prefect" / "stopped.txt"


def _service_file(workspace: Path) -> Path:
    """Return the file that contains the running Service, as JSON."""
    return workspace / "prefect" / "service.json"


if __name__ == "__main__":
    show_log()
    try:
        supervise(ServiceOptions(**json.loads(sys.argv[1])))
    except AttendError as error:
        sys.exit(str(error))
