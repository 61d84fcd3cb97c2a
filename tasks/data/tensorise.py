"""Stage `tensorise`: captions -> vocabulary and token ids.

In: the captions of all splits, of `ingest`. Out: vocabulary.json, built from the train split; captions.parquet, the
captions as token ids; document_frequencies.parquet, what CIDEr-D weighs n-grams by (see captions.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.common.section import Section
from tasks.config.schema import CaptionsConfig, Config
from tasks.data.ingest import Manifest
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Hooks, Product, Stage, Work


@dataclass(frozen=True, eq=False, kw_only=True)
class Captions(Stage):
    """Captions -> vocabulary and token ids."""

    kind: ClassVar[str] = "tensorise"
    version: ClassVar[int] = 2

    captions: CaptionsConfig
    manifest: Manifest

    @property
    def vocabulary(self) -> Product:
        """The words that are known, and how texts are cut into them."""
        return Product(self, "vocabulary")

    @property
    def train(self) -> Product:
        """The token ids of the train split."""
        return Product(self, "train")

    @property
    def frequencies(self) -> Product:
        """In how many pictures' captions of the train split each n-gram occurs."""
        return Product(self, "frequencies")

    def sections(self) -> dict[str, Section]:
        return {"captions": self.captions}

    def needs(self) -> tuple[Product, ...]:
        return (self.manifest.captions,)

    def run(self, work: Work, hooks: Hooks) -> Outcome:
        from tasks.data.captions import write_captions

        return write_captions(self.captions, work.artifacts[self.manifest], work.out)


def tensorise(config: Config, manifest: Manifest) -> Captions:
    """Return the stage that turns a manifest's captions into token ids."""
    return Captions(machine=config.machine, captions=config.captions, manifest=manifest)
