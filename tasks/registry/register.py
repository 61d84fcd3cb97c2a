"""Stage `register`: everything -> a version in MLflow's registry, champion or challenger.

In: the decoder, its scores, and the artifacts that both were made from. Out: the model's run in MLflow with scores,
samples and a report; a registered version that needs nothing from this repository; and registration.json, which names
that version.
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
from tasks.registry.captioner_artifacts import CaptionerArtifacts
from tasks.registry.params import run_params
from tasks.registry.tracking import lost_registration, store_inputs


@dataclass(frozen=True, eq=False, kw_only=True)
class Registration(Stage):
    """The stage that registers a scored captioner as a version in MLflow's registry, champion or challenger."""

    kind: ClassVar[str] = "register"
    version: ClassVar[int] = 2

    config: Config  # for the run's parameters and the model card; only its registry section is in the key
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
        return store_inputs()

    def external_damage(self, artifact: Artifact, workspace: Workspace) -> str | None:
        return lost_registration(artifact, workspace)

    def run(self, work: Work, hooks: Hooks) -> Outcome:
        from tasks.registry.register_captioner import register_captioner

        artifacts = CaptionerArtifacts.of(self.scores, work.artifacts)
        inputs = {stage.name: artifact.ledger.parts["inputs"] for stage, artifact in work.artifacts.items()}
        return register_captioner(self.config, artifacts, run_params(self.scores.decoder, inputs), work)


def register(config: Config, scores: Scores) -> Registration:
    """Return the stage that registers a scored captioner."""
    return Registration(machine=config.machine, config=config, scores=scores)
