"""The beginning and the end of a run: its plan, under the locks of the workspace, and the work that it saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from flows.pipeline import build_pipeline
from tasks.common.progress import duration
from tasks.config.schema import Config
from tasks.mlflow_store.runs import close_dead_runs
from tasks.mlflow_store.tracking import check_store
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.plan import Plan, Status
from tasks.pipeline.sessions import session
from tasks.pipeline.workspace import Workspace


@contextlib.contextmanager
def planned_run(
    config: Config, until: str, doing: str | None = None, alone: bool = False, verify: bool = False
) -> Iterator[Plan]:
    """Yield the plan of a run, and keep `attend workspace prune` out of the workspace for the length of the block.

    The workspace is created if there is none. The digests of files that a crashed run may have damaged are checked, or
    those of all files with `verify`. doing: a description of the run, for messages. alone: first wait until no other
    such run of the config's name is active, so that eight commands at once do not each start Prefect. Raises
    AttendError if the data, the workspace or the MLflow store cannot be used.
    """
    pipeline, workspace, doing = build_pipeline(config), Workspace(config.workspace), doing or f"run of {config.name}"
    if alone and workspace.root.is_dir() and not workspace.is_writable():
        plan = Plan(pipeline, until, read="all" if verify else "suspects").update()
        if plan.fresh:  # nothing to write
            yield plan
            return
    # Unreadable data is refused before a workspace is created; in an existing one, other runs are awaited first.
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


def savings_message(statuses: list[Status], artifacts: Mapping[str, Artifact]) -> str:
    """Return a message about the work that a run did not repeat: pictures extracted earlier, and time of fresh stages.

    Empty if the run repeated everything. statuses: the statuses when the run began. artifacts: those when it ended, by
    kind.
    """
    fresh = [status.artifact for status in statuses if status.fresh and status.artifact is not None]
    seconds = sum(artifact.ledger.seconds for artifact in fresh)
    pictures = 0
    if "extract" in artifacts:
        counts = artifacts["extract"].ledger.counts
        extract_ran = all(artifact.ledger.key != artifacts["extract"].ledger.key for artifact in fresh)
        pictures = int(counts["grids"] - (counts["extracted"] if extract_ran else 0))
    if not pictures and seconds < 1:
        return ""
    savings = [f"{pictures:,} pictures not extracted again"] if pictures else []
    savings += [f"{duration(seconds)} of work"] if seconds >= 1 else []
    return f"saved: {', '.join(savings)}"
