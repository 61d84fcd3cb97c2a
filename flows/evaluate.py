"""Score a registered model on a config's held-out pictures, by schedule."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from tasks import progress
from tasks.config import Config
from tasks.rescoring import evaluate_registered


@flow(name="evaluate", flow_run_name="{config.name}")
def evaluate(config: Config, model: str | None = None) -> dict[str, Any]:
    """Score a registered model (the champion, where none is named) on the held-out pictures as they are today."""
    with progress.also(get_run_logger().info):
        told = evaluate_registered(config, model)
    scores = "".join(f"\n| {metric} | {value:.2f} |" for metric, value in told["scores"].items())
    create_markdown_artifact(
        f"| score | % |\n| --- | --- |{scores}\n\n{told['pictures']:,} pictures",
        key="registered-scores",
        description=f"{told['model']}, free-running, from photographs",
    )
    return told
