"""Which version is champion: decided by a paired bootstrap on the same held-out pictures, and reverted by a rollback.

The aliases of a registered model are `champion`, `challenger` (the last version that was not promoted) and `previous`
(the version that a rollback restores); its tag `attend.champions` lists all champions, oldest first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.evaluation.caption_and_score import read_predictions
from tasks.metrics import ScoredCaption, load
from tasks.metrics.bootstrap import LEVEL, ScoreComparison, compare
from tasks.registry.runs import TRAIN_KEY
from tasks.registry.versions import CHAMPIONS, PROMOTED_AT, number, version_with_alias

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

GATE_REFUSAL = "attend.gate_refusal"  # tag of a version that the gates refused (see gates.py): why
_DECISION, _ROLLED_BACK = "attend.decision", "attend.was_rolled_back"


@dataclass(frozen=True)
class ModelComparison:
    """Two models on the same pictures.

    captions: digest of a picture -> the caption and references of the first and of the second model. scores: each score
    of both models, compared.
    """

    captions: dict[str, tuple[ScoredCaption, ScoredCaption]]
    scores: list[ScoreComparison]


def side_by_side(first: Path, second: Path, metrics: tuple[str, ...]) -> ModelComparison:
    """Compare two predictions files on the pictures that both have; AttendError where they have none in common."""
    first_items, second_items = read_predictions(first), read_predictions(second)
    shared = {digest: (item, second_items[digest]) for digest, item in first_items.items() if digest in second_items}
    if not shared:
        raise AttendError(f"{second}: has no picture in common with {first}: compare predictions of the same pictures")
    first_corpus, second_corpus = zip(*shared.values(), strict=True)
    scores = [score for name in metrics for score in compare(load(name), first_corpus, second_corpus)]
    return ModelComparison(shared, scores)


def _describe(compared: ScoreComparison) -> str:
    """Return the numbers of a comparison as a sentence."""
    low, high = compared.interval
    return (
        f"{compared.score} {compared.second:.2f} against {compared.first:.2f}: {compared.second - compared.first:+.2f} "
        f"({low:+.2f} to {high:+.2f} at {LEVEL:.0%}), better in {compared.better:.1%} of resamples"
    )


@dataclass(frozen=True)
class PromotionRule:
    """When a version replaces the champion.

    score: the score that is compared. certainty: the share of resamples in which it must be higher. min_pictures: the
    fewest pictures on which a comparison decides.
    """

    score: str
    certainty: float
    min_pictures: int


def promote(
    client: MlflowClient,
    version: ModelVersion,
    champion: ModelVersion,
    comparison: ModelComparison,
    rule: PromotionRule,
) -> tuple[str, str]:
    """Set the version's alias, and return it with the reason.

    The version becomes champion where the rule's score is higher, and higher in at least the share `certainty` of the
    resamples, of enough pictures; else challenger. comparison: the champion (first) with the version (second).
    """
    name = f"version {version.version}"
    compared = next(item for item in comparison.scores if item.score == rule.score)
    against = f"version {champion.version}: {_describe(compared)}"
    obstacle = _undecidable(comparison, compared, rule)
    if obstacle is None and compared.second > compared.first and compared.better >= rule.certainty:
        return "champion", make_champion(client, version, f"{name} is champion: it beats {against}")
    why = obstacle or f"it does not beat {against}; {rule.certainty:.1%} is required"
    return "challenger", make_challenger(client, version, f"{name} is challenger: {why}")


def _undecidable(comparison: ModelComparison, compared: ScoreComparison, rule: PromotionRule) -> str | None:
    """Return why the comparison cannot decide; None where it can."""
    if len(comparison.captions) < rule.min_pictures:
        return (
            f"{len(comparison.captions)} pictures cannot decide, {rule.min_pictures} are required: evaluate on more, "
            "or `attend models promote --force`"
        )
    if compared.first == compared.second == 0:
        others = [item.score for item in comparison.scores if item.first != item.second]
        known = f": `attend models promote --score` with one that differs: {', '.join(others)}" if others else ""
        return f"{compared.score} is 0 for both and cannot decide{known}"
    return None


def make_challenger(client: MlflowClient, version: ModelVersion, why: str) -> str:
    """Make the version challenger, record the reason in its tag, and return that reason."""
    client.set_registered_model_alias(version.name, "challenger", version.version)
    client.set_model_version_tag(version.name, version.version, _DECISION, why)
    return why


def was_rolled_back(client: MlflowClient, version: ModelVersion) -> bool:
    """Return whether a person rolled back the version or one of the same training: no schedule promotes it again."""
    return any(_ROLLED_BACK in other.tags for other in _of_same_training(client, version))


def _of_same_training(client: MlflowClient, version: ModelVersion) -> list[ModelVersion]:
    """Return all versions with the same weights, this one included.

    There may be several: new held-out pictures make a new version without training.
    """
    training = version.tags.get(TRAIN_KEY)
    if training is None:  # another program registered it: nothing is known of its training
        return [version]
    versions = client.search_model_versions(f"name = '{version.name}'")
    return [other for other in versions if other.tags.get(TRAIN_KEY) == training]


def make_champion(client: MlflowClient, version: ModelVersion, why: str) -> str:
    """Make the version champion, record the reason in its tag, and return that reason."""
    champions = [*(item for item in _champions(client, version.name) if item != number(version)), number(version)]
    for other in _of_same_training(client, version):
        if _ROLLED_BACK in other.tags:
            client.delete_model_version_tag(other.name, other.version, _ROLLED_BACK)
    client.set_model_version_tag(version.name, version.version, _DECISION, why)
    _set_champions(client, version.name, champions)
    challenger = version_with_alias(client, version.name, "challenger")
    if challenger is not None and number(challenger) == number(version):
        client.delete_registered_model_alias(version.name, "challenger")
    return why


def roll_back(client: MlflowClient, model: str) -> tuple[str, str]:
    """Restore the previous champion; return its version and the version that was rolled back.

    Raise AttendError where the model has no champion, or no earlier one.
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
    client.set_model_version_tag(model, dropped, _DECISION, f"rolled back to version {remaining[-1]}")
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
    existing = {number(version) for version in client.search_model_versions(f"name = '{model}'")}
    champions = [version for version in json.loads(registered.tags.get(CHAMPIONS, "[]")) if version in existing]
    champion = aliases.get("champion")
    if champion is None:
        return []
    if champion in champions:  # the alias decides, also where it was moved outside attend
        return champions[: champions.index(champion) + 1]
    return [*champions, champion]
