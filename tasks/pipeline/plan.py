"""The plan of a run: which stages are stale, and why. Every command uses this module.

A stage's key is the digest of everything that it depends on: its version, its config sections, its inputs from outside
the workspace, and the content digests of the upstream products. A stage is fresh if the workspace has an undamaged
artifact with that key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tasks.common.errors import AttendError, suggestion
from tasks.common.wording import listed
from tasks.pipeline.ledger import Artifact, KeyParts, differences, digest_of
from tasks.pipeline.stage import PROGRESS, Pipeline, Stage
from tasks.pipeline.workspace import Workspace, lock_name

Inputs = Mapping[str, Mapping[str, str]]  # name of a stage -> digests of its inputs from outside the workspace
State = Literal["fresh", "stale", "missing", "damaged", "interrupted", "running"]
Read = Literal["none", "suspects", "all"]  # the files whose digests are checked; sizes are checked for all files


@dataclass(frozen=True)
class Status:
    """One line of the plan: the state of a stage, and why it must run or what its artifact contains."""

    stage: Stage
    state: State
    why: list[str]
    key: str | None = None
    parts: KeyParts | None = None
    artifact: Artifact | None = None

    @property
    def fresh(self) -> bool:
        return self.state == "fresh"


class Plan:
    """The statuses of a pipeline's stages, in order, up to the last stage that is wanted.

    A command creates one and passes it down. The digests of inputs from outside the workspace (photographs, annotation
    files, weights) are read when it is created, so that all stages of a run see them in the same state. `update` finds
    the statuses; `run_stage` calls it again for a stage that has run and for the stages after it.

    statuses: of the wanted stages. ran: the names of the stages that have run.
    """

    def __init__(self, pipeline: Pipeline, until: str | None = None, read: Read = "none") -> None:
        """Read the inputs from outside the workspace.

        until: the last stage that is wanted; by default the pipeline's last. read: the files whose digests `update`
        checks: a run must read the suspects. Raises AttendError if no stage has that name, or if an input cannot be
        read.
        """
        names = pipeline.names()
        if until is not None and until not in names:
            raise AttendError(f"no such stage {until!r}{suggestion(until, names)}")
        self.pipeline, self.workspace, self.read = pipeline, Workspace(pipeline.root), read
        self.stages = pipeline.stages if until is None else pipeline.stages[: names.index(until) + 1]
        self.inputs: Inputs = {stage.name: stage.inputs() for stage in self.stages}
        self.ran: list[str] = []
        self._statuses: dict[Stage, Status] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Prefect sends tasks' arguments to every worker of a cluster, and workers need no plan."""
        return {}

    @property
    def statuses(self) -> list[Status]:
        """Return the statuses of the wanted stages."""
        return [self._statuses[stage] for stage in self.stages]

    @property
    def fresh(self) -> bool:
        """Return whether all wanted stages are fresh."""
        return all(status.fresh for status in self.statuses)

    @property
    def artifacts(self) -> dict[Stage, Artifact]:
        """Return the artifacts of the wanted stages that are fresh."""
        return artifacts_of(self.statuses)

    @property
    def by_kind(self) -> dict[str, Artifact]:
        """Return the artifacts of the wanted fresh stages, by kind; if two stages share a kind, the later one's."""
        return by_kind(self.artifacts)

    def status(self, name: str) -> Status:
        """Return the status of the stage with that name. Raises AttendError if no wanted stage has it."""
        stage = next((stage for stage in self.stages if stage.name == name), None)
        if stage is None:
            raise AttendError(f"no such stage {name!r}{suggestion(name, [stage.name for stage in self.stages])}")
        return self._statuses[stage]

    def update(self, first: Stage | None = None) -> Plan:
        """Find the statuses of the wanted stages, or only those from `first` on, and return this plan.

        It checks ledgers, file sizes, and the digests of the files chosen by `read`; a suspect file that matches its
        digest is trusted again. Raises AttendError if a stage needs a split of the data set that has no pictures; the
        statuses then do not change.
        """
        start = 0 if first is None else self.stages.index(first)
        statuses = dict(list(self._statuses.items())[:start])
        for stage in self.stages[start:]:
            statuses[stage] = self._status_of(stage, self.inputs.get(stage.name, {}), statuses)
        self._statuses = statuses
        if self.read != "none" and self.workspace.is_writable():  # any suspects among them were read just now
            artifacts = artifacts_of(self.statuses[start:]).values()
            self.workspace.trust(path for artifact in artifacts for path, _ in artifact.files(self.workspace.root))
        return self

    def of_all_stages(self) -> list[Status]:
        """Return the statuses of all stages, including those after the wanted ones, as far as they can be found.

        The status of a stage that needs a split without pictures cannot be found, nor can those after it.
        """
        statuses = dict(self._statuses)
        with contextlib.suppress(AttendError):
            for stage in self.pipeline.stages[len(self.stages) :]:
                statuses[stage] = self._status_of(stage, stage.inputs(), statuses)
        return list(statuses.values())

    def with_running(self) -> list[Status]:
        """Return the statuses, with the state `running` for the stages that another process is working on."""
        return [_as_now(status, self.workspace) for status in self.statuses]

    def verify(self) -> Plan:
        """Find the statuses by checking every digest, and return this plan.

        The files of damaged artifacts become suspect, so that the next run finds the damage and produces them again.
        """
        read, self.read = self.read, "all"
        try:
            self.update()
        finally:
            self.read = read
        for status in self.statuses:
            artifact = self.workspace.find(status.stage.kind, status.key) if status.key else None
            if status.state == "damaged" and artifact is not None:
                self.workspace.suspect(path for path, _ in artifact.files(self.workspace.root))
        return self

    def _status_of(self, stage: Stage, inputs: Mapping[str, str], before: Mapping[Stage, Status]) -> Status:
        """Return the status of a stage. before: the statuses of the stages before it, in the pipeline's order."""
        last_key = self.workspace.last_run(self.pipeline.run).done.get(stage.name)
        last = self.workspace.find(stage.kind, last_key) if last_key else None
        config = {name: section.key_part() for name, section in stage.sections().items()}
        fresh = artifacts_of(before.values())
        upstream = _upstream_digests(stage, fresh, self.pipeline.run)
        # In the pipeline's order, not the order in which the stage lists its needs.
        not_fresh = [earlier.name for earlier in before if earlier in stage.upstream() and earlier not in fresh]
        if not_fresh:
            must_run = f"{listed(not_fresh)} must run first"
            if last is None:
                return Status(stage, "missing", [must_run])
            changed = differences({"config": last.ledger.parts["config"]}, {"config": config})
            return Status(stage, "stale", [*changed, must_run])

        parts: KeyParts = {
            "stage": stage.kind,
            "version": stage.version,
            "config": config,
            "upstream": upstream,
            "inputs": dict(inputs),
        }
        key = digest_of(parts)
        return _status_by_key(Status(stage, "missing", [], key, parts), self.workspace, last, self.read)


