"""Stage `tune`: photographs, captions and a decoder trained on frozen grids -> a fine-tuned backbone.

In: the photographs of the train and dev splits that have a grid, their captions, and the decoder. The decoder and the
backbone's later blocks are trained further. Out: backbone.safetensors (the whole backbone, with the weights that are
best on dev), the decoder as `train` writes it, and history.parquet. The tuned backbone has a new identity: grids are
extracted with it once, and the decoder tuned with it captions them. A killed run resumes as for `train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.common.section import Section
from tasks.config.training import TuningConfig
from tasks.datasets.base import DatasetOptions
from tasks.grids.extract import BackboneStage
from tasks.grids.weights import weight_digests
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Product, Work
from tasks.training.train import DecoderHooks, DecoderStage, Train


@dataclass(frozen=True, eq=False, kw_only=True)
class Tune(BackboneStage):
    """The stage `tune`: photographs and captions -> a fine-tuned backbone (only if `tuning` is set)."""

    kind: ClassVar[str] = "tune"
    version: ClassVar[int] = 1
    memory_setting: ClassVar[str] = "tuning.batch_pictures (machine.accumulate trains a batch in parts)"
    resumable: ClassVar[bool] = True
    distributed: ClassVar[bool] = True

    tuning: TuningConfig
    data: DatasetOptions  # only locates the photographs, so it is not part of the key
    frozen: Train  # trains the decoder that tuning starts from

    @property
    def decoder(self) -> Product:
        """Return the product `decoder`: the weights and the shape of the tuned decoder."""
        return Product(self, "decoder")

    def sections(self) -> dict[str, Section]:
        return {"grids": self.frozen.grids.grids, "tuning": self.tuning}

    def needs(self) -> tuple[Product, ...]:
        return (*self.frozen.fitted_to(), self.frozen.weights)

    def inputs(self) -> dict[str, str]:
        return weight_digests(self.frozen.grids.grids, self.machine)

    def run(self, work: Work, hooks: DecoderHooks | None = None) -> Outcome:
        from tasks.training.fine_tune_backbone import fine_tune_backbone

        trained, sources = work.artifacts[self.frozen], self.frozen.sources(work)
        return fine_tune_backbone(
            self.frozen.grids.grids, self.tuning, self.machine, trained, sources, self.data, work.out
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TunedDecoder(DecoderStage):
    """The decoder that was tuned with the backbone, in the format of `train`, for the tuned backbone's grids."""

    kind: ClassVar[str] = "train"
    version: ClassVar[int] = 3

    tuned: Tune

    def sections(self) -> dict[str, Section]:
        return {"decoder": self.decoder}

    def needs(self) -> tuple[Product, ...]:
        return (self.tuned.decoder, self.grids.identity, self.captions.vocabulary)

    def run(self, work: Work, hooks: DecoderHooks | None = None) -> Outcome:
        from tasks.training.fit_decoder import adopt_decoder

        return adopt_decoder(work.artifacts[self.tuned], work.out, (hooks or DecoderHooks()).epoch_done)
