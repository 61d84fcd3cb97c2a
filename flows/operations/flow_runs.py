"""Flow runs of the worker that `attend up` started: asked to stop, and ended at the server if their process has died.

A run that stays `Running` holds the only slot of its deployment, and every later run is cancelled until the server
stops waiting for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.operations.deploy import POOL

_UNFINISHED = ("PENDING", "RUNNING", "CANCELLING")
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class FlowRun:
    """A flow run that has not ended. process: its process id; None if it has not begun."""

    id: str
    name: str
    state: str
    process: int | None

    def is_alive(self) -> bool:
        """Return whether the run's process exists: after a restart, the id may be another program's."""
        return self.process is not None and self.id in environment_of(self.process)


def unfinished_runs(api: str) -> list[FlowRun]:
    """Return the flow runs of the work pool that have begun but not ended. api: the URL of the server's API."""
    query = {
        "flow_runs": {"state": {"type": {"any_": _UNFINISHED}}},
        "work_pools": {"name": {"any_": [POOL]}},
    }
    return [
        FlowRun(row["id"], row["name"], row["state_name"], _process_of(row["infrastructure_pid"]))
        for row in ask(f"{api}/flow_runs/filter", query)
    ]


def stop_runs(api: str, seconds: float) -> list[str]:
    """Ask all runs to stop at their next checkpoint, and wait; return a sentence for each run that had not ended.

    A run that does not stop within `seconds` is killed. Afterwards the state of every run is final. The work pool
    should be paused, or the worker may start other runs in the meantime.
    """
    names: dict[str, str] = {}
    cancelling: set[str] = set()
    deadline = time.monotonic() + seconds
    while runs := unfinished_runs(api):
        in_time = time.monotonic() < deadline
        for run in runs:
            names.setdefault(run.id, f"{run.name}: stopped; the next run continues where it stopped")
            if run.is_alive() and in_time:
                if run.id not in cancelling:
                    cancelling.add(run.id)
                    _signal(run, signal.SIGINT)
            elif run.process is not None or not in_time:
                if run.is_alive():
                    names[run.id] = f"{run.name}: did not stop within {seconds:.0f} s and was killed"
                    _signal(run, signal.SIGKILL)
                end(api, run, "CANCELLED", "stopped with the service; the next run continues where it stopped")
        time.sleep(_LOOK_SECONDS)
    return list(names.values())


@contextlib.contextmanager
def paused_pool(api: str) -> Iterator[None]:
    """Pause the work pool for the length of the block, unless a person paused it, so that the worker starts no run."""
    pool = f"{api}/work_pools/{POOL}"
    paused = ask(pool, None)["is_paused"]
    ask(pool, {"is_paused": True}, "PATCH")
    try:
        yield
    finally:
        ask(pool, {"is_paused": paused}, "PATCH")


def end(api: str, run: FlowRun, state: Literal["CANCELLED", "CRASHED"], why: str) -> None:
    """Set a run's final state on the server, which frees its slot in its deployment, unless the run has ended."""
    if ask(f"{api}/flow_runs/{run.id}", None)["state_type"] not in _UNFINISHED:
        return
    body = {"state": {"type": state, "name": state.capitalize(), "message": why}, "force": True}
    ask(f"{api}/flow_runs/{run.id}/set_state", body)


def _signal(run: FlowRun, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.process or 0, number)


def _process_of(infrastructure: str | None) -> int | None:
    """Return the process id in Prefect's infrastructure id of a process worker, `HOST:PID` or `PID`."""
    number = (infrastructure or "").rpartition(":")[2]
    return int(number) if number.isdigit() else None


def environment_of(process: int) -> str:
    """Return the environment of a process, which shows who started it; empty if there is no such process."""
    path = Path(f"/proc/{process}/environ")
    if Path("/proc/self").exists():
        with contextlib.suppress(OSError):
            return path.read_bytes().decode(errors="replace")
        return ""
    command = ["ps", "eww", "-o", "command=", "-p", str(process)]  # macOS
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.replace(" ", "\0")


def ask(url: str, body: dict[str, Any] | None, method: str | None = None) -> Any:
    """Send a request to Prefect's API and return the response. body: as JSON; None for a GET request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine
    with opener.open(request, timeout=30) as answer:
        content = answer.read()
    return json.loads(content) if content else None
