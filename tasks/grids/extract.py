"""Stage `extract`: photographs -> grids, once a picture.

In: the manifest's pictures, and the backbone's weights or those that `tune` made. Out: shards in the grid store of
this backbone's identity, for the pictures that it does not hold yet; in the artifact index.parquet (which shard and row
each picture's grid is in), failed.parquet (photographs that cannot be decoded) and identity.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tasks.common.section import Section
from tasks.config.schema import Config, GridsConfig
from tasks.data.ingest import Manifest
from tasks.datasets.base import DatasetOptions
from tasks.grids.identity import EXTRACT_VERSION, Identity, identity_of
from tasks.grids.weights import weight_digests
from tasks.pipeline.ledger import Artifact, Outcome, digest_of
from tasks.pipeline.stage import Hooks, Product, Stage, Work


class Backbone(Stage):
    """A stage that makes a backbone: what `tune` is to `extract`."""

    @property
    def backbone(self) -> Product:
        """The weights of the whole backbone."""
        return Product(self, "backbone")


@dataclass(frozen=True, eq=False)
class FailedAmong(Product):
    """Which photographs of some splits have no grid: others concern no stage that reads these splits."""

    manifest: Manifest
    splits: tuple[str, ...]

    def digest(self, artifacts: Mapping[Stage, Artifact]) -> str | None:
        whole = super().digest(artifacts)
        if whole == digest_of([]):  # none in any split
            return whole
        from tasks.grids.failures import failed_among

        return failed_among(artifacts[self.stage], artifacts[self.manifest], self.splits)


@dataclass(frozen=True, eq=False, kw_only=True)
class Grids(Stage):
    """Photographs -> grids, once a picture."""

    kind: ClassVar[str] = "extract"
    version: ClassVar[int] = EXTRACT_VERSION

    grids: GridsConfig
    data: DatasetOptions  # where the photographs are; not in the key
    manifest: Manifest
    tuned: Backbone | None = None  # makes the backbone; None for `grids.weights` as they are

    @property
    def identity(self) -> Product:
        """What made the grids: backbone, weights and how photographs are encoded."""
        return Product(self, "identity")

    def failed(self, *splits: str) -> FailedAmong:
        """Which photographs of these splits have no grid."""
        return FailedAmong(self, "failed", self.manifest, splits)

    def sections(self) -> dict[str, Section]:
        return {"grids": self.grids}

    def needs(self) -> tuple[Product, ...]:
        return (self.manifest.pictures, *([] if self.tuned is None else [self.tuned.backbone]))

    def inputs(self) -> dict[str, str]:
        return weight_digests(self.grids, self.machine)

    def identity_in(self, work: Work) -> Identity:
        """Return the identity of the grids, by the backbone as it was given or, where it was tuned, as it became."""
        if self.tuned is not None:
            return identity_of(self.grids, work.artifacts[self.tuned].products["backbone"])
        return identity_of(self.grids, work.inputs["weights"])

    def run(self, work: Work, hooks: Hooks) -> Outcome:
        from tasks.data.manifest import GENERATED, files_of
        from tasks.grids.index import bring_up_to_date

        manifest = work.artifacts[self.manifest].path
        files = files_of(manifest, self.data.image_folder(manifest / GENERATED))
        tuned = None if self.tuned is None else work.artifacts[self.tuned]
        return bring_up_to_date(files, self.identity_in(work), self.grids, self.machine, tuned, work.out, hooks)


def extract(config: Config, manifest: Manifest, tuned: Backbone | None = None, suffix: str = "") -> Grids:
    """Return the stage that extracts the grids of a manifest's pictures."""
    return Grids(
        machine=config.machine, suffix=suffix, grids=config.grids, data=config.data, manifest=manifest, tuned=tuned
    )
