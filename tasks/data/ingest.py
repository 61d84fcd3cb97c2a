"""Stage `ingest`: a data set -> the manifest, one row a picture.

In: annotation files and photographs, read by the data set's adapter. Out: manifest.parquet (see manifest.py), and the
pictures themselves where the adapter generates or unpacks them. Its products are the pictures, and the captioned
pictures of each split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.common.section import Section
from tasks.config.schema import Config
from tasks.data.sources import digests_of
from tasks.datasets.base import DatasetOptions
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.pipeline.stage import Hooks, Product, Stage, Work


@dataclass(frozen=True, eq=False)
class Split(Product):
    """The captioned pictures of one split of the data set. setting: of the config, that chose the split, if one did."""

    setting: str = ""

    def missing(self, artifact: Artifact) -> str:
        there = [name for name in ("train", "dev", "test") if name in artifact.products]
        choose = f": set {self.setting}={there[-1]}" if self.setting and there else ""
        return f"the split {self.name!r} of the data set has no picture (there are: {', '.join(there)}){choose}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Manifest(Stage):
    """Data set -> manifest."""

    kind: ClassVar[str] = "ingest"
    version: ClassVar[int] = 1

    data: DatasetOptions

    @property
    def pictures(self) -> Product:
        """The content digests of all pictures, whatever their captions."""
        return Product(self, "pictures")

    @property
    def captions(self) -> Product:
        """The captioned pictures of all splits."""
        return Product(self, "splits")

    def split(self, name: str, setting: str = "") -> Split:
        """The captioned pictures of one split."""
        return Split(self, name, setting)

    def sections(self) -> dict[str, Section]:
        return {"data": self.data}

    def needs(self) -> tuple[Product, ...]:
        return ()

    def inputs(self) -> dict[str, str]:
        return digests_of(self.data, self.machine)

    def run(self, work: Work, hooks: Hooks) -> Outcome:
        from tasks.data.manifest import write_manifest

        return write_manifest(self.data, self.machine, work.inputs, work.out)


def ingest(config: Config) -> Manifest:
    """Return the stage that reads a config's data set."""
    return Manifest(machine=config.machine, data=config.data)
