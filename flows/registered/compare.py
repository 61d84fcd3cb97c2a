"""Compare two registered versions on the same held-out pictures, and make one champion or roll it back."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.registered.evaluate import RegisteredScores, evaluate_registered
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.evaluation.caption_and_score import PREDICTIONS
from tasks.metrics import METRICS
from tasks.pipeline.workspace import Workspace
from tasks.registry import promotion, tracking
from tasks.registry.promotion import ModelComparison, PromotionRule, side_by_side
from tasks.registry.versions import (
    address_of,
    download_predictions,
    download_version_predictions,
    number,
    scores_of,
    version_of_address,
    version_with_alias,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class Decision:
    """The outcome for a version: whether it is champion now, and why."""

    promoted: bool
    why: str


def compare_versions(workspace: Path, first: str, second: str, on: Config | None = None) -> ModelComparison:
    """Compare the versions at two addresses by the captions that they were scored with.

    first, second: `models:/NAME@ALIAS` or `models:/NAME/VERSION`. on: a config on whose held-out pictures both are
    scored instead. Raise AttendError if they were scored on different pictures or settings and `on` is None.
    """
    client = tracking.connect(workspace, must_exist=True)
    return _compare(client, version_of_address(client, first), version_of_address(client, second), on)


def promote_version(workspace: Path, address: str, rule: PromotionRule, on: Config | None) -> Decision:
    """Make a version champion if it beats the champion by the rule (see promotion.py), and no gate refused it.

    on: a config on whose held-out pictures both are scored instead. Raise AttendError if the two do not have the rule's
    score.
    """
    client = tracking.connect(workspace, must_exist=True)
    version = version_of_address(client, address)
    with _registry_lock(workspace, version.name):
        champion = version_with_alias(client, version.name, "champion")
        refusal = version.tags.get(promotion.GATE_REFUSAL)
        if refusal is not None and (champion is None or number(champion) != number(version)):
            return Decision(False, refusal)
        if champion is None:
            return Decision(
                True,
                promotion.make_champion(client, version, f"version {version.version} is champion: it is the first"),
            )
        if number(champion) == number(version):
            return Decision(True, f"version {version.version} is champion already")
        comparison = _compare(client, champion, version, on)
        scores = [item.score for item in comparison.scores]
        if rule.score not in scores:
            raise AttendError(
                f"--score: {rule.score}: the two versions have no such score; they have: {', '.join(scores)}"
            )
        alias, why = promotion.promote(client, version, champion, comparison, rule)
    return Decision(alias == "champion", why)


def force_champion(workspace: Path, address: str) -> str:
    """Make a version champion, whatever its scores and whatever gate refused it, and return a sentence that says so.

    The sentence is kept as the reason for its promotion, with what the gates found.
    """
    client = tracking.connect(workspace, must_exist=True)
    version = version_of_address(client, address)
    refusal = version.tags.get(promotion.GATE_REFUSAL)
    why = f"version {version.version} is champion: by hand" + (f", although {refusal}" if refusal else "")
    with _registry_lock(workspace, version.name):
        return promotion.make_champion(client, version, why)


def roll_back(workspace: Path, model: str) -> str:
    """Restore the model's previous champion, and return a sentence that says so."""
    client = tracking.connect(workspace, must_exist=True)
    with _registry_lock(workspace, model):
        restored, dropped = promotion.roll_back(client, model)
    return f"{model}: version {restored} is champion again, version {dropped} was rolled back"


def _registry_lock(workspace: Path, model: str) -> AbstractContextManager[None]:
    return Workspace(workspace).lock(f"registry-{model}", f"registration of {model}")


def _compare(client: MlflowClient, first: ModelVersion, second: ModelVersion, on: Config | None) -> ModelComparison:
    addresses = [address_of(version) for version in (first, second)]
    evaluations: list[RegisteredScores] = []
    if on is not None:
        evaluations = [evaluate_registered(on, address) for address in addresses]
        score_names = [set(evaluation.scores["scores"]) for evaluation in evaluations]
    else:
        if any(first.tags.get(tag) != second.tags.get(tag) for tag in ("attend.data", "attend.signature")):
            raise AttendError(
                f"{addresses[0]} and {addresses[1]} were scored on different pictures or settings: "
                "add --on CONFIG to score both on that config's held-out pictures"
            )
        score_names = [set(scores_of(version)) for version in (first, second)]
    metrics = tuple(name for name, metric in METRICS.items() if {*metric.scores} <= score_names[0] & score_names[1])
    with tempfile.TemporaryDirectory(prefix="attend-") as scratch:
        paths = []
        for index, (address, version) in enumerate(zip(addresses, (first, second), strict=True)):
            folder = Path(scratch) / str(index)
            if on is not None:
                path = download_predictions(client, evaluations[index].run_id, folder, PREDICTIONS)
            else:
                path = download_version_predictions(client, version, folder)
            if path is None:
                raise AttendError(
                    f"{address}: its run has no captions: add --on CONFIG to score both on that config's pictures"
                )
            paths.append(path)
        return side_by_side(paths[0], paths[1], metrics)
