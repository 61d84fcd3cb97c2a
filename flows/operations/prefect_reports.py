"""Reports of a flow run in Prefect's UI: the plan, progress, scores with sample captions, and a link to MLflow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows.registered.evaluate import RegisteredScores
from tasks.config.schema import Config
from tasks.data.manifest import read_pictures
from tasks.evaluation.caption_and_score import PREDICTIONS, score_lines
from tasks.evaluation.score_record import read_scores
from tasks.inspection.record import FINDINGS, KINDS, UNLIKE, describe_counts, describe_drift, read_inspection
from tasks.mlflow_store.registration_record import read_registration
from tasks.mlflow_store.tracking import run_page_url
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.plan import Status

_SAMPLES = 8
_FINDINGS = 12  # of a kind
_UPDATE_SECONDS = 5.0  # between two updates of a progress bar: each is a call to the server


def show_plan(statuses: list[Status], computes: str | None) -> None:
    """Show what is stale and why. computes: a line about the device and precision of training; None for no training."""
    rows = [{"stage": item.stage.name, "state": item.state, "why": "; ".join(item.why)} for item in statuses]
    about = "what is stale, and why; stages that are fresh do not run"
    create_table_artifact(rows, key="plan", description=f"{about}; {computes}" if computes else about)


def show_progress(title: str) -> Callable[[int, int], None]:
    """Return a function that shows a progress bar in the UI. Call it with (done, total).

    title: the plural noun of the counted items, for the bar's description and key.
    """
    artifact_id: Any = None
    last_update = 0.0

    def update(done: int, total: int) -> None:
        nonlocal artifact_id, last_update
        if done < total and time.monotonic() - last_update < _UPDATE_SECONDS:
            return
        last_update = time.monotonic()
        description = f"{title}: {done:,} of {total:,}"
        if artifact_id is None:
            artifact_id = create_progress_artifact(100.0 * done / total, key=title, description=description)
        else:
            update_progress_artifact(artifact_id, 100.0 * done / total, description)

    return update


def show_scores(config: Config, artifacts: dict[str, Artifact]) -> None:
    """Show the scores with their signature, and some captions beside their references.

    artifacts: of the run, by kind of stage.
    """
    scores = read_scores(artifacts["evaluate"].path)
    lines = [*score_lines(scores), ""]
    lines += ["| picture | says | a person wrote |", "| --- | --- | --- |"]
    pictures = {picture.digest: picture for picture in read_pictures(artifacts["ingest"].path, config.evaluation.split)}
    for row in pq.read_table(artifacts["evaluate"].path / PREDICTIONS).slice(0, _SAMPLES).to_pylist():
        picture = pictures[row["digest"]]
        lines.append(f"| {_cell(picture.name)} | {_cell(row['caption'])} | {_cell(picture.captions[0])} |")
    create_markdown_artifact("\n".join(lines), key="scores", description=f"free-running, {config.evaluation.split}")


def show_registered_scores(evaluation: RegisteredScores) -> None:
    """Show the scores returned by `evaluate_registered`."""
    description = f"{evaluation.model}, free-running, from photographs"
    create_markdown_artifact(
        "\n".join(score_lines(evaluation.scores)), key="registered-scores", description=description
    )


def show_registration(artifact: Artifact) -> None:
    """Show the registered version, the reason for its alias, and the location of its run in MLflow.

    artifact: of the stage `register`.
    """
    registration = read_registration(artifact.path)
    page = run_page_url(registration["store"], registration["run_id"])
    if page is not None:
        create_link_artifact(page, key="mlflow-run", link_text=registration["uri"], description=registration["why"])
    elif registration["store"].startswith("sqlite:"):
        workspace = Path(registration["store"].removeprefix("sqlite:///")).parent
        create_markdown_artifact(
            f"{registration['uri']}: {registration['why']}\n\nIts run is in the store of {workspace}: "
            f"`attend ui --workspace {workspace}`",
            key="mlflow-run",
        )


def show_inspection(artifact: Artifact) -> None:
    """Show the findings about the data set and, under a separate key, drift if it raises an alarm.

    Prefect's automations can act on the alarm: on the event `prefect.artifact.created` with the name `data-drift`.
    artifact: of the stage `register`.
    """
    record = read_inspection(artifact.path)
    drift = describe_drift(record["drift"])
    rows = pq.read_table(artifact.path / FINDINGS).to_pylist()
    columns = ("kind", "name", "split", "caption", "other", "why")
    create_table_artifact(
        [
            {name: row[name] or "" for name in columns}
            for kind in KINDS
            for row in [row for row in rows if row["kind"] == kind][:_FINDINGS]
        ],
        key="data-to-look-at",
        description=f"{drift}. To look at: {describe_counts(record)}",
    )
    if not isinstance(record["drift"], str) and record["drift"]["alarm"]:
        unlike = [f"- {row['name']}: {row['why']}" for row in rows if row["kind"] == UNLIKE]
        create_markdown_artifact("\n".join([drift, "", *unlike]), key="data-drift", description=drift)


def _cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")
