"""Who is champion: decided by a paired bootstrap on the same held-out pictures, and taken back again.

The aliases of a registered model are `champion`, `challenger` (the last one refused) and `previous` (whom a rollback
restores); its tag `attend.champions` keeps all champions, oldest first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.evaluation.predictions import read_predictions
from tasks.metrics import Scored, load
from tasks.metrics.bootstrap import LEVEL, Compared, compare
from tasks.registry.tracking import TRAIN_KEY
from tasks.registry.versions import number, version_with_alias

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_CHAMPIONS, _DECISION, _ROLLED_BACK = "attend.champions", "attend.decision", "attend.rolled_back"


@dataclass(frozen=True)
class SideBySide:
    """Two models on the same pictures: digest -> the captions of both, and their scores."""

    captions: dict[str, tuple[Scored, Scored]]
    scores: list[Compared]


def side_by_side(first: Path, second: Path, metrics: tuple[str, ...]) -> SideBySide:
    """Compare two predictions files; AttendError where they have no picture in common."""
    before, after = read_predictions(first), read_predictions(second)
    shared = {digest: (item, after[digest]) for digest, item in before.items() if digest in after}
    if not shared:
        raise AttendError(f"{second}: holds none of the pictures of {first}: there is nothing to compare")
    old, new = zip(*shared.values(), strict=True)
    return SideBySide(shared, [score for name in metrics for score in compare(load(name), old, new)])


def told(compared: Compared) -> str:
    """The figures of a comparison, in words."""
    low, high = compared.interval
    return (
        f"{compared.score} {compared.second:.2f} against {compared.first:.2f}: {compared.second - compared.first:+.2f} "
        f"({low:+.2f} to {high:+.2f} at {LEVEL:.0%}), better in {compared.better:.1%} of resamples"
    )


def promote(
    client: MlflowClient, version: ModelVersion, champion: ModelVersion, compared: Compared, certainty: float
) -> tuple[str, str]:
    """Give the version its alias, and say why: champion where it beats the champion in this share of resamples.

    compared: the champion (first) with the version (second).
    """
    name, figures = f"version {version.version}", f"version {champion.version}: {told(compared)}"
    if compared.second > compared.first and compared.better >= certainty:
        return "champion", crown(client, version, f"{name} is champion: it beats {figures}")
    why = f"{name} is challenger: it does not beat {figures}; {certainty:.1%} are asked for"
    client.set_registered_model_alias(version.name, "challenger", version.version)
    client.set_model_version_tag(version.name, version.version, _DECISION, why)
    return "challenger", why


def rolled_back(client: MlflowClient, version: ModelVersion) -> bool:
    """Whether a person took the version back, or one of the same training: no schedule makes it champion again."""
    return any(_ROLLED_BACK in other.tags for other in _of_same_training(client, version))


def _of_same_training(client: MlflowClient, version: ModelVersion) -> list[ModelVersion]:
    """The version and others of the same weights: new held-out pictures make a version, and train nothing."""
    others = client.search_model_versions(f"name = '{version.name}'")
    return [other for other in others if other.tags.get(TRAIN_KEY) == version.tags.get(TRAIN_KEY)]


def crown(client: MlflowClient, version: ModelVersion, why: str) -> str:
    """Make the version champion; returns why."""
    champions = [*(item for item in _champions(client, version.name) if item != number(version)), number(version)]
    for other in _of_same_training(client, version):
        if _ROLLED_BACK in other.tags:
            client.delete_model_version_tag(other.name, other.version, _ROLLED_BACK)
    client.set_model_version_tag(version.name, version.version, _DECISION, why)
    _reign(client, version.name, champions)
    challenger = version_with_alias(client, version.name, "challenger")
    if challenger is not None and number(challenger) == number(version):
        client.delete_registered_model_alias(version.name, "challenger")
    return why


def roll_back(client: MlflowClient, model: str) -> tuple[str, str]:
    """Restore the champion before this one; (its version, the version that was rolled back)."""
    champions = _champions(client, model)
    if not champions:
        raise AttendError(f"{model}: has no champion to roll back from")
    if len(champions) == 1:
        raise AttendError(f"{model}: version {champions[0]} is its first champion: there is none to roll back to")
    *before, dropped = champions
    client.set_model_version_tag(model, dropped, _ROLLED_BACK, "true")
    client.set_model_version_tag(model, dropped, _DECISION, f"rolled back to version {before[-1]}")
    _reign(client, model, before)
    return before[-1], dropped


def _reign(client: MlflowClient, model: str, champions: list[str]) -> None:
    """The last of them is champion. The alias comes last: it is what others load by."""
    client.set_registered_model_tag(model, _CHAMPIONS, json.dumps(champions))
    if len(champions) > 1:
        client.set_registered_model_alias(model, "previous", champions[-2])
    elif version_with_alias(client, model, "previous") is not None:
        client.delete_registered_model_alias(model, "previous")
    client.set_registered_model_alias(model, "champion", champions[-1])


def _champions(client: MlflowClient, model: str) -> list[str]:
    """Versions that were champion and are still there, oldest first; the last is champion now."""
    registered = client.get_registered_model(model)
    aliases = {alias: str(version) for alias, version in registered.aliases.items()}
    there = {number(version) for version in client.search_model_versions(f"name = '{model}'")}
    kept = [version for version in json.loads(registered.tags.get(_CHAMPIONS, "[]")) if version in there]
    champion = aliases.get("champion")
    if champion is None:
        return []
    if champion in kept:  # an alias that was moved by other hands is the truth
        return kept[: kept.index(champion) + 1]
    return [*kept, champion]
