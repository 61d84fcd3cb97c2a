"""MLflow's store: which one it is, whether it answers, and the run that a trained model is logged to.

One run for each trained model, found again by its stage key: a resumed or repeated run logs into the same one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import filelock

from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.object_storage import Remote
from tasks.common.progress import say
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

TRAIN_KEY = "attend.train_key"
_EPOCHS = "attend.epochs"
_AT_ONCE = 100  # parameters that MLflow takes in a request
_EVALUATION = "attend.evaluation"
MLFLOW_UI = "ATTEND_MLFLOW_UI"  # where the pages of an embedded store are, if a server shows them


def tracking_uri(workspace: Path) -> str:
    """MLFLOW_TRACKING_URI where it is set, else an sqlite store embedded in the workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{workspace}/mlflow.db"


def store_of(workspace: Path) -> str:
    """`tracking_uri`, to be shown and kept."""
    return without_credentials(tracking_uri(workspace))


def store_digests() -> dict[str, str]:
    """What a registration depends on beside its model: the store it is in (credentials left out)."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if not given:
        return {"MLflow store": "embedded"}
    return {"MLflow store": without_credentials(given)}


def without_credentials(uri: str) -> str:
    """A store's address, to be shown."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def lost_registration(artifact: Artifact, workspace: Workspace) -> str | None:
    """What is wrong where the embedded store does not hold the version that `register` made; None if it does."""
    told = json.loads((artifact.path / "registration.json").read_text(encoding="utf-8"))
    database = workspace.root / "mlflow.db"
    if not told["store"].startswith("sqlite:") or os.environ.get("MLFLOW_TRACKING_URI"):
        return None  # a server's to say, when it is asked
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            # A version that was deleted stays as a row, in a stage of that name.
            query = (
                "select 1 from model_versions where name = ? and version = ? and current_stage != 'Deleted_Internal'"
            )
            found = connection.execute(query, (told["model"], int(told["version"]))).fetchone()
    except sqlite3.Error:
        found = None
    return None if found else f"{told['uri']} is not in {database.name} any more"


def registered_as(artifact: Artifact) -> str:
    """`models:/NAME/VERSION` of what `register` made."""
    return str(json.loads((artifact.path / "registration.json").read_text(encoding="utf-8"))["uri"])


def check_store(workspace: Path, must_exist: bool = False) -> None:
    """Refuse, before any work, a server that does not answer within 5 s; a store that must be there and is not."""
    uri = tracking_uri(workspace)
    if uri.startswith(("http://", "https://")):
        _check_server(uri)
    elif Remote.of(workspace) is not None:
        raise AttendError(
            f"{workspace}: is the cache of a workspace in object storage, where no MLflow store can be: "
            "set MLFLOW_TRACKING_URI to that of a server"
        )
    elif not os.environ.get("MLFLOW_TRACKING_URI") and set(str(workspace)) & {"?", "%"}:
        raise AttendError(
            f"{workspace}: MLflow keeps no models below a path with ? or %: give another with machine.workspace=FOLDER"
        )
    elif must_exist and uri.startswith("sqlite:") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise AttendError(f"{workspace}: no model is registered there: run `attend run` first, or give --workspace")


def connect(workspace: Path, must_exist: bool = False) -> MlflowClient:
    """MLflow's client on the right store, which is made if it is the embedded one and not there yet.

    must_exist: AttendError where it is not there.
    """
    check_store(workspace, must_exist)
    uri = tracking_uri(workspace)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    warnings.filterwarnings("ignore", module="mlflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it raises what it logs
    given = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    for name, value in given.items():
        # MLflow writes the address into the environment, where it would pass for one the user gave.
        if value is None:
            os.environ.pop(name, None)
    client = mlflow.MlflowClient()
    # Two processes that make the embedded database at the same moment break each other's migrations.
    with Workspace(workspace).lock("mlflow-store", "the MLflow store"):
        client.search_experiments(max_results=1)
    return client


def _check_server(uri: str) -> None:
    shown = without_credentials(uri).rstrip("/")
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5).close()
    except urllib.error.HTTPError:
        pass  # it answers; whether it lets us in is for the calls to come
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise AttendError(
            f"MLFLOW_TRACKING_URI: the MLflow server {shown} does not answer ({reason}): start it, or unset the "
            "variable to use the store in the workspace"
        ) from None


