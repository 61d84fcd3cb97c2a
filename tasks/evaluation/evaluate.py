"""Stage `evaluate`: the held-out pictures -> captions -> scores.

In: the grids and captions of `evaluation.split`, the trained decoder, and the memory of its training pictures. Out:
predictions.parquet, the captions, decoded free-running; scores.json, the scores of the captions read back from that
file, and how neighbours rank captions; and confidence.npz, the confidence of captions. The ranking and the confidence
are fitted to captions of dev.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.common.section import Section
from tasks.config.stages import EvaluationConfig
from tasks.neighbours.remember import Remember
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Product, Stage, Work
from tasks.training.train import DecoderStage


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluate(Stage):
    """The stage `evaluate`: held-out pictures -> captions -> scores."""

    kind: ClassVar[str] = "evaluate"
    version: ClassVar[int] = 11
    distributed: ClassVar[bool] = True
    memory_setting: ClassVar[str] = "machine.decode_batch"

    evaluation: EvaluationConfig
    decoder: DecoderStage
    memory: Remember

    @property
    def scores(self) -> Product:
        """Return the product `scores`: the scores, their intervals and their signature."""
        return Product(self, "scores")

    @property
    def decoding(self) -> Product:
        """Return the product `decoding`: the decoding settings."""
        return Product(self, "decoding")

    def sections(self) -> dict[str, Section]:
        return {"evaluation": self.evaluation}

    def needs(self) -> tuple[Product, ...]:
        split, captions = self.evaluation.split, self.decoder.captions
        return (
            self.decoder.weights,
            self.memory.pictures,
            self.decoder.grids.identity,
            self.decoder.grids.failed(*dict.fromkeys((split, "dev"))),
            captions.vocabulary,
            captions.manifest.split(split, "evaluation.split"),
            captions.manifest.split("train"),
            *([] if split == "dev" else [captions.manifest.split("dev")]),
        )

    def run(self, work: Work, hooks: Any = None) -> Outcome:
        from tasks.evaluation.evaluate_decoder import evaluate_decoder

        trained, remembered = work.artifacts[self.decoder], work.artifacts[self.memory]
        sources = self.decoder.sources(work)
        return evaluate_decoder(self.evaluation, self.machine, trained, remembered, sources, work.out)
