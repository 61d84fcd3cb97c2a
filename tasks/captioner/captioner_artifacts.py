"""The artifacts that a captioner is built from, by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.evaluation.evaluate import Evaluate
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.stage import Stage
from tasks.training.self_critical import SelfCritical


@dataclass(frozen=True)
class CaptionerArtifacts:
    """The artifacts of the stages before `register`.

    trained: the decoder trained by teacher forcing. decoder: the decoder that is evaluated and registered: `trained`,
    or the result of self-critical training. tuned: None if the pipeline has no such stage.
    """

    manifest: Artifact
    captions: Artifact
    grids: Artifact
    trained: Artifact
    decoder: Artifact
    scores: Artifact
    memory: Artifact
    tuned: Artifact | None = None

    @property
    def self_critical(self) -> Artifact | None:
        """Return the artifact of self-critical training; None if the pipeline has no such stage."""
        return None if self.decoder is self.trained else self.decoder

    @classmethod
    def of(cls, scores: Evaluate, artifacts: Mapping[Stage, Artifact]) -> CaptionerArtifacts:
        """Return the artifacts of an `evaluate` stage and of the stages that it depends on."""
        decoder = scores.decoder
        trained = decoder.trained if isinstance(decoder, SelfCritical) else decoder
        return cls(
            manifest=artifacts[decoder.captions.manifest],
            captions=artifacts[decoder.captions],
            grids=artifacts[decoder.grids],
            trained=artifacts[trained],
            decoder=artifacts[decoder],
            scores=artifacts[scores],
            memory=artifacts[scores.memory],
            tuned=None if decoder.grids.tuned is None else artifacts[decoder.grids.tuned],
        )
