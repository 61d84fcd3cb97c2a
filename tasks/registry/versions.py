"""Registered versions: finding them by address or alias, and reading their scores and predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions
from tasks.evaluation.report import EarlierVersion
from tasks.evaluation.score_record import ScoreRecord
from tasks.registry import tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

EVALUATION = "attend.evaluation"  # tag of a version: the folder in its run with its predictions and scores
_EARLIER_LIMIT = 10  # versions listed in a report


def number(version: ModelVersion) -> str:
    """Return a version's number as text; some of MLflow's calls give it as text and some as an integer."""
    return str(version.version)


def address_of(version: ModelVersion) -> str:
    """Return the address of a version, `models:/NAME/VERSION`."""
    return f"models:/{version.name}/{version.version}"


def version_with_alias(client: MlflowClient, model: str, alias: str) -> ModelVersion | None:
    """Return the version of a model that has an alias; None where no version has it yet."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(model, alias)
    except MlflowException as error:
        # MLflow's stores differ in the code that they give for a missing alias and for a missing model.
        if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
            return None
        raise


def version_of_address(client: MlflowClient, address: str) -> ModelVersion:
    """Return the version at `models:/NAME@ALIAS` or `models:/NAME/VERSION`; AttendError where there is none."""
    from mlflow.exceptions import MlflowException

    path = address.removeprefix("models:/")
    name, separator, alias = path.partition("@")
    try:
        if separator:
            return client.get_model_version_by_alias(name, alias)
        name, _, version = path.partition("/")
        return client.get_model_version(name, version)
    except MlflowException as error:
        raise AttendError(f"{address}: no such model: {' '.join(str(error).split())[:160]}") from None


@dataclass(frozen=True)
class _Registered:
    """A registered model. champion: the version that is its champion; None where it has none."""

    name: str
    champion: str | None


def _registered_models(client: MlflowClient) -> list[_Registered]:
    """Return all registered models, the latest updated first."""
    models = client.search_registered_models(order_by=["last_updated_timestamp DESC"])
    return [
        _Registered(model.name, client.get_registered_model(model.name).aliases.get("champion")) for model in models
    ]


def earlier_versions(client: MlflowClient, model: str, scores: ScoreRecord) -> list[EarlierVersion]:
    """Return the latest versions of a model with their scores, newest first, at most 10.

    scores: the content of scores.json that they are to be listed with.
    """
    versions = client.search_model_versions(
        f"name = '{model}'", order_by=["version_number DESC"], max_results=_EARLIER_LIMIT
    )
    return [EarlierVersion(number(version), scores_of(version), _scored_alike(version, scores)) for version in versions]


def scores_of(version: ModelVersion) -> dict[str, float]:
    """Return the scores that a version had when it was registered, by name, in percent."""
    tags = version.tags.items()
    return {name.removeprefix("score."): float(value) for name, value in tags if name.startswith("score.")}


def _scored_alike(version: ModelVersion, scores: ScoreRecord) -> bool:
    """Return whether a version was scored on the same pictures with the same settings as `scores`."""
    return all(version.tags.get(f"attend.{name}") == scores[name] for name in ("data", "signature"))


def download_version_predictions(client: MlflowClient, version: ModelVersion, folder: Path) -> Path | None:
    """Download the predictions that a version was scored by into a folder, and return their path.

    Return None where the version's run does not have them.
    """
    evaluation = version.tags.get(EVALUATION)
    if evaluation is None:
        return None
    return download_predictions(client, str(version.run_id), folder, f"{evaluation}/{PREDICTIONS}")


def download_predictions(client: MlflowClient, run_id: str, folder: Path, artifact: str = PREDICTIONS) -> Path | None:
    """Download a run's predictions file into a folder, and return its path.

    artifact: the file's path in the run. Return None where the run has no such file, or one that cannot be read, such
    as a file without references, from an older version of attend.
    """
    from mlflow.exceptions import MlflowException

    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = Path(client.download_artifacts(run_id, artifact, str(folder)))
        read_predictions(path)
    except (MlflowException, OSError, AttendError):
        return None
    return path


def resolve(model: str | None, workspace: Path) -> str:
    """Return the address `models:/NAME/VERSION` of a model; AttendError where there is none.

    model: an address in MLflow's registry; None for the champion of the model that was updated last.
    """
    check_address(model)
    client = tracking.connect(workspace, must_exist=True)
    return address_of(version_of_address(client, model or last_champion(client, workspace)))


def check_address(model: str | None) -> None:
    """Raise AttendError where `model` is given and is not an address in MLflow's registry."""
    if model is not None and not model.startswith("models:/"):
        raise AttendError(f"--model: {model}: give an address, models:/NAME@ALIAS or models:/NAME/VERSION")


def last_champion(client: MlflowClient, workspace: Path) -> str:
    """Return `models:/NAME@champion` of the model updated last that has a champion; AttendError where none has one."""
    models = [model for model in _registered_models(client) if model.champion is not None]
    if not models:
        raise AttendError(
            f"{tracking.shown_tracking_uri(workspace)}: no champion is registered yet: run `attend run` first"
        )
    address = f"models:/{models[0].name}@champion"
    log.info(f"model: {address}")
    return address
