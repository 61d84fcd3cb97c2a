"""The history of a config's runs: a line of JSON for each run that did work, in the workspace's folder `history`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tasks.config.schema import Config
from tasks.evaluation.score_record import read_scores
from tasks.mlflow_store.registration_record import read_registration
from tasks.pipeline.ledger import Artifact

HISTORY, PAGES = "history", "page"  # folders of a workspace


@dataclass(frozen=True)
class RunRecord:
    """The results of a run.

    time: of its end (Unix). ran: the stages that ran. counts: pictures by split, and captions. scores: by name, the
    value and the low and high end of the 95 % interval, in percent. version, why: of the registered version, if any.
    """

    time: float
    ran: list[str]
    counts: dict[str, float] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    version: str = ""
    why: str = ""


def record_run(config: Config, artifacts: Mapping[str, Artifact], ran: Sequence[str]) -> None:
    """Append a run to the history. artifacts: the current ones, by kind. ran: the stages that ran."""
    values: dict[str, Any] = {"time": time.time(), "ran": list(ran)}
    if "ingest" in artifacts:
        values["counts"] = artifacts["ingest"].ledger.counts
    if "evaluate" in artifacts:
        scored = read_scores(artifacts["evaluate"].path)
        values["scores"] = {name: [value, *scored["intervals"][name]] for name, value in scored["scores"].items()}
    if "register" in artifacts:
        registration = read_registration(artifacts["register"].path)
        values |= {name: registration[name] for name in ("version", "why")}
    path = history_file(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        # A run killed here may have left an incomplete line. One write, so that two runs do not mix their lines.
        file.write(f"\n{json.dumps(asdict(RunRecord(**values)))}\n")
        file.flush()
        os.fsync(file.fileno())


def page_path(config: Config) -> Path:
    """Return the file of a config's page."""
    return config.workspace / PAGES / f"{config.name}.html"


def read_history(config: Config) -> list[RunRecord]:
    """Return the runs of a config, oldest first. An incomplete line is left out."""
    try:
        lines = history_file(config).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    names = {item.name for item in fields(RunRecord)}
    records = []
    for line in lines:
        try:
            records.append(RunRecord(**{name: value for name, value in json.loads(line).items() if name in names}))
        except (ValueError, TypeError, AttributeError):
            continue
    return records


def history_file(config: Config) -> Path:
    """Return the file of a config's history."""
    return config.workspace / HISTORY / f"{config.name}.jsonl"
