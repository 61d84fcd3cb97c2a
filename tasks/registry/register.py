"""Stage `register`: everything -> a version in MLflow's registry, champion or challenger.

In: the decoder, its scores, and what both were made from. Out: the training's run in MLflow with scores, samples and a
report; a registered version that needs nothing of this repository; and registration.json, which says which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tasks.common.section import Section
from tasks.config.schema import Config
from tasks.evaluation.evaluate import Scores
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.pipeline.stage import Hooks, Product, Stage, Work
from tasks.pipeline.workspace import Workspace
from tasks.registry.made_from import MadeFrom
from tasks.registry.params import params_of
from tasks.registry.tracking import lost_registration, store_digests


@dataclass(frozen=True, eq=False, kw_only=True)
class Registration(Stage):
    """Everything -> a version in MLflow's registry, champion or challenger."""

    kind: ClassVar[str] = "register"
    version: ClassVar[int] = 2

    config: Config  # for the run's parameters and the card; in the key is its registry section
    scores: Scores

    def sections(self) -> dict[str, Section]:
        return {"registry": self.config.registry}

    def needs(self) -> tuple[Product, ...]:
        decoder = self.scores.decoder
        tuned = decoder.grids.tuned
        return (
            decoder.weights,
            decoder.grids.identity,
            decoder.captions.vocabulary,
            self.scores.scores,
            self.scores.decoding,
            *([] if tuned is None else [tuned.backbone]),
        )

    def inputs(self) -> dict[str, str]:
        return store_digests()

    def lost(self, artifact: Artifact, workspace: Workspace) -> str | None:
        return lost_registration(artifact, workspace)

    def run(self, work: Work, hooks: Hooks) -> Outcome:
        from tasks.registry.registration import register_captioner

        made = MadeFrom.of(self.scores, work.artifacts)
        inputs = {stage.name: artifact.ledger.parts["inputs"] for stage, artifact in work.artifacts.items()}
        return register_captioner(self.config, made, params_of(self.scores.decoder, inputs), work)


def register(config: Config, scores: Scores) -> Registration:
    """Return the stage that registers a scored captioner."""
    return Registration(machine=config.machine, config=config, scores=scores)
