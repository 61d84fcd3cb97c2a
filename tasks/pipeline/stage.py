"""Stages as values: each has its products, the parts of its key, and a function that runs it.

flows/pipeline.py creates the stages of a config and passes earlier ones to later ones, which forms the pipeline's
graph. Nothing runs while the graph is built. A stage has its config sections and the stages before it as fields, and
can depend on nothing else. Stage files import nothing heavy at the top, so that `attend status` answers at once.
"""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tasks.common.section import Section
from tasks.common.wording import counts_in_words
from tasks.config.machine import MachineConfig
from tasks.config.schema import Config
from tasks.pipeline.ledger import Artifact, KeyParts, Outcome, differences
from tasks.pipeline.workspace import Workspace

PROGRESS = ".progress.txt"  # in a stage's partial folder: its progress, in words


def kind_of(name: str) -> str:
    """Return the kind of a stage from its name: the part before the first hyphen, as kinds have no hyphen."""
    return name.partition("-")[0]


@dataclass(frozen=True, eq=False)
class Product:
    """A named part of a stage's results. Its content digest is part of the keys of the stages that use it."""

    stage: Stage
    name: str

    @property
    def label(self) -> str:
        """Return the name of the product in keys and messages, such as `extract.identity`."""
        return f"{self.stage.kind}.{self.name}"

    def digest(self, artifacts: Mapping[Stage, Artifact]) -> str | None:
        """Return the content digest of the product; None if the artifact of its stage does not have it."""
        return artifacts[self.stage].products.get(self.name)

    def missing(self, artifact: Artifact) -> str:
        """Return why an artifact of the stage lacks the product, and the remedy, as part of a sentence."""
        return f"{self.label} is missing in {artifact.path}: remove that folder and run again"


@dataclass(frozen=True)
class Work:
    """The arguments of a running stage, besides its fields.

    key: the stage's key. artifacts: of all stages before it, fresh. inputs: digests of the inputs from outside the
    workspace, as in the key. out: the folder to write to; it is empty, unless the stage is resumable and a killed run
    left files in it.
    """

    key: str
    artifacts: Mapping[Stage, Artifact]
    inputs: Mapping[str, str]
    out: Path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty folder that is removed after the block.

        It is inside `out`, so that files left by a killed run are removed together with `out`.
        """
        folder = self.out / ".scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage(ABC):
    """A stage of a config's pipeline.

    kind: names the folder of its artifacts, and the stage in keys. version: increased by hand when the stage's results
    change. resumable: whether the files that a killed run left in the partial folder are kept for the next run.
    distributed: whether all processes started by torchrun take part (see distributed.py). memory_setting: the setting
    that takes less memory with a smaller value, if there is one. machine: never part of the key. suffix: the end of the
    name, for a pipeline that has two stages of a kind.
    """

    kind: ClassVar[str]
    version: ClassVar[int]
    resumable: ClassVar[bool] = False
    distributed: ClassVar[bool] = False
    memory_setting: ClassVar[str] = ""

    machine: MachineConfig
    suffix: str = ""

    @property
    def name(self) -> str:
        """Return the name of the stage in commands and reports, unique in a pipeline."""
        return self.kind + self.suffix

    @abstractmethod
    def sections(self) -> dict[str, Section]:
        """Return the config sections that are part of the key, by name."""

    @abstractmethod
    def needs(self) -> tuple[Product, ...]:
        """Return the products of other stages that are part of the key."""

    def inputs(self) -> dict[str, str]:
        """Return the digests of the inputs from outside the workspace, which are part of the key."""
        return {}

    def changes(self, last: Artifact, parts: KeyParts) -> list[str]:
        """Return the differences between the key of the stage's last run and `parts`, the current key, one per line."""
        return differences(last.ledger.parts, parts)

    def external_damage(self, artifact: Artifact, workspace: Workspace) -> str | None:
        """Return what is wrong with the stage's results outside the workspace; None if nothing is wrong."""
        return None

    def describe(self, counts: Mapping[str, int]) -> str:
        """Return the counts of an artifact of the stage in words."""
        return counts_in_words(dict(sorted(counts.items())))

    @abstractmethod
    def run(self, work: Work, hooks: Any = None) -> Outcome:
        """Run the stage: write its files to `work.out` and return its outcome.

        hooks: the callbacks, of the class that the stage's module defines; None for no callbacks.
        """

    def all_upstream(self) -> list[Stage]:
        """Return all stages on which this one depends, directly or indirectly, each after those on which it depends."""
        stages: list[Stage] = []
        for product in self.needs():
            for stage in (*product.stage.all_upstream(), product.stage):
                if stage not in stages:
                    stages.append(stage)
        return stages

    def upstream(self) -> list[Stage]:
        """Return the stages on which this one depends directly, through the products that it needs."""
        return list(dict.fromkeys(product.stage for product in self.needs()))


@dataclass(frozen=True)
class Pipeline:
    """The stages of a config, in the order of running.

    run: the name under which the workspace remembers the keys of the last run. root: the workspace's folder.
    """

    run: str
    root: Path
    stages: tuple[Stage, ...]

    @classmethod
    def ending_in(cls, last: Stage, config: Config) -> Pipeline:
        """Return the pipeline of a config that consists of the stage `last` and all stages on which it depends."""
        return cls(config.name, config.workspace, (*last.all_upstream(), last))

    @property
    def last(self) -> Stage:
        return self.stages[-1]

    def names(self) -> list[str]:
        return [stage.name for stage in self.stages]
