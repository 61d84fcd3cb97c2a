"""Score a registered model on a config's held-out pictures, by schedule."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger

from flows.operations import reports
from flows.registered.evaluate import evaluate_registered
from tasks.common import progress
from tasks.config.schema import Config


@flow(name="evaluate", flow_run_name="{config.name}")
def evaluate(config: Config, model: str | None = None) -> dict[str, Any]:
    """Score a registered model (the champion, where none is named) on the held-out pictures as they are today."""
    with progress.also(get_run_logger().info):
        told = evaluate_registered(config, model)
    reports.show_registered_scores(told)
    return told