def run_page(store: str, run_id: str) -> str | None:
    """The address of a run's page; None for an embedded store that no server shows."""
    page = store if store.startswith(("http://", "https://")) else os.environ.get(MLFLOW_UI)
    return f"{without_credentials(page).rstrip('/')}/#/runs/{run_id}" if page else None


def experiment_of(client: MlflowClient, workspace: Path, name: str) -> str:
    with Workspace(workspace).lock("mlflow-store", "the MLflow store"):
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        embedded = tracking_uri(workspace).startswith("sqlite:")
        location = (workspace / "mlartifacts" / name).as_uri() if embedded else None
        return str(client.create_experiment(name, artifact_location=location))


class TrainingLog:
    """The MLflow run of one trained model. Epochs logged already are not logged twice."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.client, self.run_id = client, run_id

    def epoch(self, row: dict[str, float]) -> None:
        """Log a row of the training history."""
        number = int(row["epoch"])
        if number <= int(self.client.get_run(self.run_id).data.tags.get(_EPOCHS, 0)):
            return
        log_scores(self.client, self.run_id, {name: row[name] for name in row if name != "epoch"}, number)
        self.client.set_tag(self.run_id, _EPOCHS, str(number))

    def epoch_if_it_answers(self, row: dict[str, float]) -> None:
        """The same while training goes on, which a store out of reach must not stop: `register` logs the row again."""
        from mlflow.exceptions import MlflowException

        try:
            self.epoch(row)
        except MlflowException as error:
            say(f"MLflow did not take epoch {row['epoch']:.0f} ({' '.join(str(error).split())[:120]}); later")


@contextlib.contextmanager
def training_log(workspace: Path, model: str, train_key: str, params: dict[str, Any]) -> Iterator[TrainingLog]:
    """The run of the model with this train key, taken up again or made; its status says how the block ended.

    Where the process is killed, its note stays, and `close_dead_runs` ends the run in its stead.
    """
    client = connect(workspace)
    experiment = experiment_of(client, workspace, model)
    with _until_ended(workspace, experiment, TRAIN_KEY, train_key):
        run_id = _run_of(client, experiment, train_key, model, params)
        with _ending(client, run_id):
            yield TrainingLog(client, run_id)


@contextlib.contextmanager
def _until_ended(workspace: Path, experiment: str, tag: str, key: str) -> Iterator[None]:
    """One process at a time has the run whose tag has this value; a note of it stays if the block does not end well."""
    with Workspace(workspace).lock(f"mlflow-{key[:20]}", f"MLflow run {key[:8]}"):
        note = _notes(workspace) / f"{key[:20]}.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        told = {"tag": tag, "key": key, "experiment": experiment, "uri": store_of(workspace)}
        write_atomically(note, json.dumps(told))
        yield
        note.unlink(missing_ok=True)


@contextlib.contextmanager
def _ending(client: MlflowClient, run_id: str) -> Iterator[None]:
    """The run's status says how the block ended."""
    status = "KILLED"
    try:
        yield
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        client.set_terminated(run_id, status)


def _run_of(client: MlflowClient, experiment: str, train_key: str, model: str, params: dict[str, Any]) -> str:
    """The id of the run with this key, taken up again or made."""
    from mlflow.entities import Param

    found = client.search_runs([experiment], f"tags.`{TRAIN_KEY}` = '{train_key}'", max_results=1)
    if found:
        run_id = str(found[0].info.run_id)
        client.update_run(run_id, status="RUNNING")
    else:
        run = client.create_run(experiment, tags={TRAIN_KEY: train_key}, run_name=f"{model}-{train_key[:8]}")
        run_id = str(run.info.run_id)
    logged = client.get_run(run_id).data.params  # a run killed meanwhile logged some of them
    new = [Param(key, str(value)) for key, value in params.items() if key not in logged]
    for at in range(0, len(new), _AT_ONCE):
        client.log_batch(run_id, params=new[at : at + _AT_ONCE])
    return run_id


