"""Traces of photographs in MLflow's store: versions of models, their runs, and runs without a version."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.files import remove_folder
from tasks.mlflow_store import tracking
from tasks.mlflow_store.embedded_store import DATABASE
from tasks.mlflow_store.version_pictures import of_run
from tasks.mlflow_store.versions import EVALUATION, address_of, logged_model_of, registered_models, versions_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

_STARTS = ("training.start_from", "decoder.start_from")  # parameters of a run that started from a captioner


@dataclass(frozen=True)
class TracedVersion:
    """A version of a registered model. role: how it used the photographs; empty if it did not."""

    version: ModelVersion
    aliases: tuple[str, ...]
    role: str

    @property
    def evaluation(self) -> str:
        """Return the folder of its evaluation in its run."""
        return str(self.version.tags.get(EVALUATION, ""))

    def __str__(self) -> str:
        return ", ".join([address_of(self.version), *self.aliases, self.role])


@dataclass(frozen=True)
class StoredTraces:
    """The traces of photographs in a workspace's MLflow store; empty if it has no store.

    versions: to remove. runs: to remove. evaluations: folders to remove, of runs that stay. kept: versions that stay
    although they used the photographs. started: addresses of other versions that started from a captioner.
    """

    versions: list[TracedVersion] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    evaluations: list[Path] = field(default_factory=list)
    kept: list[TracedVersion] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, workspace: Path, digests: Collection[str], all_versions: bool) -> StoredTraces:
        """Return the traces of photographs in the store. A version whose files another version needs is kept."""
        if not tracking.is_embedded() or not (workspace / DATABASE).exists():
            return cls()
        client = tracking.connect(workspace, must_exist=True)
        runs = _runs_with(client, workspace, digests)
        versions = list(_versions(client, runs))
        removed = [item for item in versions if item.role and (all_versions or not item.aliases)]
        remaining = [item for item in versions if item not in removed]
        needed = {logged_model_of(client, item.version) for item in remaining} - {None}
        removed = [item for item in removed if logged_model_of(client, item.version) not in needed]
        staying = [item for item in versions if item not in removed]
        used = {(str(item.version.run_id), item.evaluation) for item in staying}
        used_runs = {run_id for run_id, _ in used}
        whole = [run for run_id, (run, _) in runs.items() if run_id not in used_runs]
        parts = [
            _files_of(run) / evaluation
            for run_id, (run, evaluations) in runs.items()
            for evaluation in evaluations
            if run_id in used_runs and (run_id, evaluation) not in used
        ]
        kept = [item for item in staying if item.role]
        started = [address_of(item.version) for item in staying if not item.role and _is_started(client, item.version)]
        return cls(removed, whole, parts, kept, started)


def _versions(client: MlflowClient, runs: Mapping[str, tuple[Run, dict[str, str]]]) -> Iterator[TracedVersion]:
    """Yield all versions of all models. runs: those with a photograph, see `_runs_with`."""
    for model in registered_models(client):
        aliases = client.get_registered_model(model.name).aliases
        for version in versions_of(client, model.name):
            version_aliases = tuple(alias for alias, number in aliases.items() if str(number) == str(version.version))
            _, evaluations = runs.get(str(version.run_id), (None, {}))
            yield TracedVersion(version, version_aliases, evaluations.get(str(version.tags.get(EVALUATION)), ""))


def _is_started(client: MlflowClient, version: ModelVersion) -> bool:
    """Return whether a version's training started from a captioner."""
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):
        params = client.get_run(str(version.run_id)).data.params
        return any(name in params for name in _STARTS)
    return False


def _runs_with(
    client: MlflowClient, workspace: Path, digests: Collection[str]
) -> dict[str, tuple[Run, dict[str, str]]]:
    """Return run id -> run and its evaluations with their roles, for runs and evaluations with a photograph."""
    traced = {}
    experiments = [item.experiment_id for item in client.search_experiments()]
    token: str | None = None
    while True:
        page = client.search_runs(experiments, max_results=1000, page_token=token)
        for run in page:
            folder = _files_of(run)
            if tracking.is_in_workspace(str(folder), workspace) and has_table(folder, digests):
                parts = [path for path in folder.iterdir() if path.is_dir() and has_table(path, digests)]
                traced[run.info.run_id] = (run, {path.name: _role(path, digests) for path in parts})
        token = page.token
        if not token:
            return traced


def _role(evaluation: Path, digests: Collection[str]) -> str:
    pictures = of_run(evaluation)
    return f"{'trained' if pictures is not None and pictures.train.keys() & set(digests) else 'scored'} on it"


def _files_of(run: Run) -> Path:
    return tracking.local_folder(str(run.info.artifact_uri)) or Path("/nonexistent")


def remove_stored(workspace: Path, traces: StoredTraces) -> None:
    """Remove versions, then their logged models, then their runs, whose files record the pictures used."""
    if not (traces.versions or traces.runs or traces.evaluations):
        return
    client = tracking.connect(workspace, must_exist=True)
    for item in traces.versions:
        model_id = logged_model_of(client, item.version)
        client.delete_model_version(item.version.name, str(item.version.version))
        if model_id is not None:
            _remove_model(client, model_id, workspace)
    for run in traces.runs:
        models = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
        for model in models:
            _remove_model(client, model.model_id, workspace)
        remove_folder(_files_of(run))
        client.delete_run(run.info.run_id)
    for folder in traces.evaluations:
        remove_folder(folder)


def _remove_model(client: MlflowClient, model_id: str, workspace: Path) -> None:
    """Remove a logged model with its files."""
    location: Any = client.get_logged_model(model_id).artifact_location
    folder = tracking.local_folder(str(location))
    if folder is not None and folder.exists() and tracking.is_in_workspace(str(folder), workspace):
        remove_folder(folder)
    client.delete_logged_model(model_id)


def has_cell(path: Path, digests: Collection[str]) -> bool:
    """Return whether a text column of a Parquet file has one of these values."""
    try:
        columns = [field.name for field in pq.read_schema(path) if pa.types.is_string(field.type)]
        table = pq.read_table(path, columns=columns)
    except (pa.ArrowException, OSError):  # damaged, or not written by this program
        return False
    return any(not set(digests).isdisjoint(column.unique().to_pylist()) for column in table.columns)


def has_table(folder: Path, digests: Collection[str]) -> bool:
    return any(has_cell(path, digests) for path in folder.rglob("*.parquet"))
