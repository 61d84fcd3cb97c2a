"""What of a run is stale, and why: the one way to plan.

A stage's key is the digest of all it depends on: its version, its config, what comes from outside, and the content of
what stages before it made. It is fresh where an artifact of that key is there and whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tasks.common.errors import AttendError, nearest
from tasks.pipeline.ledger import Artifact, differences, digest_of
from tasks.pipeline.stage import PROGRESS, Pipeline, Stage
from tasks.pipeline.workspace import Workspace

Inputs = Mapping[str, Mapping[str, str]]  # name of a stage -> digests of what comes to it from outside
State = Literal["fresh", "stale", "missing", "damaged", "interrupted"]
Read = Literal["none", "suspects", "all"]  # of which files the digests are read, beside the sizes of all


@dataclass(frozen=True)
class Status:
    """One line of the plan: whether a stage must run, and why."""

    stage: Stage
    state: State
    why: list[str]
    key: str | None = None
    parts: dict[str, Any] = field(default_factory=dict)
    artifact: Artifact | None = None

    @property
    def fresh(self) -> bool:
        return self.state == "fresh"


def up_to(pipeline: Pipeline, name: str) -> Pipeline:
    """Return the pipeline up to and including the stage so named; AttendError for a name that no stage has."""
    names = pipeline.names()
    if name not in names:
        raise AttendError(f"no such stage {name!r}{nearest(name, names)}")
    return replace(pipeline, stages=pipeline.stages[: names.index(name) + 1])


def plan(pipeline: Pipeline, inputs: Inputs | None = None, read: Read = "none") -> list[Status]:
    """Return the state of every stage, from ledgers, file sizes, and the digests of the files that are to be `read`.

    inputs: what `inputs_of` returned when the run began, so that all its stages work on one state of the world.
    AttendError where a stage needs a split of the data set that has no pictures.
    """
    inputs = inputs_of(pipeline) if inputs is None else inputs
    statuses: dict[Stage, Status] = {}
    for stage in pipeline.stages:
        statuses[stage] = _status(stage, pipeline, statuses, inputs.get(stage.name, {}), read)
    return list(statuses.values())


def inputs_of(pipeline: Pipeline) -> Inputs:
    """Return the digests of what comes to each stage from outside: photographs, annotation files, weights."""
    return {stage.name: stage.inputs() for stage in pipeline.stages}


def artifacts_of(statuses: Iterable[Status]) -> dict[Stage, Artifact]:
    """Return the artifacts of the stages that are fresh."""
    return {status.stage: status.artifact for status in statuses if status.artifact is not None}


def by_kind(artifacts: Mapping[Stage, Artifact]) -> dict[str, Artifact]:
    """Return artifacts by the kind of their stage; of two stages of a kind the later one's."""
    return {stage.kind: artifact for stage, artifact in artifacts.items()}


def artifacts(pipeline: Pipeline, inputs: Inputs | None = None) -> dict[str, Artifact]:
    """Return the fresh artifacts of a pipeline by kind; of two stages of a kind the later one's."""
    return by_kind(artifacts_of(plan(pipeline, inputs)))


def artifact(pipeline: Pipeline) -> Artifact:
    """Return the artifact of a pipeline's last stage; AttendError where that is not fresh."""
    found = plan(pipeline)[-1].artifact
    if found is None:
        raise AttendError(f"{pipeline.run}: the stage {pipeline.last.name} is not fresh: run `attend run` first")
    return found


def verify(pipeline: Pipeline) -> list[Status]:
    """Return the plan with every digest read. What is damaged is remembered, and made again by the next run."""
    statuses = plan(pipeline, read="all")
    workspace = pipeline.workspace
    for status in statuses:
        found = workspace.find(status.stage.kind, status.key) if status.key else None
        if status.state == "damaged" and found is not None:
            workspace.suspect(path for path, _ in found.files(workspace.root))
    return statuses


def _status(
    stage: Stage, pipeline: Pipeline, before: Mapping[Stage, Status], inputs: Mapping[str, str], read: Read
) -> Status:
    workspace = pipeline.workspace
    last_key = workspace.recent(pipeline.run).done.get(stage.name)
    last = workspace.find(stage.kind, last_key) if last_key else None
    config = {name: section.key_part() for name, section in stage.sections().items()}
    made = artifacts_of(before.values())
    upstream = _upstream(stage, made, pipeline.run)
    # In the pipeline's order, not the one in which the stage names its needs.
    waiting = [item.name for item in before if item in stage.upstream() and item not in made]
    if waiting:
        if last is None:
            return Status(stage, "missing", [f"{' and '.join(waiting)} must run first"])
        changed = differences({"config": last.ledger.parts["config"]}, {"config": config})
        after = f"{' and '.join(waiting)} must run first; what comes out the same re-runs nothing"
        return Status(stage, "stale", [*changed, after])

    parts: dict[str, Any] = {
        "stage": stage.kind,
        "version": stage.version,
        "config": config,
        "upstream": upstream,
        "inputs": dict(inputs),
    }
    key = digest_of(parts)
    return _known(Status(stage, "missing", [], key, parts), workspace, last, read)


def _upstream(stage: Stage, artifacts: Mapping[Stage, Artifact], run: str) -> dict[str, str]:
    """Return the digest of each product that a stage needs, of those made so far.

    AttendError for one that will never be there, such as a split without pictures.
    """
    digests: dict[str, str] = {}
    for product in stage.needs():
        if product.stage not in artifacts:
            continue
        digest = product.digest(artifacts)
        if digest is None:
            raise AttendError(f"{run}: {stage.name} cannot run: {product.missing(artifacts[product.stage])}")
        digests[product.label] = digest
    return digests


def _known(status: Status, workspace: Workspace, last: Artifact | None, read: Read) -> Status:
    """Return the state of a stage whose key is known."""
    stage, key = status.stage, str(status.key)
    artifact = workspace.find(stage.kind, key)
    if artifact is not None:
        damage = workspace.damage(artifact, _to_read(artifact, workspace, read)) or stage.lost(artifact, workspace)
        if damage:
            return replace(status, state="damaged", why=[damage])
        return replace(status, state="fresh", why=[_counts(artifact)], artifact=artifact)
    cut_off = workspace.cut_off(stage.kind, key)
    if cut_off:
        return replace(status, state="damaged", why=[cut_off])
    partial = workspace.partial(stage.kind, key)
    if partial.exists():
        return replace(status, state="interrupted", why=[_how_far(partial)])
    if last is None:
        return replace(status, why=["has not run yet"])
    return replace(status, state="stale", why=differences(last.ledger.parts, status.parts))


def _to_read(artifact: Artifact, workspace: Workspace, read: Read) -> set[Path]:
    if read == "none":
        return set()
    files = {path for path, _ in artifact.files(workspace.root)}
    return files if read == "all" else files & workspace.suspects()


def _how_far(partial: Path) -> str:
    try:
        return (partial / PROGRESS).read_text(encoding="utf-8").strip()
    except OSError:
        return "cut off before its first checkpoint"


def _counts(artifact: Artifact) -> str:
    counts = ", ".join(f"{value:,} {name}" for name, value in artifact.ledger.counts.items() if isinstance(value, int))
    return counts or "nothing changed"
