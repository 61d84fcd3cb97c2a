"""Try the pictures again that could not be read, without extracting any other picture again."""

from __future__ import annotations

from flows.pipeline import build_pipeline
from tasks.common.files import remove_folder
from tasks.config.schema import Config
from tasks.pipeline.plan import artifact, plan, up_to
from tasks.pipeline.run import run_stage


def retry_failed(config: Config) -> tuple[int, int]:
    """Extract again the pictures of a config that could not be read. Returns their number before and after."""
    pipeline = build_pipeline(config)
    before = after = 0
    for status in plan(pipeline):
        if status.artifact is None or status.stage.kind not in ("extract", "views"):
            continue
        failed = int(status.artifact.ledger.counts["failed"])
        if failed:
            before += failed
            remove_folder(
                status.artifact.path
            )  # the index alone: the stage makes it again, from the grids in the store
            run_stage(pipeline, status.stage.name)
            after += int(artifact(up_to(pipeline, status.stage.name)).ledger.counts["failed"])
    return before, after
