"""The MLflow runs of trainings and evaluations.

Each trained model has one run, identified by the model's stage key: a resumed or repeated training logs to the same
run. An evaluation has a run below it.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from tasks.common.errors import AttendError, reason_of
from tasks.common.files import write_atomically
from tasks.common.log import log
from tasks.evaluation.score_record import ScoreRecord
from tasks.mlflow_store.lineage import log_pictures, source_tags
from tasks.mlflow_store.tracking import (
    connect,
    flush_location,
    is_embedded,
    local_folder,
    shown_tracking_uri,
    tracking_uri,
)
from tasks.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Dataset, Experiment
    from mlflow.entities.model_registry import ModelVersion

TRAIN_KEY = "attend.train_key"
CHECKPOINTS = "checkpoints"  # folder of a training's run: its weights
_EPOCHS = "attend.epochs"
_PARAMS_PER_REQUEST = 100  # MLflow's maximum
_EVALUATION = "attend.evaluation"
PARENT_RUN = "mlflow.parentRunId"  # MLflow's own tag: its pages show the run below its parent
EVALUATED_VERSION = "attend.version"  # tag of an evaluation's run: the address of the scored version


def get_or_create_experiment(client: MlflowClient, workspace: Path, name: str) -> str:
    """Return the id of the experiment with this name; create it if there is none.

    If the workspace was moved, an experiment whose files are in the old folder is renamed, and a new one is created.
    """
    with Workspace(workspace).lock("mlflow-store", "the MLflow store"):
        experiment = client.get_experiment_by_name(name)
        embedded = tracking_uri(workspace).startswith("sqlite:")
        location = (workspace / "mlartifacts" / name).absolute() if embedded else None
        if experiment is not None:
            _require_active(experiment, workspace)
            earlier = local_folder(str(experiment.artifact_location))
            is_here = location is None or earlier is None or earlier.resolve() == location.resolve()
            if is_here or not is_embedded():
                return str(experiment.experiment_id)
            # The workspace was moved or copied. MLflow would continue to write to the old folder.
            client.rename_experiment(experiment.experiment_id, f"{name} (files in {earlier})")
        return str(client.create_experiment(name, artifact_location=None if location is None else location.as_uri()))


def check_experiment(workspace: Path, name: str) -> None:
    """Raise AttendError if the experiment with this name is deleted: MLflow neither logs to it nor creates another."""
    experiment = connect(workspace).get_experiment_by_name(name)
    if experiment is not None:
        _require_active(experiment, workspace)


def _require_active(experiment: Experiment, workspace: Path) -> None:
    if experiment.lifecycle_stage != "active":
        number, store = experiment.experiment_id, shown_tracking_uri(workspace)
        raise AttendError(
            f"MLflow's experiment {experiment.name!r} (id {number}) in {store} is deleted: restore it with "
            f"`MLFLOW_TRACKING_URI={store} mlflow experiments restore --experiment-id {number}`, or set registry.model "
            "to another name"
        )


class TrainingLog:
    """The log of one trained model in its MLflow run. No epoch is logged twice."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.client, self.run_id = client, run_id

    def epoch(self, row: dict[str, float], best: Path | None = None) -> None:
        """Log a row of the training history, unless its epoch is already logged.

        best: the file of the epoch's weights, which are logged too; None if an earlier epoch has better ones.
        """
        epoch = int(row["epoch"])
        if epoch <= int(self.client.get_run(self.run_id).data.tags.get(_EPOCHS, -1)):
            return
        scores = {name: value for name, value in row.items() if name != "epoch" and not math.isnan(value)}
        log_scores(self.client, self.run_id, scores, epoch)
        self.client.set_tag(self.run_id, _EPOCHS, str(epoch))
        if best is not None:
            from tasks.training.outputs import WEIGHTS  # loads torch

            with tempfile.TemporaryDirectory(prefix="attend-weights-") as folder:
                named = Path(folder) / WEIGHTS  # the artifact gets its file's name
                named.symlink_to(best)
                self.client.log_artifact(self.run_id, str(named), CHECKPOINTS)

    def try_log_epoch(self, row: dict[str, float], best: Path | None) -> None:
        """Log a row like `epoch`, but do not stop the training if MLflow fails: `register` logs the row later."""
        try:
            self.epoch(row, best)
        except Exception as error:  # from MLflow, the file system, and the libraries that upload files
            reason = reason_of(error)
            log.warning(f"MLflow did not accept epoch {row['epoch']:.0f} ({reason}): `register` will log it later")


@contextlib.contextmanager
def training_log(workspace: Path, model: str, train_key: str, params: dict[str, Any]) -> Iterator[TrainingLog]:
    """Open the run of the model with this train key, resumed or new; its status records how the block ended.

    If the process is killed, its note stays, and `close_dead_runs` ends the run later.
    """
    client = connect(workspace)
    experiment = get_or_create_experiment(client, workspace, model)
    with _exclusive_run(workspace, experiment, TRAIN_KEY, train_key):
        run_id = _resume_or_create(client, experiment, train_key, model, params)
        with _terminated(client, run_id):
            yield TrainingLog(client, run_id)


@contextlib.contextmanager
def _exclusive_run(workspace: Path, experiment: str, tag: str, key: str) -> Iterator[None]:
    """Hold the lock of the run whose tag has this value, so that only one process at a time logs to it.

    A note about the run exists during the block, and stays if the block fails.
    """
    with Workspace(workspace).lock(f"mlflow-{key[:20]}", f"MLflow run {key[:8]}"):
        note = _notes_folder(workspace) / f"{key[:20]}.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        content = {"tag": tag, "key": key, "experiment": experiment, "uri": shown_tracking_uri(workspace)}
        write_atomically(note, json.dumps(content))
        yield
        note.unlink(missing_ok=True)


