"""Stage `register`: everything -> a version in MLflow's registry, champion or challenger.

In: the decoder, its scores, and the artifacts from which both were produced. Out: the model's run in MLflow with
scores, samples and a report; a registered version that needs nothing from this repository; and registration.json, which
names that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.common.errors import AttendError
from tasks.common.section import Section
from tasks.config.machine import MachineConfig
from tasks.config.schema import Config
from tasks.config.stages import EncoderConfig
from tasks.evaluation.evaluate import Evaluate
from tasks.grids.weights import weight_digests
from tasks.mlflow_store.params import run_params
from tasks.mlflow_store.tracking import lost_registration, store_inputs
from tasks.pipeline.file_digests import Digests
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.pipeline.stage import Product, Stage, Work
from tasks.pipeline.workspace import Workspace


@dataclass(frozen=True, eq=False, kw_only=True)
class Register(Stage):
    """The stage that registers a scored captioner as a version in MLflow's registry, champion or challenger."""

    kind: ClassVar[str] = "register"
    version: ClassVar[int] = 3

    config: Config  # for the run's parameters and the model card; only its registry section is in the key
    scores: Evaluate

    def sections(self) -> dict[str, Section]:
        sections: dict[str, Section] = {"registry": self.config.registry}
        return sections if self.config.encoder is None else {**sections, "encoder": self.config.encoder}

    def needs(self) -> tuple[Product, ...]:
        decoder = self.scores.decoder
        tuned = decoder.grids.tuned
        return (
            decoder.weights,
            decoder.grids.identity,
            decoder.captions.vocabulary,
            self.scores.scores,
            self.scores.decoding,
            self.scores.memory.pictures,
            *([] if tuned is None else [tuned.backbone]),
        )

    def inputs(self) -> dict[str, str]:
        if self.config.encoder is None:
            return store_inputs()
        return {**store_inputs(), **_encoder_inputs(self.config.encoder, self.config.machine)}

    def external_damage(self, artifact: Artifact, workspace: Workspace) -> str | None:
        return lost_registration(artifact, workspace)

    def describe(self, counts: Mapping[str, int]) -> str:
        return f"version {counts['version']}" if "version" in counts else super().describe(counts)

    def run(self, work: Work, hooks: Any = None) -> Outcome:
        from tasks.registry.register_captioner import register_captioner

        artifacts = CaptionerArtifacts.of(self.scores, work.artifacts)
        inputs = {stage.name: artifact.ledger.parts["inputs"] for stage, artifact in work.artifacts.items()}
        return register_captioner(self.config, artifacts, run_params(self.scores.decoder, inputs), work)


def _encoder_inputs(encoder: EncoderConfig, machine: MachineConfig) -> dict[str, str]:
    """Return the digests of an encoder's files. Raises AttendError if one is missing."""
    digests = {"encoder": weight_digests(encoder.as_grids(), machine)["weights"]}
    if encoder.projection is not None:
        path = encoder.projection.expanduser()
        if not path.is_file():
            raise AttendError(f"encoder.projection: {path}: no such file")
        digests["projection"] = Digests(machine.folder / "digests.sqlite").of([path])[path]
    return digests
