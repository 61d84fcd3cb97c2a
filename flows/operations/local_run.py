"""`attend run`: the pipeline in this process, by the server that is up for the workspace, or else one of its own."""

from __future__ import annotations

import os
import shutil

from flows.operations import service
from flows.operations.prefect_server import start_for_this_process
from flows.operations.prefect_settings import apply
from flows.pipeline import pipeline_of
from flows.prepare import notice_crashes, prepare
from tasks.common.errors import AttendError
from tasks.common.progress import say
from tasks.config.schema import Config
from tasks.pipeline.plan import Status, plan, up_to
from tasks.pipeline.run import trust_fresh
from tasks.pipeline.workspace import Workspace

# Prefect's server cannot make its database where there is less, and says nothing about it for two minutes.
_ROOM = 16 * 2**20


def look(config: Config, until: str) -> list[Status]:
    """The plan; what a crashed run may have touched is read, and is trusted again where it is sound."""
    notice_crashes(Workspace(config.workspace))
    pipeline = up_to(pipeline_of(config), until)
    statuses = plan(pipeline, read="suspects")
    trust_fresh(statuses, pipeline.workspace)
    return statuses


def run(config: Config, until: str, quiet: bool = False) -> None:
    """Bring every stage up to `until` up to date, unless a run of the same name has just done so."""
    prepare(config)
    workspace = Workspace(config.workspace)
    # Before Prefect starts: it takes long, and eight of them at once much longer.
    with workspace.lock(f"run-of-{config.name}", f"run of {config.name}"):
        if all(status.fresh for status in look(config, until)):
            return
        _start_prefect(config, quiet)
        from flows.operations.run_flow import run_pipeline

        try:
            run_pipeline(config, until)
        except AttendError:
            raise
        except Exception:  # a server without room for its database tells of an internal error
            if _free(config) > 2**20:
                raise
            raise AttendError(
                f"{config.workspace}: the disk is full: make room and run again; what is done is kept"
            ) from None


def _free(config: Config) -> int:
    """Bytes that the workspace's disk has left."""
    return shutil.disk_usage(config.workspace).free


def _start_prefect(config: Config, quiet: bool) -> None:
    """Set Prefect up: by the server named, the one that is up, or else one of this process."""
    running = service.running(config.workspace)
    if running is not None:
        os.environ.setdefault("PREFECT_API_URL", running.api)
    apply(config.workspace)
    if "PREFECT_API_URL" in os.environ:
        return
    free = _free(config)
    if free < _ROOM:
        raise AttendError(
            f"{config.workspace}: the disk is full: {free / 2**20:.0f} MiB are free, a run needs {_ROOM >> 20} to "
            "begin: make room and run again; what is done is kept"
        )
    if not quiet:
        say("starting Prefect's local server")
    # Two servers that make the same database at once break each other's migrations.
    with Workspace(config.workspace).lock("prefect", "Prefect's local server"):
        server = start_for_this_process(service.logs_of(config.workspace))
        os.environ["PREFECT_API_URL"] = server.api
        import flows.operations.run_flow  # noqa: F401 -- seconds, in which the server starts

        try:
            server.wait()
        except BaseException:
            del os.environ["PREFECT_API_URL"]
            raise
