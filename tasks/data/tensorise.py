"""Stage `tensorise`: captions -> vocabulary and token ids.

In: the captions of all splits, from `ingest`. Out: vocabulary.json, built from the train split; captions.parquet, the
captions as token ids; document_frequencies.parquet, with which CIDEr-D weights n-grams (see caption_files.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.common.files import digest_of_file
from tasks.common.section import Section
from tasks.config.stages import CaptionsConfig
from tasks.config.starting_point import VOCABULARY, StartingPoint
from tasks.data.ingest import Ingest
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Product, Stage, Work


@dataclass(frozen=True, eq=False, kw_only=True)
class Tensorise(Stage):
    """The stage that turns captions into a vocabulary and token ids."""

    kind: ClassVar[str] = "tensorise"
    version: ClassVar[int] = 3

    captions: CaptionsConfig
    manifest: Ingest
    start: StartingPoint | None = None  # its vocabulary is joined if `captions.vocabulary` is `joined`

    @property
    def vocabulary(self) -> Product:
        """Return the product that consists of the known words and the settings for splitting texts into them."""
        return Product(self, "vocabulary")

    @property
    def train(self) -> Product:
        """Return the product that consists of the token ids of the train split."""
        return Product(self, "train")

    @property
    def frequencies(self) -> Product:
        """Return the product that gives, for each n-gram, the number of train pictures in whose captions it occurs."""
        return Product(self, "frequencies")

    def sections(self) -> dict[str, Section]:
        return {"captions": self.captions}

    def needs(self) -> tuple[Product, ...]:
        words = (self.manifest.given_words,) if self.captions.vocabulary == "given" else ()
        return (self.manifest.captions, *words)

    def inputs(self) -> dict[str, str]:
        if self.captions.vocabulary != "joined" or self.start is None:
            return {}
        return {"vocabulary of start_from": digest_of_file(self.start.folder / VOCABULARY)}

    def run(self, work: Work, hooks: Any = None) -> Outcome:
        from tasks.data.caption_files import read_vocabulary, write_captions

        joined = [] if self.start is None else read_vocabulary(self.start.folder).words
        return write_captions(self.captions, work.artifacts[self.manifest], work.out, joined)
