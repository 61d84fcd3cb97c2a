"""What a flow run shows of itself in Prefect's UI: plan, progress, scores with sample captions, its place in MLflow."""

from __future__ import annotations

import json
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

from tasks.config.schema import Config
from tasks.data.manifest import pictures_of
from tasks.evaluation.predictions import PREDICTIONS, SCORES, score_lines
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.plan import Status
from tasks.registry.registration import REGISTRATION
from tasks.registry.tracking import run_page

_SAMPLES = 8
_SECONDS = 5.0  # between two updates of a progress artifact: each is a call to the server


def show_plan(statuses: list[Status], computes: str | None) -> None:
    """Show what is stale and why; computes: what the stages that train compute on, where some will run."""
    rows = [{"stage": item.stage.name, "state": item.state, "why": "; ".join(item.why)} for item in statuses]
    about = "what is stale, and why; stages that are fresh do not run"
    create_table_artifact(rows, key="plan", description=f"{about}; {computes}" if computes else about)


def show_progress(what: str) -> Callable[[int, int], None]:
    """A bar in the UI; what it returns is called with (done, total)."""
    shown: list[Any] = []
    last = [0.0]

    def progressed(done: int, total: int) -> None:
        if done < total and time.monotonic() - last[0] < _SECONDS:
            return
        last[0] = time.monotonic()
        told = f"{what}: {done:,} of {total:,}"
        if shown:
            update_progress_artifact(shown[0], 100.0 * done / total, told)
        else:
            shown.append(create_progress_artifact(100.0 * done / total, key=what, description=told))

    return progressed


def show_scores(config: Config, made: dict[str, Artifact]) -> None:
    """The scores with their signature, and some captions beside what people wrote."""
    told = json.loads((made["evaluate"].path / SCORES).read_text(encoding="utf-8"))
    lines = [*score_lines(told), ""]
    lines += ["| picture | says | a person wrote |", "| --- | --- | --- |"]
    pictures = {picture.digest: picture for picture in pictures_of(made["ingest"].path, config.evaluation.split)}
    for row in pq.read_table(made["evaluate"].path / PREDICTIONS).slice(0, _SAMPLES).to_pylist():
        picture = pictures[row["digest"]]
        lines.append(f"| {_cell(picture.name)} | {_cell(row['caption'])} | {_cell(picture.captions[0])} |")
    create_markdown_artifact("\n".join(lines), key="scores", description=f"free-running, {config.evaluation.split}")


def show_registered_scores(told: dict[str, Any]) -> None:
    """What rescoring.evaluate_registered found."""
    description = f"{told['model']}, free-running, from photographs"
    create_markdown_artifact("\n".join(score_lines(told)), key="registered-scores", description=description)


def show_registration(registered: Artifact) -> None:
    """Which version it became, why, and its run in MLflow."""
    told = json.loads((registered.path / REGISTRATION).read_text(encoding="utf-8"))
    page = run_page(told["store"], told["run_id"])
    if page is not None:
        create_link_artifact(page, key="mlflow-run", link_text=told["uri"], description=told["why"])
    elif told["store"].startswith("sqlite:"):
        place = Path(told["store"].removeprefix("sqlite:///")).parent
        create_markdown_artifact(
            f"{told['uri']}: {told['why']}\n\nIts run is in the store of {place}: `attend ui --workspace {place}`",
            key="mlflow-run",
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
