"""The log of a run that ends after `evaluate`: its scores and files go to MLflow too, though nothing is registered."""

from __future__ import annotations

from flows.pipeline import build_pipeline
from tasks.config.schema import Config
from tasks.pipeline.plan import artifacts_of, plan, up_to
from tasks.registry.captioner_artifacts import CaptionerArtifacts
from tasks.registry.params import run_params
from tasks.registry.register import Registration


def log_evaluation(config: Config) -> None:
    """Log the evaluated training of a config in MLflow, unless it is not fresh or is logged already."""
    pipeline = build_pipeline(config)
    registration = pipeline.last
    assert isinstance(registration, Registration)
    made = artifacts_of(plan(up_to(pipeline, registration.scores.name)))
    if registration.scores not in made:
        return
    from tasks.registry.evaluation_log import log_unregistered  # loads torch

    inputs = {stage.name: artifact.ledger.parts["inputs"] for stage, artifact in made.items()}
    artifacts = CaptionerArtifacts.of(registration.scores, made)
    log_unregistered(config, artifacts, run_params(registration.scores.decoder, inputs))
