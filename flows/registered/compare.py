"""Two registered versions on the same held-out pictures, and what a person decides of it."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registered.evaluate import evaluate_registered
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.metrics import METRICS
from tasks.pipeline.workspace import Workspace
from tasks.registry import promotion, tracking
from tasks.registry.promotion import SideBySide, side_by_side
from tasks.registry.versions import (
    address_of,
    kept_predictions,
    number,
    scores_of,
    version_at,
    version_predictions,
    version_with_alias,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class Decision:
    """What became of a version, and why."""

    promoted: bool
    why: str


def compare_versions(workspace: Path, first: str, second: str, on: Config | None = None) -> SideBySide:
    """Compare two addresses (`models:/NAME@ALIAS` or `models:/NAME/VERSION`) by the captions they were scored with.

    on: score both on this config's held-out pictures instead. AttendError where they were scored on different ones.
    """
    client = tracking.connect(workspace, must_exist=True)
    return _compared(client, version_at(client, first), version_at(client, second), on)


def promote_version(workspace: Path, address: str, score: str, certainty: float, on: Config | None) -> Decision:
    """Make a version champion if it beats the champion so surely (see promotion.py)."""
    client = tracking.connect(workspace, must_exist=True)
    version = version_at(client, address)
    with _registry(workspace, version.name):
        champion = version_with_alias(client, version.name, "champion")
        if champion is None:
            return Decision(True, promotion.crown(client, version, f"version {version.version} is champion: the first"))
        if number(champion) == number(version):
            return Decision(True, f"version {version.version} is champion already")
        found = {item.score: item for item in _compared(client, champion, version, on).scores}
        if score not in found:
            raise AttendError(f"--score: {score}: they were not scored by it; they have: {', '.join(found)}")
        alias, why = promotion.promote(client, version, champion, found[score], certainty)
    return Decision(alias == "champion", why)


def crown_version(workspace: Path, address: str) -> str:
    """Make a version champion, whatever it scores; returns what was done."""
    client = tracking.connect(workspace, must_exist=True)
    version = version_at(client, address)
    with _registry(workspace, version.name):
        return promotion.crown(client, version, f"version {version.version} is champion: by hand")


def roll_back(workspace: Path, model: str) -> str:
    """Restore a model's champion before this one; returns what was done."""
    client = tracking.connect(workspace, must_exist=True)
    with _registry(workspace, model):
        restored, dropped = promotion.roll_back(client, model)
    return f"{model}: version {restored} is champion again, version {dropped} was rolled back"


def _registry(workspace: Path, model: str) -> AbstractContextManager[None]:
    return Workspace(workspace).lock(f"registry-{model}", f"registration of {model}")


def _compared(client: MlflowClient, first: ModelVersion, second: ModelVersion, on: Config | None) -> SideBySide:
    names = [address_of(version) for version in (first, second)]
    told: list[dict[str, Any]] = []
    if on is not None:
        told = [evaluate_registered(on, name) for name in names]
        scored = [set(item["scores"]) for item in told]
    else:
        if any(first.tags.get(tag) != second.tags.get(tag) for tag in ("attend.data", "attend.signature")):
            raise AttendError(
                f"{names[0]} and {names[1]} were scored on other pictures or settings: name a config, to score both "
                "on its held-out pictures: --on CONFIG"
            )
        scored = [set(scores_of(version)) for version in (first, second)]
    metrics = tuple(name for name, member in METRICS.items() if {*member.scores} <= scored[0] & scored[1])
    with tempfile.TemporaryDirectory(prefix="attend-") as scratch:
        paths = []
        for place, (name, version) in enumerate(zip(names, (first, second), strict=True)):
            folder = Path(scratch) / str(place)
            if on is not None:
                path = kept_predictions(client, told[place]["run_id"], folder)
            else:
                path = version_predictions(client, version, folder)
            if path is None:
                raise AttendError(f"{name}: its captions were not kept: name a config to score it on: --on CONFIG")
            paths.append(path)
        return side_by_side(paths[0], paths[1], metrics)
