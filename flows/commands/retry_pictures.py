"""Try the pictures again that could not be read, without extracting any other picture again."""

from __future__ import annotations

from flows.pipeline import build_pipeline
from tasks.common.errors import AttendError
from tasks.common.files import remove_folder
from tasks.config.schema import Config
from tasks.pipeline.plan import Plan
from tasks.pipeline.run import run_stage


def retry_failed(config: Config) -> tuple[int, int]:
    """Extract again the pictures of a config that could not be read. Returns their number before and after.

    The caller must be alone in the workspace. Stages that are stale are left to the next run. Raises AttendError for a
    workspace in object storage.
    """
    pipeline = build_pipeline(config)
    last = [stage.name for stage in pipeline.stages if stage.kind == "extract"][-1]
    plan = Plan(pipeline, last, read="suspects").update()
    if plan.workspace.remote is not None:
        raise AttendError(
            f"{config.machine.address}: pictures cannot be tried again in object storage, whose artifacts are never "
            "changed: copy such a picture under another content, or use a workspace in a folder"
        )
    before = after = 0
    for stage in plan.stages:
        if stage.kind != "extract":
            continue
        artifact = plan.status(stage.name).artifact
        if artifact is not None and artifact.ledger.counts["failed"]:
            before += int(artifact.ledger.counts["failed"])
            remove_folder(artifact.path)  # the index alone: the stage makes it again, from the grids in the store
            plan.update(stage)
            run_stage(plan, stage.name)
            made = plan.artifacts.get(stage)
            after += int(made.ledger.counts["failed"]) if made is not None else 0
    return before, after
