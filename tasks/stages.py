"""The stages in order, and what each depends on.

There are six. `views` comes after `extract`, and `self_critical` after `train`, where there is such a section. Where
the backbone is tuned, extraction and training on the frozen grids come first, then `tune` makes a backbone of a new
identity, and both come again with that.

A stage function gets the config sections that are in its key, the sections that only say where things lie,
the upstream artifacts, and an empty folder to write to. It cannot depend on anything else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tasks.config import Config
from tasks.errors import AttendError, nearest


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
        version=4,
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


def up_to(config: Config, name: str) -> tuple[Stage, ...]:
    """The rows up to and including the one so named; AttendError for a name that none has."""
    stages = stages_of(config)
    names = [stage.name for stage in stages]
    if name not in names:
        raise AttendError(f"no such stage {name!r}{nearest(name, names)}")
    return stages[: names.index(name) + 1]


def function_at(place: str) -> Callable[..., Any]:
    """What `module:name` names, imported now."""
    module, name = place.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
