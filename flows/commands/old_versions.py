"""Registered versions that a retention policy does not keep, with the files and MLflow runs that only they need."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.common.files import remove_folder
from tasks.grids.store import folder_size
from tasks.mlflow_store import tracking
from tasks.mlflow_store.runs import EVALUATED_VERSION, PARENT_RUN
from tasks.mlflow_store.versions import (
    CHAMPIONS,
    address_of,
    files_of,
    logged_model_of,
    number,
    registered_models,
    versions_of,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_DAY = 86_400


@dataclass(frozen=True)
class OldVersion:
    """A version to remove.

    runs: ids of the MLflow runs that no other version has. folders: the folders to remove. size: their size in bytes.
    """

    version: ModelVersion
    runs: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    @property
    def address(self) -> str:
        return address_of(self.version)

    @property
    def size(self) -> int:
        return sum(folder_size(folder) for folder in self.folders)


def old_versions(workspace: Path, keep: int, days: float) -> list[OldVersion]:
    """Return the versions of models registered by attend that need not be kept, oldest first.

    Versions with an alias (champion, previous, challenger), the last `keep` of each model, and those younger than
    `days` are kept. Raises AttendError if the store is not embedded in the workspace.
    """
    if not tracking.is_embedded():
        raise AttendError("--keep-versions: MLFLOW_TRACKING_URI names another store: remove versions there")
    client = tracking.connect(workspace, must_exist=True)
    youngest = (time.time() - days * _DAY) * 1000
    recent: list[ModelVersion] = []
    old: list[ModelVersion] = []
    for model in registered_models(client):
        registered = client.get_registered_model(model.name)
        versions = versions_of(client, model.name)[::-1]
        last = versions[max(len(versions) - keep, 0) :]
        aliased = {str(version) for version in registered.aliases.values()}
        for version in versions:
            stays = number(version) in aliased or version in last or version.creation_timestamp > youngest
            (recent if stays or CHAMPIONS not in registered.tags else old).append(version)
    # A version may be copied to another model, which then shares its runs and files.
    models = {logged_model_of(client, version) for version in recent}
    runs = {version.run_id for version in recent}
    free = [version for version in old if logged_model_of(client, version) not in models]
    return [_with_files(client, version, runs, workspace) for version in free if version.run_id is not None]


def _with_files(client: MlflowClient, version: ModelVersion, kept_runs: set[str | None], workspace: Path) -> OldVersion:
    """Return a version with the runs and folders to remove with it. kept_runs: runs of versions that stay."""
    from mlflow.exceptions import MlflowException

    training = str(version.run_id)
    try:
        experiment = client.get_run(training).info.experiment_id
    except MlflowException:  # it was removed with `mlflow gc`
        return OldVersion(version, [], [])
    runs = [] if training in kept_runs else [training]
    tags = {EVALUATED_VERSION: address_of(version), **({PARENT_RUN: training} if runs else {})}
    for tag, value in tags.items():
        runs += [item.info.run_id for item in client.search_runs([experiment], f"tags.`{tag}` = '{value}'")]
    files = files_of(client, version)
    locations = [tracking.local_folder(str(client.get_run(run_id).info.artifact_uri)) for run_id in runs]
    folders = [folder.parent for folder in (files, *locations) if folder is not None]
    # In a copied workspace, MLflow's database names folders of the original, which must not be removed.
    return OldVersion(version, runs, [folder for folder in folders if tracking.is_in_workspace(str(folder), workspace)])


def remove_versions(workspace: Path, versions: list[OldVersion]) -> None:
    """Remove versions with their runs and files, the version last, so that the next call completes a killed one.

    The caller must be alone in the workspace.
    """
    client = tracking.connect(workspace, must_exist=True)
    for item in versions:
        for folder in item.folders:
            remove_folder(folder)
        for run_id in item.runs:
            if client.get_run(run_id).info.lifecycle_stage != "deleted":
                client.delete_run(run_id)
        model_id = logged_model_of(client, item.version)
        if model_id is not None:
            client.delete_logged_model(model_id)
        client.delete_model_version(item.version.name, number(item.version))
