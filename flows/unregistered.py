"""The log of a run that ends after `evaluate`: its scores and files go to MLflow, although nothing is registered."""

from __future__ import annotations

from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.config.schema import Config
from tasks.mlflow_store.params import run_params
from tasks.pipeline.plan import Plan
from tasks.registry.register import Register


def log_evaluation(config: Config, plan: Plan) -> None:
    """Log the evaluated training of a config in MLflow, unless it is not fresh or is already logged."""
    registration = plan.pipeline.last
    assert isinstance(registration, Register)
    by_stage = plan.artifacts
    if registration.scores not in by_stage:
        return
    from tasks.mlflow_store.evaluation_log import log_unregistered  # loads torch

    inputs = {stage.name: artifact.ledger.parts["inputs"] for stage, artifact in by_stage.items()}
    artifacts = CaptionerArtifacts.of(registration.scores, by_stage)
    log_unregistered(config, artifacts, run_params(registration.scores.decoder, inputs))
