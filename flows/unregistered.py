"""The log of a run that ends after `evaluate`: its scores and files go to MLflow too, though nothing is registered."""

from __future__ import annotations

from tasks.config.schema import Config
from tasks.pipeline.plan import Plan
from tasks.registry.captioner_artifacts import CaptionerArtifacts
from tasks.registry.params import run_params
from tasks.registry.register import Registration


def log_evaluation(config: Config, plan: Plan) -> None:
    """Log the evaluated training of a config in MLflow, unless it is not fresh or is logged already."""
    registration = plan.pipeline.last
    assert isinstance(registration, Registration)
    made = plan.artifacts
    if registration.scores not in made:
        return
    from tasks.registry.evaluation_log import log_unregistered  # loads torch

    inputs = {stage.name: artifact.ledger.parts["inputs"] for stage, artifact in made.items()}
    artifacts = CaptionerArtifacts.of(registration.scores, made)
    log_unregistered(config, artifacts, run_params(registration.scores.decoder, inputs))
