"""MLflow's own pages, served on this machine for a workspace's embedded store."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tasks.common.errors import AttendError
from tasks.common.ports import is_listening
from tasks.mlflow_store.tracking import connect, tracking_uri, without_credentials


def mlflow_ui(workspace: Path, port: int) -> None:
    """Replace this process with MLflow's own server, which shows the workspace's embedded store until it is stopped.

    Raises AttendError if the store is not embedded but a server, or does not exist.
    """
    if tracking_uri(workspace).startswith(("http://", "https://")):
        raise AttendError(
            f"MLFLOW_TRACKING_URI names a server: its page is at {without_credentials(tracking_uri(workspace))}"
        )
    if is_listening(port):
        raise AttendError(f"--port: {port} is taken by another program: give another port")
    connect(workspace, must_exist=True)  # upgrades the database if needed: MLflow's server would not do it atomically
    command = ui_command(workspace, port)
    print(f"MLflow: http://127.0.0.1:{port} in some seconds; Ctrl-C stops it", flush=True)
    os.execve(command[0], command, ui_environment())


def ui_command(workspace: Path, port: int) -> list[str]:
    """Return the command that serves the pages of an embedded store on a port of this machine.

    Raises AttendError if MLflow's program is not installed beside this Python.
    """
    program = Path(sys.executable).with_name("mlflow")
    if not program.exists():
        raise AttendError(
            f"{program}: MLflow's program is not installed beside this Python: install `mlflow` in this environment"
        )
    arguments = ["server", "--backend-store-uri", tracking_uri(workspace), "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--artifacts-destination", (workspace / "mlartifacts").as_uri(), "--workers", "1"]
    return [str(program), *arguments]


def ui_environment() -> dict[str, str]:
    """Return the environment variables for `ui_command`."""
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return environment
