"""`attend up --worker-only`: a worker for a Prefect server that runs elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

from flows.operations.deploy import POOL, WORKER, ServiceOptions, check_project, deploy, logs_of
from flows.operations.local_run import check_server
from flows.operations.prefect_settings import environment
from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.pipeline.workspace import Workspace

_API = "PREFECT_API_URL"


def become_worker(options: ServiceOptions) -> NoReturn:
    """Deploy on the server in PREFECT_API_URL or in Prefect's profile, and become Prefect's own worker.

    Several machines may each run one; the deployments are the same. Raises AttendError without a server that answers.
    """
    workspace, project = Path(options.workspace), Path(options.project)
    env = environment(workspace) | {"ATTEND_WORKSPACE": str(workspace)}
    if not env.get(_API):
        raise AttendError(
            f"--worker-only: {_API} is not set: set it to the server's address, such as http://HOST:4200/api"
        )
    check_server(env[_API], _API)
    check_project(project)
    Workspace(workspace).prepare()
    logs_of(workspace).mkdir(parents=True, exist_ok=True)
    deploy(options, env)
    log.info(f"a worker of the pool {POOL} at {env[_API]}, until SIGTERM or Ctrl-C")
    os.chdir(project)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a script's background commands ignore it; the worker stops by it
    os.execvpe(WORKER[0], WORKER, env)
