"""Stage `ingest`: a data set -> the manifest, one row for each picture.

In: annotation files and photographs, read by the data set's adapter. Out: manifest.parquet (see manifest.py), and the
pictures themselves if the adapter generates or unpacks them. The products are all pictures, and the captioned pictures
of each split and of all splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.common.section import Section
from tasks.common.wording import counts_in_words
from tasks.data.inputs import digests_of
from tasks.datasets.base import SPLITS, DatasetOptions
from tasks.pipeline.ledger import Artifact, KeyParts, Outcome
from tasks.pipeline.stage import Product, Stage, Work


@dataclass(frozen=True, eq=False)
class Split(Product):
    """The product that consists of the captioned pictures of one split of the data set.

    setting: the config field that chose the split, such as `evaluation.split`; empty if none did.
    """

    setting: str = ""

    def missing(self, artifact: Artifact) -> str:
        available = [name for name in SPLITS if name in artifact.products]
        advice = f": set {self.setting}={available[-1]}" if self.setting and available else ""
        return f"the split {self.name!r} of the data set has no pictures (available: {', '.join(available)}){advice}"


@dataclass(frozen=True, eq=False)
class GivenWords(Product):
    """The product that consists of the words of the data set's own vocabulary."""

    def missing(self, artifact: Artifact) -> str:
        return (
            "the data set has no vocabulary of its own: set captions.vocabulary=train and captions.tokeniser=treebank"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Ingest(Stage):
    """The stage that turns a data set into its manifest."""

    kind: ClassVar[str] = "ingest"
    version: ClassVar[int] = 3

    data: DatasetOptions

    @property
    def pictures(self) -> Product:
        """Return the product that consists of the contents of all pictures, without their captions."""
        return Product(self, "pictures")

    @property
    def captions(self) -> Product:
        """Return the product that consists of the captioned pictures of all splits."""
        return Product(self, "splits")

    @property
    def given_words(self) -> GivenWords:
        """Return the product that consists of the words of the data set's own vocabulary."""
        return GivenWords(self, "words")

    def split(self, name: str, setting: str = "") -> Split:
        """Return the product that consists of the captioned pictures of one split. setting: see `Split`."""
        return Split(self, name, setting)

    def sections(self) -> dict[str, Section]:
        return {"data": self.data}

    def needs(self) -> tuple[Product, ...]:
        return ()

    def inputs(self) -> dict[str, str]:
        return digests_of(self.data, self.machine)

    def changes(self, last: Artifact, parts: KeyParts) -> list[str]:
        from tasks.data.changes import describe_changes

        inputs = last.ledger.parts["inputs"]
        others = super().changes(last, {**parts, "inputs": inputs})
        return others if parts["inputs"] == inputs else [describe_changes(last.path, self.data, self.machine), *others]

    def describe(self, counts: Mapping[str, int]) -> str:
        names = [name for name in ("pictures", *SPLITS, "left out", "captions") if name in counts]
        return counts_in_words({name: counts[name] for name in names})

    def run(self, work: Work, hooks: Any = None) -> Outcome:
        from tasks.data.manifest import write_manifest

        return write_manifest(self.data, self.machine, work.inputs, work.out)