def artifacts_of(statuses: Iterable[Status]) -> dict[Stage, Artifact]:
    """Return the artifacts of the stages that are fresh."""
    return {status.stage: status.artifact for status in statuses if status.artifact is not None}


def by_kind(artifacts: Mapping[Stage, Artifact]) -> dict[str, Artifact]:
    """Return artifacts by the kind of their stage; if two stages share a kind, the later one's."""
    return {stage.kind: artifact for stage, artifact in artifacts.items()}


def _as_now(status: Status, workspace: Workspace) -> Status:
    """Return a status, with the state `running` and the progress if another process is working on the stage."""
    kind, key = status.stage.kind, status.key
    if key is None or status.fresh or not workspace.is_locked(lock_name(kind, key)):
        return status
    return replace(status, state="running", why=[_progress_of(workspace.partial(kind, key), "just started")])


def _upstream_digests(stage: Stage, artifacts: Mapping[Stage, Artifact], run: str) -> dict[str, str]:
    """Return the digest, by label, of each product that a stage needs and whose stage is fresh.

    artifacts: of the fresh stages. run: the name of the run, for messages. Raises AttendError if a fresh stage lacks
    the product, such as a split without pictures: running that stage again would not produce it.
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


def _status_by_key(status: Status, workspace: Workspace, last: Artifact | None, read: Read) -> Status:
    """Return the status completed with the state of a stage whose key is known, and why.

    last: the artifact of the stage's last run, which may have another key; None if it has not run.
    """
    stage, key = status.stage, str(status.key)
    artifact = workspace.find(stage.kind, key)
    if artifact is not None:
        to_read = _files_to_read(artifact, workspace, read)
        damage = workspace.damage(artifact, to_read) or stage.external_damage(artifact, workspace)
        if damage:
            return replace(status, state="damaged", why=[damage])
        counts = {name: value for name, value in artifact.ledger.counts.items() if isinstance(value, int)}
        why = stage.describe(counts) or "nothing changed"
        return replace(status, state="fresh", why=[why], artifact=artifact)
    cut_off = workspace.ledger_damage(stage.kind, key)
    if cut_off:
        return replace(status, state="damaged", why=[cut_off])
    partial = workspace.partial(stage.kind, key)
    if partial.exists():
        return replace(status, state="interrupted", why=[_progress_of(partial, "cut off before its first checkpoint")])
    if last is None:
        return replace(status, why=["has not run yet"])
    return replace(status, state="stale", why=stage.changes(last, status.parts) if status.parts else [])


def _files_to_read(artifact: Artifact, workspace: Workspace, read: Read) -> set[Path]:
    """Return the files of an artifact whose digests must be checked."""
    if read == "none":
        return set()
    files = {path for path, _ in artifact.files(workspace.root)}
    return files if read == "all" else files & workspace.suspects()


def _progress_of(partial: Path, otherwise: str) -> str:
    """Return the progress of a stage, in words; `otherwise` if it has reported none."""
    try:
        return (partial / PROGRESS).read_text(encoding="utf-8").strip()
    except OSError:
        return otherwise
