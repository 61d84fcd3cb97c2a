"""`attend run`: run the pipeline in this process, with the workspace's running Prefect server or a temporary one."""

from __future__ import annotations

import os
import shutil
from functools import partial

from flows.operations import service
from flows.operations.deploy import logs_of
from flows.operations.prefect_server import start_for_this_process, wait_or_start_again
from flows.operations.prefect_settings import apply, profile_name
from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.common.ports import why_silent
from tasks.config.schema import Config
from tasks.mlflow_store.tracking import without_credentials
from tasks.pipeline.plan import Plan
from tasks.pipeline.workspace import Workspace

# Bytes. With less free space Prefect's server cannot create its database, and takes two minutes to report that.
_MIN_FREE = 16 * 2**20


def run(config: Config, plan: Plan, preset: str, overrides: list[str], quiet: bool = False) -> None:
    """Bring the wanted stages of a plan up to date.

    config: the config of `preset` and `overrides`. quiet: print nothing about the start of Prefect's server. Raises
    AttendError if a stage does, or if the disk is full.
    """
    _start_prefect(config, quiet)
    from prefect import tags
    from prefect.exceptions import CancelledRun

    from flows.operations.run_flow import run_planned

    try:
        with tags("attend"):  # as on the deployments
            run_planned(config, plan, preset, overrides, plan.stages[-1].name)
    except AttendError:
        raise
    except CancelledRun:
        raise KeyboardInterrupt from None
    except Exception:  # without room for its database, the server answers with an internal error
        if shutil.disk_usage(config.workspace).free > 2**20:
            raise
        raise AttendError(
            f"{config.workspace}: the disk is full: make room and run again; what is done is kept"
        ) from None


def check_server(api: str, source: str) -> None:
    """Raise AttendError if a Prefect server does not answer. api: its URL. source: where the URL comes from."""
    reason = why_silent(f"{api.rstrip('/')}/health")
    if reason is not None:
        raise AttendError(
            f"Prefect's server {without_credentials(api)}, from {source}, does not answer ({reason}): start it, or set "
            "PREFECT_API_URL= (empty) to run with a server of this run's own"
        )


def _start_prefect(config: Config, quiet: bool) -> None:
    """Point Prefect at the server in PREFECT_API_URL, else at a running service, else at a new server of this process.

    An empty PREFECT_API_URL means none. Raises AttendError if the server that a person named does not answer.
    """
    running = service.running_service(config.workspace)
    if running is not None:
        os.environ.setdefault("PREFECT_API_URL", running.api)
    source = "PREFECT_API_URL in the environment" if "PREFECT_API_URL" in os.environ else profile_name()
    apply(config.workspace)
    if os.environ.get("PREFECT_API_URL"):
        if running is None:
            check_server(os.environ["PREFECT_API_URL"], source)
        return
    os.environ.pop("PREFECT_API_URL", None)
    free = shutil.disk_usage(config.workspace).free
    if free < _MIN_FREE:
        raise AttendError(
            f"{config.workspace}: the disk is full: {free / 2**20:.0f} MiB are free, a run needs "
            f"{_MIN_FREE >> 20} MiB to begin: make room and run again; what is done is kept"
        )
    if not quiet:
        log.info("starting Prefect's local server, which records the run")
    # Locked because two servers that create the same database at once break each other's migrations.
    with Workspace(config.workspace).lock("prefect", "Prefect's local server"):
        start = partial(start_for_this_process, logs_of(config.workspace))
        server = start()
        os.environ["PREFECT_API_URL"] = server.api
        import flows.operations.run_flow  # noqa: F401 -- takes seconds, while the server starts

        try:
            os.environ["PREFECT_API_URL"] = wait_or_start_again(server, start, config.workspace).api
        except BaseException:
            del os.environ["PREFECT_API_URL"]
            raise
