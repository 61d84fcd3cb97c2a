"""The one way to run a stage: in a folder of its own, under a lock, published whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable

from tasks.config import Config
from tasks.errors import AttendError, is_disk_full
from tasks.ledger import Artifact, Outcome, Work
from tasks.progress import Stopwatch, lasting, say
from tasks.stages import function_at, stages_of
from tasks.staleness import Inputs, Status, inputs_of, plan, upstream_of
from tasks.workspace import Workspace


def run_stage(config: Config, name: str, inputs: Inputs | None = None, **hooks: Callable[..., None]) -> Status:
    """Bring one stage up to date, its upstream stages being fresh; returns its status before.

    inputs: as in `plan`. Raises AttendError where an upstream stage is not fresh.
    """
    workspace = Workspace(config.workspace)
    inputs = inputs_of(config, name) if inputs is None else inputs
    status = plan(config, name, inputs, read="suspects")[-1]
    if status.key is None:
        raise AttendError(f"{name}: {status.why[-1]}")
    if not status.fresh:
        workspace.remember(config.name, name, status.key, done=False)
        with workspace.lock(f"{status.stage.kind}-{status.key[:20]}", f"{name} of {config.name}"):
            statuses = plan(config, name, inputs, read="suspects")  # another process may have made it meanwhile
            if not statuses[-1].fresh:
                _run(config, workspace, statuses[-1], upstream_of(statuses[:-1]), hooks)
    if workspace.suspects():
        trust_fresh(plan(config, name, inputs)[-1:], config)
    workspace.remember(config.name, name, status.key, done=True)
    names = [stage.name for stage in stages_of(config)]
    if name == names[-1]:
        workspace.remember_only(config.name, names)
    return status


def trust_fresh(statuses: Iterable[Status], config: Config) -> None:
    """The files of the fresh ones were made just now, or read and found to be as recorded."""
    workspace = Workspace(config.workspace)
    made = [status.artifact for status in statuses if status.artifact is not None]
    workspace.trust(path for artifact in made for path, _ in artifact.files(workspace.root))


def _run(
    config: Config,
    workspace: Workspace,
    status: Status,
    upstream: dict[str, Artifact],
    hooks: dict[str, Callable[..., None]],
) -> None:
    assert status.key is not None
    stage = status.stage
    partial = workspace.partial(stage.kind, status.key)
    if not stage.resumable:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    watch = Stopwatch()
    function = function_at(stage.function)
    sections = {section: getattr(config, section) for section in (*stage.sections, *stage.places)}
    try:
        work = Work(status.key, upstream, status.parts["inputs"], partial)
        outcome: Outcome
        if stage.shared:
            outcome = function_at("tasks.processes:lead")(function, work, sections, hooks)
        else:
            outcome = function(**sections, work=work, **hooks)
        made_from = {kind: artifact.ledger.key for kind, artifact in upstream.items()}
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


def saved(before: list[Status], made: dict[str, Artifact]) -> str:
    """What a run did not do again, in words: pictures that kept their grids, and the time that fresh stages took.

    Empty where that is nothing.
    before: their states when the run began. made: the artifacts when it ended.
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
