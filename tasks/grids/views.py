"""Stage `views`: encode cropped and mirrored views of the training pictures into grids, each view once.

In: the train split's pictures that have a grid. Out: shards in a separate grid store, with the identity of these views,
and the same files as `extract` writes. Adding views later leaves the earlier ones unchanged (see view_crops.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tasks.common.section import Section
from tasks.config.schema import Config
from tasks.config.stages import GridsConfig, ViewsConfig
from tasks.datasets.base import DatasetOptions
from tasks.grids.extract import Grids
from tasks.grids.weights import weight_digests
from tasks.pipeline.ledger import Outcome, digest_of
from tasks.pipeline.stage import Hooks, Product, Stage, Work


@dataclass(frozen=True, eq=False, kw_only=True)
class Views(Stage):
    """The stage `views`: cropped and mirrored training photographs -> grids, one per view."""

    kind: ClassVar[str] = "views"
    version: ClassVar[int] = 1

    grids: GridsConfig
    views: ViewsConfig
    data: DatasetOptions  # only locates the photographs, so it is not part of the key
    whole: Grids  # the stage that extracts the grids of the whole pictures

    @property
    def shown(self) -> Product:
        """Return the product that says which parts the views show, and how many views each picture has."""
        return Product(self, "views")

    def sections(self) -> dict[str, Section]:
        return {"grids": self.grids, "views": self.views}

    def needs(self) -> tuple[Product, ...]:
        whole = self.whole
        return (whole.manifest.split("train"), whole.identity, whole.failed("train"), *whole.tuned_backbone)

    def inputs(self) -> dict[str, str]:
        return weight_digests(self.grids, self.machine)

    def run(self, work: Work, hooks: Hooks) -> Outcome:
        from tasks.data.manifest import files_by_digest, read_pictures
        from tasks.grids.extraction import bring_up_to_date
        from tasks.grids.index import indexed_digests
        from tasks.grids.view_crops import names_of, view_pixels

        manifest = work.artifacts[self.whole.manifest].path
        files = files_by_digest(manifest, self.data)
        readable = set(indexed_digests(work.artifacts[self.whole]))
        digests = sorted({picture.digest for picture in read_pictures(manifest, "train")} & readable)
        wanted = {name: files[digest] for digest in digests for name in names_of(digest, self.views)}
        mirrored = "odd ones mirrored" if self.views.flip else "none mirrored"
        view = f"crop {self.views.crop}, {mirrored}, seed {self.views.seed}, version {self.version}"
        identity = replace(self.whole.identity_in(work), view=view)
        tuned = self.whole.tuned_in(work)
        outcome = bring_up_to_date(
            wanted, identity, self.grids, self.machine, tuned, work.out, hooks, partial(view_pixels, views=self.views)
        )
        return replace(outcome, products={"views": digest_of([outcome.products["grids"], self.views.number])})


def extract_views(config: Config, views: ViewsConfig, whole: Grids) -> Views:
    """Return the stage that extracts views of the training pictures whose whole grids another stage extracts."""
    return Views(
        machine=config.machine, suffix=whole.suffix, grids=config.grids, views=views, data=config.data, whole=whole
    )