@contextlib.contextmanager
def _terminated(client: MlflowClient, run_id: str) -> Iterator[None]:
    """End a run after the block, with the status FINISHED, FAILED (an exception) or KILLED (an interruption)."""
    status = "KILLED"
    try:
        yield
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        client.set_terminated(run_id, status)


def _resume_or_create(client: MlflowClient, experiment: str, train_key: str, model: str, params: dict[str, Any]) -> str:
    """Return the id of the run with this train key, resumed or new, with its parameters logged."""
    from mlflow.entities import Param

    runs = client.search_runs([experiment], f"tags.`{TRAIN_KEY}` = '{train_key}'", max_results=1)
    if runs:
        run_id = str(runs[0].info.run_id)
        client.update_run(run_id, status="RUNNING")
    else:
        tags = {TRAIN_KEY: train_key, **source_tags()}
        run = client.create_run(experiment, tags=tags, run_name=f"{model}-{train_key[:8]}")
        run_id = str(run.info.run_id)
    logged = client.get_run(run_id).data.params  # a killed run may have logged some of them
    new = [Param(key, str(value)) for key, value in params.items() if key not in logged]
    for start in range(0, len(new), _PARAMS_PER_REQUEST):
        client.log_batch(run_id, params=new[start : start + _PARAMS_PER_REQUEST])
    return run_id


def log_scores(
    client: MlflowClient,
    run_id: str,
    scores: Mapping[str, float],
    step: int = 0,
    model_id: str | None = None,
    pictures: Dataset | None = None,
) -> None:
    """Log scores as metrics of one step, all in one request.

    model_id, pictures: the logged model and the scored pictures, by which MLflow compares models.
    """
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    data, digest = (None, None) if pictures is None else (pictures.name, pictures.digest)
    metrics = [Metric(name, value, now, step, model_id, data, digest, run_id) for name, value in scores.items()]
    client.log_batch(run_id, metrics=metrics)


def dev_scores(client: MlflowClient, version: ModelVersion, names: Iterable[str]) -> dict[str, list[tuple[int, float]]]:
    """Return name of a dev score -> its (epoch, value) pairs, from the training of a version."""
    if version.run_id is None:
        return {}
    run_id = str(version.run_id)
    return {name: sorted((item.step, item.value) for item in client.get_metric_history(run_id, name)) for name in names}


def flush_run(client: MlflowClient, run_id: str) -> None:
    """Flush a run's files to the disk if they are on this machine, because MLflow does not."""
    flush_location(str(client.get_run(run_id).info.artifact_uri))


def find_evaluation_run(client: MlflowClient, workspace: Path, model: str, key: str) -> str | None:
    """Return the id of the finished run of `log_evaluation` with this key; None if there is none."""
    experiment = get_or_create_experiment(client, workspace, model)
    query = f"tags.`{_EVALUATION}` = '{key}' and attributes.status = 'FINISHED'"
    runs = client.search_runs([experiment], query, max_results=1)
    return str(runs[0].info.run_id) if runs else None


def log_evaluation(
    client: MlflowClient,
    workspace: Path,
    version: ModelVersion,
    key: str,
    scores: ScoreRecord,
    folder: str,
    model_id: str | None,
    pictures: Dataset,
) -> str:
    """Log the scores of a registered version, and the files that they were computed from, in a new run; return its id.

    The run is a child of the training's. key: the digest by which `find_evaluation_run` finds it. scores: the content
    of scores.json. folder: the folder that contains the files. model_id: of the version's logged model, if any.
    pictures: the captioned ones.
    """
    experiment = get_or_create_experiment(client, workspace, version.name)
    name = f"{version.name} version {version.version} scored"
    address = f"models:/{version.name}/{version.version}"
    tags = {_EVALUATION: key, EVALUATED_VERSION: address, "attend.signature": scores["signature"], **source_tags()}
    if version.run_id is not None:
        tags[PARENT_RUN] = str(version.run_id)
    with _exclusive_run(workspace, experiment, _EVALUATION, key):
        run_id = client.create_run(experiment, tags=tags, run_name=name).info.run_id
        with _terminated(client, run_id):
            log_pictures(client, run_id, pictures, "evaluation")
            log_scores(client, run_id, scores["scores"], model_id=model_id, pictures=pictures)
            client.log_artifacts(run_id, folder)
            flush_run(client, run_id)
    return str(run_id)


def close_dead_runs(workspace: Path) -> None:
    """Set the status of MLflow runs whose process was killed to KILLED, until they are resumed."""
    for note in sorted(_notes_folder(workspace).glob("*.json")):
        lock = Workspace(workspace).root / "locks" / f"mlflow-{note.stem}.lock"
        with contextlib.suppress(filelock.Timeout, FileNotFoundError), filelock.FileLock(lock, timeout=0):
            content = json.loads(note.read_text(encoding="utf-8"))
            if content["uri"] != shown_tracking_uri(workspace):
                continue  # left to a process that uses that store
            client = connect(workspace)
            query = f"tags.`{content['tag']}` = '{content['key']}' and attributes.status = 'RUNNING'"
            for run in client.search_runs([content["experiment"]], query):
                client.set_terminated(run.info.run_id, "KILLED")
                log.warning(f"MLflow run {run.info.run_name}: was cut off; its status is KILLED until it is resumed")
            note.unlink(missing_ok=True)


def _notes_folder(workspace: Path) -> Path:
    """Return the folder of the notes about runs that have not ended."""
    return workspace / "runs" / "mlflow"
