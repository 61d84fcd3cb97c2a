"""Running a stage: in a separate folder, under a lock, and published either completely or not at all."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Any

from models.out_of_memory import is_out_of_memory
from tasks.common.errors import AttendError, is_disk_full
from tasks.common.log import log
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.plan import Plan, Status, artifacts_of
from tasks.pipeline.stage import Stage, Work
from tasks.pipeline.workspace import Workspace, lock_name


def run_stage(plan: Plan, name: str, hooks: Any = None) -> Status:
    """Run one stage unless it is fresh, and return its previous status. Its upstream stages must be fresh.

    The plan must read suspects, and is up to date afterwards. Raises AttendError if an upstream stage is not fresh.
    """
    workspace, run = plan.workspace, plan.pipeline.run
    status = plan.status(name)
    if status.key is None:
        raise AttendError(f"{name}: {status.why[-1]}")
    if not status.fresh:
        workspace.remember(run, name, status.key, done=False)
        with workspace.lock(lock_name(status.stage.kind, status.key), f"{name} of {run}"):
            plan.update(status.stage)  # another process may have run it meanwhile
            if not plan.status(name).fresh:
                before = artifacts_of(plan.statuses[: plan.stages.index(status.stage)])
                _run(workspace, plan.status(name), before, hooks)
                plan.ran.append(name)
    workspace.remember(run, name, status.key, done=True)
    if not status.fresh:
        plan.update(status.stage)
    names = plan.pipeline.names()
    if name == names[-1]:
        workspace.forget_other_stages(run, names)
    return status


def _run(workspace: Workspace, status: Status, artifacts: Mapping[Stage, Artifact], hooks: Any) -> None:
    """Run a stage that is not fresh, and publish its artifact. artifacts: of all stages before it, all fresh."""
    assert status.key is not None and status.parts is not None
    stage = status.stage
    partial = workspace.partial(stage.kind, status.key)
    if not stage.resumable:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        work = Work(status.key, artifacts, status.parts["inputs"], partial)
        if stage.distributed:
            from tasks.pipeline.distributed import lead  # loads torch

            outcome = lead(stage, work, hooks)
        else:
            outcome = stage.run(work, hooks)
        made_from = {earlier.kind: artifacts[earlier].ledger.key for earlier in stage.all_upstream()}
        workspace.publish(stage.kind, status.key, status.parts, outcome, time.monotonic() - started, made_from)
    except BaseException as error:
        if not stage.resumable:
            shutil.rmtree(partial, ignore_errors=True)
        if is_disk_full(error):
            raise AttendError(
                f"{workspace.root}: the disk is full ({stage.name}): make room and run again; finished work is kept"
            ) from None
        if is_out_of_memory(error) and not isinstance(error, AttendError):
            advice = f", or set a smaller {stage.memory_setting}" if stage.memory_setting else ""
            raise AttendError(f"{stage.name}: out of memory: free some{advice}, and run again") from None
        raise
    for note in outcome.notes:
        log.info(f"{stage.name}: {note}")
