"""The one way to run a stage: in a folder of its own, under a lock, published whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping

from tasks.common.errors import AttendError, is_disk_full
from tasks.common.progress import Stopwatch, lasting, say
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.plan import Inputs, Status, artifacts_of, inputs_of, plan, up_to
from tasks.pipeline.stage import Hooks, Pipeline, Stage, Work
from tasks.pipeline.workspace import Workspace

_NO_HOOKS = Hooks()


def run_stage(pipeline: Pipeline, name: str, inputs: Inputs | None = None, hooks: Hooks = _NO_HOOKS) -> Status:
    """Bring one stage up to date, its upstream stages being fresh; return its status before.

    inputs: as in `plan`. Raises AttendError where an upstream stage is not fresh.
    """
    workspace, wanted = pipeline.workspace, up_to(pipeline, name)
    inputs = inputs_of(wanted) if inputs is None else inputs
    status = plan(wanted, inputs, read="suspects")[-1]
    if status.key is None:
        raise AttendError(f"{name}: {status.why[-1]}")
    if not status.fresh:
        workspace.remember(pipeline.run, name, status.key, done=False)
        with workspace.lock(f"{status.stage.kind}-{status.key[:20]}", f"{name} of {pipeline.run}"):
            statuses = plan(wanted, inputs, read="suspects")  # another process may have made it meanwhile
            if not statuses[-1].fresh:
                _run(workspace, statuses[-1], artifacts_of(statuses[:-1]), hooks)
    if workspace.suspects():
        trust_fresh(plan(wanted, inputs)[-1:], workspace)
    workspace.remember(pipeline.run, name, status.key, done=True)
    if name == pipeline.last.name:
        workspace.remember_only(pipeline.run, pipeline.names())
    return status


def trust_fresh(statuses: Iterable[Status], workspace: Workspace) -> None:
    """Trust the files of fresh stages: they were made just now, or read and found to be as recorded."""
    made = [status.artifact for status in statuses if status.artifact is not None]
    workspace.trust(path for artifact in made for path, _ in artifact.files(workspace.root))


def _run(workspace: Workspace, status: Status, before: Mapping[Stage, Artifact], hooks: Hooks) -> None:
    assert status.key is not None
    stage = status.stage
    partial = workspace.partial(stage.kind, status.key)
    if not stage.resumable:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    watch = Stopwatch()
    try:
        work = Work(status.key, before, status.parts["inputs"], partial)
        if stage.distributed:
            from tasks.pipeline.distributed import lead  # loads torch

            outcome = lead(stage, work, hooks)
        else:
            outcome = stage.run(work, hooks)
        made_from = {stage.kind: artifact.ledger.key for stage, artifact in before.items()}
        workspace.publish(stage.kind, status.key, status.parts, outcome, watch.seconds(), made_from)
    except BaseException as error:
        if not stage.resumable:
            shutil.rmtree(partial, ignore_errors=True)
        if is_disk_full(error):
            raise AttendError(
                f"{workspace.root}: the disk is full ({stage.name}): make room and run again; what is done is kept"
            ) from None
        raise
    for note in outcome.notes:
        say(f"{stage.name}: {note}")


def saved(before: list[Status], made: Mapping[str, Artifact]) -> str:
    """Return what a run did not do again: pictures that kept their grids, and the time that fresh stages took.

    Empty where that is nothing. before: the states when the run began. made: the artifacts when it ended, by kind.
    """
    fresh = [status.artifact for status in before if status.fresh and status.artifact is not None]
    seconds = sum(artifact.ledger.seconds for artifact in fresh)
    pictures = 0
    if "extract" in made:
        counts = made["extract"].ledger.counts
        again = all(artifact.ledger.key != made["extract"].ledger.key for artifact in fresh)
        pictures = int(counts["grids"] - (counts["extracted"] if again else 0))
    if not pictures and not fresh:
        return ""
    return f"saved: {pictures:,} pictures not extracted again, {lasting(seconds)} of work"
