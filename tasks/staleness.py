"""What of a run is stale, and why: the one way to plan.

A stage's key is the digest of all it depends on: its version, its config, what comes from outside, and the content of
what stages before it made. It is fresh where an artifact of that key is there and whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tasks.config import Config
from tasks.errors import AttendError
from tasks.ledger import Artifact, differences, digest_of
from tasks.stages import PROGRESS, STAGES, Stage, function_at, up_to
from tasks.workspace import Workspace

Inputs = dict[str, dict[str, str]]
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


def plan(
    config: Config, until: str = STAGES[-1].name, inputs: Inputs | None = None, read: Read = "none"
) -> list[Status]:
    """The state of every stage up to `until`, from ledgers and file sizes, and from the digests of what is `read`.

    inputs: what `inputs_of` gave when the run began, so that all its stages work on one state of the world.
    """
    workspace = Workspace(config.workspace)
    inputs = inputs_of(config, until) if inputs is None else inputs
    found: dict[str, Status] = {}
    for stage in up_to(config, until):
        found[stage.name] = _status(stage, config, workspace, found, inputs, read)
    return list(found.values())


def inputs_of(config: Config, until: str = STAGES[-1].name) -> Inputs:
    """Stage -> digests of what comes to it from outside (photographs, weights), up to `until`."""
    return {stage.name: function_at(stage.inputs)(config) for stage in up_to(config, until) if stage.inputs}


def upstream_of(found: Iterable[Status]) -> dict[str, Artifact]:
    """Kind -> artifact; of a stage that came twice, the later one's."""
    return {status.stage.kind: status.artifact for status in found if status.artifact is not None}


def _status(
    stage: Stage, config: Config, workspace: Workspace, found: dict[str, Status], inputs: Inputs, read: Read
) -> Status:
    last_key = workspace.recent(config.name).done.get(stage.name)
    last = workspace.find(stage.kind, last_key) if last_key else None
    needs = [need.format(evaluation=config.evaluation) for need in stage.needs]
    own = {"config": {name: getattr(config, name).key_part() for name in stage.sections}}
    digests, waiting = _upstream(stage, needs, found, config.name)
    if waiting:
        if last is None:
            return Status(stage, "missing", [f"{' and '.join(waiting)} must run first"])
        changed = differences({"config": last.ledger.parts["config"]}, own)
        after = f"{' and '.join(waiting)} must run first; what comes out the same re-runs nothing"
        return Status(stage, "stale", [*changed, after])

    parts: dict[str, Any] = {"stage": stage.kind, "version": stage.version, **own, "upstream": digests, "inputs": {}}
    parts["inputs"] = inputs.get(stage.name, {})
    key = digest_of(parts)
    return _known(Status(stage, "missing", [], key, parts), workspace, last, read)


def _known(status: Status, workspace: Workspace, last: Artifact | None, read: Read) -> Status:
    """The state of a stage whose key is known."""
    stage, key = status.stage, str(status.key)
    artifact = workspace.find(stage.kind, key)
    if artifact is not None:
        damage = workspace.damage(artifact, _to_read(artifact, workspace, read))
        if damage is None and stage.check:
            damage = function_at(stage.check)(artifact, workspace)
        if damage:
            return replace(status, state="damaged", why=[damage])
        return replace(status, state="fresh", why=[_told(artifact)], artifact=artifact)
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


def _upstream(stage: Stage, needs: list[str], found: dict[str, Status], run: str) -> tuple[dict[str, str], list[str]]:
    """Digest of each upstream product, and the upstream stages that must run before they are known.

    AttendError for a product that will never be there: a split of the data set without pictures.
    """
    digests: dict[str, str] = {}
    waiting = set()
    latest = {status.stage.kind: status for status in found.values()}
    for need in needs:
        upstream, _, rest = need.partition(".")
        product, _, splits = rest.partition(":")
        artifact = latest[upstream].artifact
        if artifact is None:
            waiting.add(latest[upstream].stage.name)
        elif product in artifact.products:
            digests[f"{upstream}.{product}"] = _digest(artifact, product, latest["ingest"].artifact, splits)
        else:
            hint = _split_hint(stage, artifact)
            raise AttendError(
                f"{run}: the split {product!r} of the data set has no picture, and {stage.name} needs it{hint}"
            )
    return digests, [name for name in found if name in waiting]


def _digest(artifact: Artifact, product: str, manifest: Artifact | None, splits: str) -> str:
    """Of an upstream product, or of what of it concerns these splits of the manifest, where some are named."""
    whole = artifact.products[product]
    if not splits or manifest is None or whole == digest_of([]):  # of nothing, nothing concerns them: not looked up
        return whole
    return str(function_at("tasks.failures:failed_among")(artifact, manifest, splits.split(",")))


def _how_far(partial: Path) -> str:
    try:
        return (partial / PROGRESS).read_text(encoding="utf-8").strip()
    except OSError:
        return "cut off before its first checkpoint"


def _split_hint(stage: Stage, manifest: Artifact) -> str:
    there = [name for name in ("train", "dev", "test") if name in manifest.products]
    hint = f" (there are: {', '.join(there)})"
    return hint + (f": set evaluation.split={there[-1]}" if stage.name == "evaluate" and there else "")


def _told(artifact: Artifact) -> str:
    counts = ", ".join(f"{value:,} {name}" for name, value in artifact.ledger.counts.items() if isinstance(value, int))
    return counts or "nothing changed"


def verify(config: Config, until: str = STAGES[-1].name) -> list[Status]:
    """The plan, every digest read. What is damaged is remembered, and made again by the next run."""
    statuses = plan(config, until, read="all")
    workspace = Workspace(config.workspace)
    for status in statuses:
        found = workspace.find(status.stage.kind, status.key) if status.key else None
        if status.state == "damaged" and found is not None:
            workspace.suspect(path for path, _ in found.files(workspace.root))
    return statuses


def artifacts(config: Config, until: str = STAGES[-1].name, inputs: Inputs | None = None) -> dict[str, Artifact]:
    """The fresh artifacts of a config up to `until`, by kind of stage; of two of a kind, the later one."""
    return upstream_of(plan(config, until, inputs))


def artifact(config: Config, name: str, until: str | None = None) -> Artifact:
    """One fresh artifact; AttendError where it is not. until: how far to look; the last stage."""
    found = artifacts(config, until or STAGES[-1].name).get(name)
    if found is None:
        raise AttendError(f"{config.name}: the stage {name} is not fresh: run `attend run` first")
    return found
