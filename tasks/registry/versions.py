"""Registered versions: found by address or alias, and what they were scored on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.common.errors import AttendError
from tasks.common.progress import say
from tasks.evaluation.predictions import PREDICTIONS, read_predictions
from tasks.evaluation.report import Earlier
from tasks.registry import tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

EVALUATION = "attend.evaluation"  # tag of a version: the folder of its run with what it was scored by
_EARLIER = 10


def number(version: ModelVersion) -> str:
    """A version's number, which some of MLflow's calls give as a text and some as an integer."""
    return str(version.version)


def address_of(version: ModelVersion) -> str:
    """`models:/NAME/VERSION`."""
    return f"models:/{version.name}/{version.version}"


def version_with_alias(client: MlflowClient, model: str, alias: str) -> ModelVersion | None:
    """The version that bears an alias; None where there is none yet."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(model, alias)
    except MlflowException as error:
        # A missing alias and a missing model are told apart by code, and differently by different stores.
        if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
            return None
        raise


def version_at(client: MlflowClient, address: str) -> ModelVersion:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names; AttendError where there is none."""
    from mlflow.exceptions import MlflowException

    path = address.removeprefix("models:/")
    name, at, alias = path.partition("@")
    try:
        if at:
            return client.get_model_version_by_alias(name, alias)
        name, _, version = path.partition("/")
        return client.get_model_version(name, version)
    except MlflowException as error:
        raise AttendError(f"{address}: no such model: {' '.join(str(error).split())[:160]}") from None


@dataclass(frozen=True)
class Registered:
    """A registered model and who its champion is."""

    name: str
    champion: str | None


def registered_models(client: MlflowClient) -> list[Registered]:
    """The registered models, newest first."""
    found = client.search_registered_models(order_by=["last_updated_timestamp DESC"])
    return [Registered(model.name, client.get_registered_model(model.name).aliases.get("champion")) for model in found]


def earlier_versions(client: MlflowClient, model: str, scores: dict[str, Any]) -> list[Earlier]:
    """The latest versions of a model beside `scores` (of scores.json), newest first."""
    found = client.search_model_versions(f"name = '{model}'", order_by=["version_number DESC"], max_results=_EARLIER)
    return [Earlier(str(version.version), scores_of(version), scored_alike(version, scores)) for version in found]


def scores_of(version: ModelVersion) -> dict[str, float]:
    """What it scored when it was registered."""
    tags = version.tags.items()
    return {name.removeprefix("score."): float(value) for name, value in tags if name.startswith("score.")}


def scored_alike(version: ModelVersion, scores: dict[str, Any]) -> bool:
    """Whether a version was scored on the same pictures with the same settings."""
    return all(version.tags.get(f"attend.{name}") == scores[name] for name in ("data", "signature"))


def version_predictions(client: MlflowClient, version: ModelVersion, folder: Path) -> Path | None:
    """The captions that a version was scored by, as its run keeps them; None where it does not."""
    place = version.tags.get(EVALUATION)
    return None if place is None else kept_predictions(client, str(version.run_id), folder, f"{place}/{PREDICTIONS}")


def kept_predictions(client: MlflowClient, run_id: str, folder: Path, place: str = PREDICTIONS) -> Path | None:
    """The predictions file that a run keeps; None where it has none, or one of a version that kept no references."""
    from mlflow.exceptions import MlflowException

    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = Path(client.download_artifacts(run_id, place, str(folder)))
        read_predictions(path)
    except (MlflowException, OSError, AttendError):
        return None
    return path


def resolve(model: str | None, workspace: Path) -> str:
    """`models:/NAME/VERSION` of an address; None for the champion registered last. AttendError where there is none."""
    check_address(model)
    client = tracking.connect(workspace, must_exist=True)
    return address_of(version_at(client, model or last_champion(client, workspace)))


def check_address(model: str | None) -> None:
    """AttendError where it is none of MLflow's registry."""
    if model is not None and not model.startswith("models:/"):
        raise AttendError(f"--model: {model}: an address reads models:/NAME@ALIAS or models:/NAME/VERSION")


def last_champion(client: MlflowClient, workspace: Path) -> str:
    """`models:/NAME@champion` of the model registered last that has one; AttendError where none has."""
    found = [item for item in registered_models(client) if item.champion is not None]
    if not found:
        raise AttendError(f"{tracking.store_of(workspace)}: no champion is registered yet: run `attend run` first")
    address = f"models:/{found[0].name}@champion"
    say(f"model: {address}")
    return address
