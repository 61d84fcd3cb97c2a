"""Stage `extract`: encode each photograph into a grid, once.

In: the manifest's pictures, and the backbone's weights or those from `tune`. Out: shards in the grid store of this
backbone's identity, for the pictures that it does not hold yet; in the artifact, index.parquet (shard and row of each
picture's grid), failed.parquet (photographs that cannot be decoded) and identity.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.common.section import Section
from tasks.config.stages import GridsConfig
from tasks.data.ingest import Ingest
from tasks.datasets.base import DatasetOptions
from tasks.grids.identity import EXTRACT_VERSION, identity_of
from tasks.grids.weights import weight_digests
from tasks.pipeline.ledger import Artifact, Outcome, digest_of
from tasks.pipeline.stage import Product, Stage, Work


class BackboneStage(Stage):
    """A stage that produces a backbone; `extract` knows the stage `tune` only by this base class."""

    @property
    def backbone(self) -> Product:
        """Return the product with the weights of the whole backbone."""
        return Product(self, "backbone")


@dataclass(frozen=True, eq=False)
class FailedInSplits(Product):
    """The photographs of some splits that have no grid. A stage that reads these splits depends on no others."""

    manifest: Ingest
    splits: tuple[str, ...]

    def digest(self, artifacts: Mapping[Stage, Artifact]) -> str | None:
        """Return the digest of these photographs: `photographs.digest_of_failed_in_splits`."""
        in_all_splits = super().digest(artifacts)
        if in_all_splits == digest_of([]):  # no failures, so no tables need be read
            return in_all_splits
        from tasks.grids.photographs import digest_of_failed_in_splits

        return digest_of_failed_in_splits(artifacts[self.stage], artifacts[self.manifest], self.splits)


@dataclass(frozen=True, eq=False, kw_only=True)
class Extract(Stage):
    """The stage `extract`: photographs -> grids, one per picture."""

    kind: ClassVar[str] = "extract"
    version: ClassVar[int] = EXTRACT_VERSION
    memory_setting: ClassVar[str] = "machine.extract_batch"

    grids: GridsConfig
    data: DatasetOptions  # only locates the photographs, so it is not part of the key
    manifest: Ingest
    tuned: BackboneStage | None = None  # the stage that produces the backbone; None: `grids.weights` unchanged

    @property
    def identity(self) -> Product:
        """Return the product that identifies the grids: backbone, weights and how photographs are encoded."""
        return Product(self, "identity")

    def failed(self, *splits: str) -> FailedInSplits:
        """Return the product of the photographs of these splits that have no grid."""
        return FailedInSplits(self, "failed", self.manifest, splits)

    def sections(self) -> dict[str, Section]:
        return {"grids": self.grids}

    def needs(self) -> tuple[Product, ...]:
        return (self.manifest.pictures,) if self.tuned is None else (self.manifest.pictures, self.tuned.backbone)

    def inputs(self) -> dict[str, str]:
        return weight_digests(self.grids, self.machine)

    def run(self, work: Work, hooks: Any = None) -> Outcome:
        from tasks.data.manifest import files_by_digest
        from tasks.grids.extraction import ExtractHooks, bring_up_to_date

        manifest = work.artifacts[self.manifest].path
        files = files_by_digest(manifest, self.data)
        tuned = None if self.tuned is None else work.artifacts[self.tuned]
        identity = identity_of(self.grids, work.inputs["weights"] if tuned is None else tuned.products["backbone"])
        return bring_up_to_date(files, identity, self.grids, self.machine, tuned, work.out, hooks or ExtractHooks())
