"""A systemd unit that runs `attend up` from boot to shutdown."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Literal

from flows.operations.deploy import ServiceOptions

# `attend down` waits 60 s for runs to reach a checkpoint, and then up to 60 s for the servers.
_UNIT = """\
# Written by `attend up --systemd`. Variables such as MLFLOW_TRACKING_URI are read from the file {environment}.
[Unit]
Description=attend: scheduled runs in {workspace}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
{user}WorkingDirectory={project}
EnvironmentFile=-{environment}
ExecStart={command}
Restart=on-failure
RestartSec=30
KillMode=mixed
TimeoutStopSec=180

[Install]
WantedBy={target}
"""
ENVIRONMENT = "attend.env"  # the file of variables, in the workspace


def unit(options: ServiceOptions, manager: Literal["user", "system"]) -> str:
    """Return the unit for a user's service manager, or for the system's, which runs the service as this user."""
    own = Path(sys.executable).with_name("attend")
    command = [str(own), "up", *([options.config] if options.config else [])]
    command += ["--worker-only" if options.worker_only else "--foreground"]
    command += ["--workspace", options.workspace, "--project", options.project]
    if not options.worker_only:
        command += ["--port", str(options.port), "--mlflow-port", str(options.mlflow_port)]
    command += ["--notify", options.notify] if options.notify else []
    return _UNIT.format(
        workspace=_escaped(options.workspace),
        project=_escaped(options.project),
        environment=_escaped(f"{options.workspace}/{ENVIRONMENT}"),
        command=" ".join(map(_quoted, command)),
        user=f"User={getpass.getuser()}\n" if manager == "system" else "",
        target="multi-user.target" if manager == "system" else "default.target",
    )


def _escaped(text: str) -> str:
    """Return a text with systemd's specifiers escaped."""
    return text.replace("%", "%%")


def _quoted(argument: str) -> str:
    """Return a command-line argument in systemd's quoting (systemd.service, "Command lines")."""
    text = _escaped(argument).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return text if text and not set(text) & set(" \t'\";") else f'"{text}"'
