"""The stages in order, what each depends on, and the one way to plan and to run them.

There are six. `views` comes after `extract`, and `self_critical` after `train`, where there is such a section. Where
the backbone is tuned, extraction and training on the frozen grids come first, then `tune` makes a backbone of a new
identity, and both come again with that.

A stage function gets the config sections that are in its key, the sections that only say where things lie,
the upstream artifacts, and an empty folder to write to. It cannot depend on anything else.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tasks.config import Config, nearest
from tasks.errors import AttendError, is_disk_full
from tasks.ledger import Artifact, Outcome, Stopwatch, Work, Workspace, differences, digest_of
from tasks.progress import lasting, say

Inputs = dict[str, dict[str, str]]
State = Literal["fresh", "stale", "missing", "damaged", "interrupted"]
Read = Literal["none", "suspects", "all"]  # of which files the digests are read, beside the sizes of all


@dataclass(frozen=True)
class Stage:
    """One row of the pipeline.

    kind: what its keys, artifacts and function are named by: the name, but for a stage that comes twice. version:
    raised by hand when what the stage computes changes. needs: upstream products, `stage.product`, or
    `stage.product:split,split` for what of one concerns these splits. function, inputs: `module:name`, imported only
    when used. inputs gives the digests of what comes from outside (photographs, weights). check: says what is wrong
    with what the stage made elsewhere. resumable: what a killed run left in its folder is kept for the next. shared:
    all processes that torchrun started take part (see processes.py).
    """

    name: str
    version: int
    sections: tuple[str, ...]
    needs: tuple[str, ...]
    function: str
    places: tuple[str, ...] = ("machine",)
    inputs: str | None = None
    check: str | None = None
    resumable: bool = False
    shared: bool = False
    kind: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.kind or self.name)


STAGES = (
    Stage(
        "ingest",
        version=1,
        sections=("data",),
        needs=(),
        function="tasks.manifest:ingest",
        inputs="tasks.sources:source_digests",
    ),
    Stage(
        "extract",
        version=2,
        sections=("grids",),
        needs=("ingest.pictures",),
        function="tasks.features:extract",
        places=("data", "machine"),
        inputs="tasks.weights:weight_digests",
    ),
    Stage(
        "tensorise",
        version=2,
        sections=("captions",),
        needs=("ingest.splits",),
        function="tasks.captions:tensorise",
    ),
    Stage(
        "train",
        version=2,
        sections=("decoder", "training"),
        needs=("extract.identity", "extract.failed:train,dev", "tensorise.vocabulary", "tensorise.train", "ingest.dev"),
        function="tasks.training:train",
        places=("views", "machine"),
        inputs="tasks.word_vectors:vector_digests",
        resumable=True,
        shared=True,
    ),
    Stage(
        "evaluate",
        version=3,
        sections=("evaluation",),
        needs=(
            "extract.identity",
            "extract.failed:{evaluation.split}",
            "tensorise.vocabulary",
            "train.weights",
            "ingest.{evaluation.split}",
            "ingest.train",
        ),
        function="tasks.evaluation:evaluate",
        shared=True,
    ),
    Stage(
        "register",
        version=2,
        sections=("registry",),
        needs=("extract.identity", "tensorise.vocabulary", "train.weights", "evaluate.scores", "evaluate.decoding"),
        function="tasks.registry:register",
        places=(
            "data",
            "grids",
            "views",
            "captions",
            "decoder",
            "training",
            "tuning",
            "self_critical",
            "evaluation",
            "machine",
        ),
        inputs="tasks.tracking:store_digests",
        check="tasks.tracking:lost_registration",
    ),
)
TUNE = Stage(
    "tune",
    version=1,
    sections=("grids", "tuning"),
    needs=(
        "extract.identity",
        "extract.failed:train,dev",
        "train.weights",
        "tensorise.vocabulary",
        "tensorise.train",
        "ingest.dev",
    ),
    function="tasks.fine_tuning:tune",
    places=("data", "decoder", "machine"),
    inputs="tasks.weights:weight_digests",
    resumable=True,
    shared=True,
)
VIEWS = Stage(
    "views",
    version=1,
    sections=("grids", "views"),
    needs=("ingest.train", "extract.identity", "extract.failed:train"),
    function="tasks.views:extract_views",
    places=("data", "machine"),
    inputs="tasks.weights:weight_digests",
)
SELF_CRITICAL = Stage(
    "self_critical",
    version=2,
    sections=("self_critical",),
    needs=(
        "extract.identity",
        "extract.failed:train,dev",
        "tensorise.vocabulary",
        "tensorise.train",
        "tensorise.frequencies",
        "ingest.dev",
        "train.weights",
    ),
    function="tasks.self_critical:self_critical",
    places=("decoder", "views", "machine"),
    resumable=True,
    shared=True,
)
_FROZEN = "-frozen"  # what the names of the stages before `tune` end in
PROGRESS = ".progress.txt"  # in a stage's partial folder: how far it came, in words
BY_NAME = {stage.name: stage for stage in STAGES}


def stages_of(config: Config) -> tuple[Stage, ...]:
    """The rows of this config's pipeline, in order."""
    ingest, extract, tensorise, train, evaluate, register = STAGES
    grids: tuple[Stage, ...] = (extract,)
    fitted: tuple[Stage, ...] = (train,)
    if config.self_critical is not None:
        fitted = (train, SELF_CRITICAL)
        evaluate, register = (
            _instead(stage, "train.weights", "self_critical.weights") for stage in (evaluate, register)
        )
    if config.views is not None:
        grids = (extract, VIEWS)
        fitted = tuple(_with_need(stage, "views.views") for stage in fitted)
    if config.tuning is None:
        return (ingest, *grids, tensorise, *fitted, evaluate, register)
    # Their keys are those of the same config without `tuning`, so that both share one artifact.
    frozen = [replace(stage, name=stage.name + _FROZEN, kind=stage.kind) for stage in (*grids, fitted[0])]
    tuned = [_with_need(stage, "tune.backbone") for stage in grids]
    last = _with_need(register, "tune.backbone")
    return (ingest, *frozen[:-1], tensorise, frozen[-1], TUNE, *tuned, *fitted, evaluate, last)


def _instead(stage: Stage, need: str, other: str) -> Stage:
    return replace(stage, needs=tuple(other if name == need else name for name in stage.needs))


def _with_need(stage: Stage, need: str) -> Stage:
    return replace(stage, needs=(*stage.needs, need))


def kind_of(name: str) -> str:
    """The kind of the stage so named."""
    return name.removesuffix(_FROZEN)


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
    return {stage.name: _resolve(stage.inputs)(config) for stage in up_to(config, until) if stage.inputs}


def up_to(config: Config, name: str) -> tuple[Stage, ...]:
    """The rows up to and including the one so named; AttendError for a name that none has."""
    stages = stages_of(config)
    names = [stage.name for stage in stages]
    if name not in names:
        raise AttendError(f"no such stage {name!r}{nearest(name, names)}")
    return stages[: names.index(name) + 1]


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
            damage = _resolve(stage.check)(artifact, workspace)
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
    return str(_resolve("tasks.failures:failed_among")(artifact, manifest, splits.split(",")))


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
    function = _resolve(stage.function)
    sections = {section: getattr(config, section) for section in (*stage.sections, *stage.places)}
    try:
        work = Work(status.key, upstream, status.parts["inputs"], partial)
        outcome: Outcome
        if stage.shared:
            outcome = _resolve("tasks.processes:lead")(function, work, sections, hooks)
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


def _resolve(place: str) -> Callable[..., Any]:
    module, name = place.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
