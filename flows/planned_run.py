"""The beginning of a run: its plan, made while no other command changes the workspace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flows.pipeline import build_pipeline
from tasks.config.schema import Config
from tasks.mlflow_store.runs import close_dead_runs
from tasks.mlflow_store.tracking import check_store
from tasks.pipeline.plan import Plan
from tasks.pipeline.sessions import session
from tasks.pipeline.workspace import Workspace


@contextlib.contextmanager
def planned_run(
    config: Config, until: str, doing: str | None = None, alone: bool = False, verify: bool = False
) -> Iterator[Plan]:
    """Yield the plan of a run, and keep `attend workspace prune` out of the workspace for the length of the block.

    The workspace is made where there is none. Files that a crashed run may have damaged are read, and with `verify` all
    files. doing: a description of the run, for messages. alone: first wait until no other such run of the config's name
    is going on, so that eight commands at once do not each start Prefect. Raises AttendError where the data, the
    workspace or the MLflow store cannot be used.
    """
    pipeline, workspace, doing = build_pipeline(config), Workspace(config.workspace), doing or f"run of {config.name}"
    if alone and workspace.root.is_dir() and not workspace.is_writable():
        plan = Plan(pipeline, until, read="all" if verify else "suspects").update()
        if plan.fresh:  # nothing has to be written
            yield plan
            return
    # Data that cannot be read is refused before a workspace is made; in one that exists, other runs are awaited first.
    first = None if workspace.root.is_dir() else Plan(pipeline, until, read="suspects")
    workspace.prepare()
    with (
        workspace.lock(f"running-{config.name}", doing) if alone else contextlib.nullcontext(),
        session(workspace, doing),
    ):
        close_dead_runs(workspace.root)
        plan = first or Plan(pipeline, until, read="suspects")
        plan = plan.verify() if verify else plan.update()
        if not plan.fresh:
            check_store(config.workspace)
        yield plan