def log_scores(client: MlflowClient, run_id: str, scores: Mapping[str, float], step: int = 0) -> None:
    """Log metrics of one step, all in one request."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    client.log_batch(run_id, metrics=[Metric(name, value, now, step) for name, value in scores.items()])


def evaluation_with(client: MlflowClient, workspace: Path, model: str, key: str) -> str | None:
    """The run in which `log_evaluation` kept the files of this key; None where there is none."""
    experiment = experiment_of(client, workspace, model)
    query = f"tags.`{_EVALUATION}` = '{key}' and attributes.status = 'FINISHED'"
    found = client.search_runs([experiment], query, max_results=1)
    return str(found[0].info.run_id) if found else None


def log_evaluation(
    client: MlflowClient, workspace: Path, model: str, name: str, key: str, told: dict[str, Any], files: str
) -> str:
    """Keep the scores of a registered model and the files they were taken from in a run of their own; its id."""
    experiment = experiment_of(client, workspace, model)
    tags = {_EVALUATION: key, "attend.signature": told["signature"]}
    with _until_ended(workspace, experiment, _EVALUATION, key):
        run_id = client.create_run(experiment, tags=tags, run_name=name).info.run_id
        with _ending(client, run_id):
            log_scores(client, run_id, told["scores"])
            client.log_artifacts(run_id, files)
    return str(run_id)


def close_dead_runs(workspace: Path) -> None:
    """Give the MLflow runs whose process was killed the status KILLED; resumed, they run again."""
    for note in sorted(_notes(workspace).glob("*.json")):
        lock = Workspace(workspace).root / "locks" / f"mlflow-{note.stem}.lock"
        with contextlib.suppress(filelock.Timeout, FileNotFoundError), filelock.FileLock(lock, timeout=0):
            told = json.loads(note.read_text(encoding="utf-8"))
            if told["uri"] != store_of(workspace):
                continue  # for a run that has that store
            client = connect(workspace)
            query = f"tags.`{told['tag']}` = '{told['key']}' and attributes.status = 'RUNNING'"
            for run in client.search_runs([told["experiment"]], query):
                client.set_terminated(run.info.run_id, "KILLED")
                say(f"MLflow run {run.info.run_name}: was cut off; its status is KILLED until it is resumed")
            note.unlink(missing_ok=True)


def _notes(workspace: Path) -> Path:
    return workspace / "runs" / "mlflow"


def mlflow_ui(workspace: Path, port: int) -> None:
    """Run MLflow's own server on the workspace's store until it is stopped."""
    if tracking_uri(workspace).startswith(("http://", "https://")):
        raise AttendError(
            f"MLFLOW_TRACKING_URI names a server: its page is at {without_credentials(tracking_uri(workspace))}"
        )
    check_store(workspace, must_exist=True)
    command = ui_command(workspace, port)
    os.execve(command[0], command, ui_environment())


def ui_command(workspace: Path, port: int) -> list[str]:
    """The command that shows an embedded store at a port of this machine."""
    program = Path(sys.executable).with_name("mlflow")
    if not program.exists():
        raise AttendError(
            f"{program}: MLflow's program is not beside this Python: install `mlflow` in this environment"
        )
    arguments = ["server", "--backend-store-uri", tracking_uri(workspace), "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--artifacts-destination", (workspace / "mlartifacts").as_uri(), "--workers", "1"]
    return [str(program), *arguments]


def ui_environment() -> dict[str, str]:
    """The environment to run `ui_command` in."""
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return environment
