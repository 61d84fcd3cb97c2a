"""The aliases of a registered model: set by the decision of champion_rule.py, and reverted by a rollback.

The aliases of a registered model are `champion`, `challenger` (the last version that was not promoted) and `previous`
(the version that a rollback restores); its tag `attend.champions` lists all champions, oldest first.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.mlflow_store.runs import TRAIN_KEY
from tasks.mlflow_store.versions import CHAMPIONS, PROMOTED_AT, number, version_with_alias, versions_of
from tasks.registry.champion_rule import Decision

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FAILED_GATES = "attend.failed_gates"  # tag of a version: a sentence for each gate that it fails (see gates.py), as JSON
_DECISION, _ROLLED_BACK = "attend.decision", "attend.was_rolled_back"


def apply(client: MlflowClient, version: ModelVersion, decision: Decision) -> None:
    """Give a version the alias in the decision, and keep the reason in a tag."""
    if decision.alias == "champion":
        make_champion(client, version, decision.why)
    else:
        client.set_registered_model_alias(version.name, "challenger", version.version)
        client.set_model_version_tag(version.name, version.version, _DECISION, decision.why)


def was_rolled_back(client: MlflowClient, version: ModelVersion) -> bool:
    """Return whether a person rolled back a version of the same training; if so, no schedule promotes it again."""
    return any(_ROLLED_BACK in other.tags for other in _of_same_training(client, version))


def _of_same_training(client: MlflowClient, version: ModelVersion) -> list[ModelVersion]:
    """Return all versions with the same weights, including this one.

    There may be several: new held-out pictures give a new version without training.
    """
    training = version.tags.get(TRAIN_KEY)
    if training is None:  # registered by another program, so nothing is known about its training
        return [version]
    versions = versions_of(client, version.name)
    return [other for other in versions if other.tags.get(TRAIN_KEY) == training]


def make_champion(client: MlflowClient, version: ModelVersion, why: str) -> None:
    """Make the version champion, and keep the reason in a tag."""
    champions = [*(item for item in _champions(client, version.name) if item != number(version)), number(version)]
    for other in _of_same_training(client, version):
        if _ROLLED_BACK in other.tags:
            client.delete_model_version_tag(other.name, other.version, _ROLLED_BACK)
    client.set_model_version_tag(version.name, version.version, _DECISION, why)
    _set_champions(client, version.name, champions)
    challenger = version_with_alias(client, version.name, "challenger")
    if challenger is not None and number(challenger) == number(version):
        client.delete_registered_model_alias(version.name, "challenger")


def objection_to(version: ModelVersion) -> str | None:
    """Return why the last decision did not make the version champion; None if it did, or if there was none."""
    decision, _, why = version.tags.get(_DECISION, "").partition(": ")
    return None if decision.endswith("is champion") or not why else why


def roll_back(client: MlflowClient, model: str) -> tuple[str, str]:
    """Restore the previous champion; return its version number and that of the version that was rolled back.

    Raise AttendError if the model has no champion, or no earlier one.
    """
    champions = _champions(client, model)
    if not champions:
        raise AttendError(f"{model}: has no champion to roll back from: promote a version first")
    if len(champions) == 1:
        raise AttendError(
            f"{model}: version {champions[0]} is its first champion: there is no earlier one to roll back to"
        )
    *remaining, dropped = champions
    client.set_model_version_tag(model, dropped, _ROLLED_BACK, "true")
    why = f"version {dropped} is no longer champion: it was rolled back to version {remaining[-1]}"
    client.set_model_version_tag(model, dropped, _DECISION, why)
    _set_champions(client, model, remaining)
    return remaining[-1], dropped


def _set_champions(client: MlflowClient, model: str, champions: list[str]) -> None:
    """Record the champions, oldest first, and make the last one champion.

    The alias `champion` is set last, because models are loaded by it.
    """
    client.set_registered_model_tag(model, CHAMPIONS, json.dumps(champions))
    if len(champions) > 1:
        client.set_registered_model_alias(model, "previous", champions[-2])
    elif version_with_alias(client, model, "previous") is not None:
        client.delete_registered_model_alias(model, "previous")
    client.set_registered_model_alias(model, "champion", champions[-1])
    client.set_registered_model_tag(model, PROMOTED_AT, datetime.now(UTC).isoformat())


def _champions(client: MlflowClient, model: str) -> list[str]:
    """Return the versions that were champion and still exist, oldest first; the last one is champion now."""
    registered = client.get_registered_model(model)
    aliases = {alias: str(version) for alias, version in registered.aliases.items()}
    existing = {number(version) for version in versions_of(client, model)}
    champions = [version for version in json.loads(registered.tags.get(CHAMPIONS, "[]")) if version in existing]
    champion = aliases.get("champion")
    if champion is None:
        return []
    if champion in champions:  # the alias decides, even if it was moved outside attend
        return champions[: champions.index(champion) + 1]
    return [*champions, champion]
