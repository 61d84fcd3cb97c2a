"""The Prefect flow that scores a registered model, on a schedule, on a config's held-out pictures."""

from __future__ import annotations

from prefect import flow

from flows.operations import prefect_reports
from flows.registered.evaluate import evaluate_registered
from tasks.common.log import show_log
from tasks.config.schema import Config
from tasks.evaluation.score_record import ScoreRecord


@flow(name="evaluate", flow_run_name="{config.name}")
def evaluate(config: Config, model: str | None = None) -> ScoreRecord:
    """Score a registered model (by default the config's champion) on the held-out pictures as they are now."""
    show_log()
    evaluation = evaluate_registered(config, model)
    prefect_reports.show_registered_scores(evaluation)
    return evaluation.scores
