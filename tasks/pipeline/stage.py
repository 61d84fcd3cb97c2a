"""Stages as values: what each makes, what its key is made of, and how it runs.

flows/pipeline.py makes the stages of a config, and hands earlier ones to later ones: that is the pipeline's graph.
Nothing runs while it is made. A stage gets its config sections and the stages before it as fields, and can depend on
nothing else. Stage files import nothing heavy at the top, so that `attend status` answers at once.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tasks.common.section import Section
from tasks.config.schema import Config, MachineConfig
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.pipeline.workspace import Workspace

PROGRESS = ".progress.txt"  # in a stage's partial folder: how far it came, in words

# (jobs, called with each result): runs the jobs of `extract` elsewhere; see grids/shard_jobs.py
ShardExecutor = Callable[[Sequence[Any], Callable[[Any], None]], None]


def kind_of(name: str) -> str:
    """Return the kind of the stage so named: what comes before a hyphen, which no kind has."""
    return name.partition("-")[0]


def _ignore(*_: Any) -> None:
    """Take a report that nobody asked for."""


@dataclass(frozen=True)
class Hooks:
    """Whom a stage reports to while it runs, and who helps it.

    shards_done: called with (done, total) pictures after each shard of grids. epoch_done: called with each row of a
    training history as it is made; a resumed stage calls it for earlier rows too. executor: makes shards of grids
    elsewhere; None for this process.
    """

    shards_done: Callable[[int, int], None] = _ignore
    epoch_done: Callable[[dict[str, float]], None] = _ignore
    executor: ShardExecutor | None = None


@dataclass(frozen=True, eq=False)
class Product:
    """Something that a stage makes. Its content digest enters the keys of the stages that use it."""

    stage: Stage
    name: str

    @property
    def label(self) -> str:
        """Return how keys and messages name it: `extract.identity`."""
        return f"{self.stage.kind}.{self.name}"

    def digest(self, artifacts: Mapping[Stage, Artifact]) -> str | None:
        """Return its content digest; None where its stage's artifact does not have it."""
        return artifacts[self.stage].products.get(self.name)

    def missing(self, artifact: Artifact) -> str:
        """Return why an artifact of the stage does not have it, and what to do, as part of a sentence."""
        return f"{self.label} is missing in {artifact.path}: remove that folder and run again"


@dataclass(frozen=True)
class Work:
    """What a running stage gets beside its fields.

    key: the stage's. artifacts: of all stages before it, fresh. inputs: digests of what comes from outside, as they
    are in the key. out: the folder to write to; empty, or as a killed run left it where the stage is resumable.
    """

    key: str
    artifacts: Mapping[Stage, Artifact]
    inputs: Mapping[str, str]
    out: Path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a folder for the length of the block, where `tempfile` puts its files meanwhile too.

        It is in the stage's own folder, so that a killed run's gigabytes are removed with that.
        """
        folder, before = self.out / ".scratch", tempfile.tempdir
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        tempfile.tempdir = str(folder)
        try:
            yield folder
        finally:
            tempfile.tempdir = before
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage(ABC):
    """One stage of a config's pipeline.

    kind: names its folder of artifacts and its part in keys. version: raised by hand when what the stage computes
    changes. resumable: what a killed run left in its folder is kept for the next. distributed: all processes that
    torchrun started take part (see distributed.py). machine: never part of the key. suffix: of the name, where a
    pipeline has two stages of a kind.
    """

    kind: ClassVar[str]
    version: ClassVar[int]
    resumable: ClassVar[bool] = False
    distributed: ClassVar[bool] = False

    machine: MachineConfig
    suffix: str = ""

    @property
    def name(self) -> str:
        """Return what commands and reports call it: unique in a pipeline."""
        return self.kind + self.suffix

    @abstractmethod
    def sections(self) -> dict[str, Section]:
        """Return the config sections that are in its key, by name."""

    @abstractmethod
    def needs(self) -> tuple[Product, ...]:
        """Return the products of other stages that are in its key."""

    def inputs(self) -> dict[str, str]:
        """Return digests of what comes from outside the workspace, for the key."""
        return {}

    def lost(self, artifact: Artifact, workspace: Workspace) -> str | None:
        """Return what is wrong with what the stage made outside the workspace; None where nothing is."""
        return None

    @abstractmethod
    def run(self, work: Work, hooks: Hooks) -> Outcome:
        """Do the stage's work: write its files to `work.out`, return what it made."""

    def before(self) -> list[Stage]:
        """Return all stages that it depends on, each after those that it depends on itself."""
        found: list[Stage] = []
        for product in self.needs():
            for stage in (*product.stage.before(), product.stage):
                if stage not in found:
                    found.append(stage)
        return found

    def upstream(self) -> list[Stage]:
        """Return the stages whose products it needs itself."""
        return list(dict.fromkeys(product.stage for product in self.needs()))


@dataclass(frozen=True)
class Pipeline:
    """The stages of a config in the order in which they run.

    run: the name under which the workspace remembers what was done last. root: the workspace's folder.
    """

    run: str
    root: Path
    stages: tuple[Stage, ...]

    @classmethod
    def ending_in(cls, last: Stage, config: Config) -> Pipeline:
        """Return the pipeline of a config that ends in a stage, with all that this depends on."""
        return cls(config.name, config.workspace, (*last.before(), last))

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.root)

    @property
    def last(self) -> Stage:
        return self.stages[-1]

    def names(self) -> list[str]:
        return [stage.name for stage in self.stages]
