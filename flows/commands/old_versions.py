"""Registered versions that a policy no longer keeps, with the files and MLflow runs that only they need."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tasks.common.errors import AttendError
from tasks.grids.store import folder_size
from tasks.registry import tracking
from tasks.registry.versions import CHAMPIONS, address_of, files_of, number

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_DAY = 86_400


@dataclass(frozen=True)
class OldVersion:
    """A version to remove.

    runs: ids of the MLflow runs that no other version has. folders: what is removed from the disk. size: of that, in
    bytes.
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
    """Return the versions of the models that attend registered that are not to be kept, oldest first.

    Kept are those with an alias (champion, previous, challenger), the last `keep` of each model, and those younger than
    `days`. Raises AttendError where the store is not embedded in the workspace.
    """
    if not tracking.is_embedded():
        raise AttendError("--keep-versions: MLFLOW_TRACKING_URI names another store: remove versions there")
    client = tracking.connect(workspace, must_exist=True)
    youngest = (time.time() - days * _DAY) * 1000
    found = []
    for model in client.search_registered_models():
        registered = client.get_registered_model(model.name)
        if CHAMPIONS not in registered.tags:
            continue
        versions = sorted(client.search_model_versions(f"name = '{model.name}'"), key=lambda item: int(item.version))
        kept = {str(version) for version in registered.aliases.values()}
        kept |= {number(version) for version in versions[len(versions) - keep :]} if keep else set()
        kept |= {number(version) for version in versions if version.creation_timestamp > youngest}
        kept_runs = {version.run_id for version in versions if number(version) in kept}
        for version in versions:
            if number(version) not in kept:
                found.append(_with_files(client, version, kept_runs, workspace))
    return found


def _with_files(client: MlflowClient, version: ModelVersion, kept_runs: set[str | None], workspace: Path) -> OldVersion:
    """Return a version with the runs and folders that go with it. kept_runs: runs of versions that stay."""
    runs = [] if version.run_id in kept_runs or version.run_id is None else [version.run_id]
    run = client.get_run(str(version.run_id))
    tags = {tracking.EVALUATED_VERSION: address_of(version), **({tracking.PARENT_RUN: runs[0]} if runs else {})}
    for tag, value in tags.items():
        found = client.search_runs([run.info.experiment_id], f"tags.`{tag}` = '{value}'")
        runs += [item.info.run_id for item in found]
    files = files_of(client, version)
    folders = [*([] if files is None else [files.parent]), *_artifact_folders(client, runs)]
    # Of a copied workspace, MLflow's database names folders of the original: they are not this workspace's to remove.
    return OldVersion(version, runs, [folder for folder in folders if tracking.is_in_workspace(str(folder), workspace)])


def _artifact_folders(client: MlflowClient, runs: list[str]) -> Iterator[Path]:
    """Yield the folders of runs' artifacts."""
    for run_id in runs:
        yield Path(unquote(urlsplit(str(client.get_run(run_id).info.artifact_uri)).path)).parent


def remove_versions(workspace: Path, versions: list[OldVersion]) -> None:
    """Remove versions with their runs and files, the version first: what a kill leaves is removed the next time.

    The caller must be alone in the workspace.
    """
    if not versions:
        return
    client = tracking.connect(workspace, must_exist=True)
    for item in versions:
        client.delete_model_version(item.version.name, number(item.version))
        for run_id in item.runs:
            client.delete_run(run_id)
        client.delete_logged_model(str(item.version.source).removeprefix("models:/"))
        for folder in item.folders:
            shutil.rmtree(folder, ignore_errors=True)
