"""The Prefect flow that scores a registered model, on a schedule, on a config's held-out pictures."""

from __future__ import annotations

from prefect import flow

from flows.configs import load
from flows.operations import prefect_reports
from flows.operations.run_form import ConfigName, ConfigOverrides, run_name
from flows.registered.evaluate import evaluate_registered
from tasks.common.log import show_log
from tasks.evaluation.score_record import ScoreRecord


@flow(name="evaluate", flow_run_name=run_name)
def evaluate(preset: ConfigName, overrides: ConfigOverrides = None, model: str | None = None) -> ScoreRecord:
    """Score a registered model (by default the config's champion) on the current held-out pictures."""
    show_log()
    evaluation = evaluate_registered(load(preset, overrides or []), model)
    prefect_reports.show_registered_scores(evaluation)
    return evaluation.scores
