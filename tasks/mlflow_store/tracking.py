"""MLflow's store: its address, whether it answers, and whether it has the registered versions."""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import os
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tasks.common.errors import AttendError, reason_of
from tasks.common.files import flush_all
from tasks.common.object_storage import Remote
from tasks.common.ports import why_silent
from tasks.mlflow_store.embedded_store import DATABASE, prepare_database
from tasks.mlflow_store.registration_record import RegistrationRecord, read_registration
from tasks.mlflow_store.store_answers import ask
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

MLFLOW_UI = "ATTEND_MLFLOW_UI"  # variable with the address of a server that shows the embedded store, if any


def tracking_uri(workspace: Path) -> str:
    """Return MLFLOW_TRACKING_URI if it is set, else the address of the SQLite store embedded in the workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{workspace}/{DATABASE}"


def is_embedded() -> bool:
    """Return whether the store is the one embedded in the workspace, rather than one that the user named."""
    return not os.environ.get("MLFLOW_TRACKING_URI")


def shown_tracking_uri(workspace: Path) -> str:
    """Return `tracking_uri` without credentials, for display and storage."""
    return without_credentials(tracking_uri(workspace))


def store_inputs() -> dict[str, str]:
    """Return the input of a registration besides its model: the address of its store, without credentials."""
    return {"MLflow store": "embedded" if is_embedded() else without_credentials(os.environ["MLFLOW_TRACKING_URI"])}


def without_credentials(uri: str) -> str:
    """Return a store's address without user name, password and query, for display."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def lost_registration(artifact: Artifact, workspace: Workspace) -> str | None:
    """Return what is wrong if the embedded store lacks a version of the stage `register`, or its files.

    Return None if it has them. A server's store is not checked.
    """
    registration = read_registration(artifact.path)
    try:
        is_there = has_version(registration, workspace)
    except AttendError:
        is_there = False
    if not is_there:
        return f"{registration['uri']} is not in {DATABASE} any more"
    files = registration.get("files")
    if files is not None and _is_of_embedded_store(registration) and not is_in_workspace(files, workspace.root):
        return f"{registration['uri']} has its files in {files}, which is not in this workspace: it was moved or copied"
    return None


def has_version(registration: RegistrationRecord, workspace: Workspace) -> bool:
    """Return whether the embedded store has a version; True without a check if the store is a server's.

    Raises AttendError if the store's database cannot be read.
    """
    if not _is_of_embedded_store(registration):
        return True  # the server reports a missing version when it is used
    if not (workspace.root / DATABASE).is_file():  # MLflow would create it
        raise AttendError(f"{workspace.root / DATABASE}: no such file")

    def answer() -> bool:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            connect(workspace.root).get_model_version(registration["model"], registration["version"])
        except (MlflowException, SQLAlchemyError) as error:
            if isinstance(error, MlflowException) and error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise AttendError(f"{workspace.root / DATABASE}: MLflow cannot read it ({reason_of(error)})") from None
        return True

    try:
        return ask(workspace.root, f"whether {registration['uri']} is there", answer)
    except PermissionError:
        return True  # MLflow writes even when it reads, so this needs a user who may write to the workspace


def _is_of_embedded_store(registration: RegistrationRecord) -> bool:
    return registration["store"].startswith("sqlite:") and is_embedded()


def local_folder(location: str) -> Path | None:
    """Return the folder of an MLflow location, a path or a URL; None if it is not on this machine."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None


def is_in_workspace(folder: str, workspace: Path) -> bool:
    """Return whether a folder exists and is in the workspace, after resolving links."""
    return Path(folder).is_dir() and Path(folder).resolve().is_relative_to(workspace.resolve())


def check_store(workspace: Path, must_exist: bool = False) -> None:
    """Raise AttendError, before any work is done, if the workspace's MLflow store cannot be used.

    The reasons: a server does not answer within 5 s; the workspace cannot contain an embedded store or its models; or
    there is no embedded store and `must_exist` is set.
    """
    uri = tracking_uri(workspace)
    if uri.startswith(("http://", "https://")):
        check_server(uri)
    elif Remote.for_cache(workspace) is not None:
        raise AttendError(
            f"{workspace}: is the cache of a workspace in object storage, which cannot contain an MLflow store: "
            "set MLFLOW_TRACKING_URI to the address of an MLflow server"
        )
    elif not os.environ.get("MLFLOW_TRACKING_URI") and set(str(workspace)) & {"?", "%"}:
        raise AttendError(
            f"{workspace}: MLflow cannot store models below a path with ? or %: give another path with "
            "machine.workspace=FOLDER"
        )
    elif must_exist and uri.startswith("sqlite:") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise AttendError(f"{workspace}: no model is registered there: run `attend run` first, or give --workspace")


def connect(workspace: Path, must_exist: bool = False) -> MlflowClient:
    """Return MLflow's client for the workspace's store; create an embedded store if there is none.

    must_exist: raise AttendError if it does not exist, instead of creating it.
    """
    check_store(workspace, must_exist)
    uri = tracking_uri(workspace)
    mlflow = _quiet_mlflow()
    user_set = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(user_set["MLFLOW_REGISTRY_URI"] or uri)
    for name, value in user_set.items():
        # MLflow writes the address to the environment, where it would look like one set by the user.
        if value is None:
            os.environ.pop(name, None)
    return _open_store(workspace, uri, user_set["MLFLOW_REGISTRY_URI"] or uri)


@functools.cache
def _open_store(workspace: Path, uri: str, registry_uri: str) -> MlflowClient:
    """Return the client of a store; create or upgrade its database first. A process opens each store once."""
    import mlflow

    # MLflow's client creates and upgrades the tables of a database: two clients at once would break each other's.
    with _locked(workspace) as may_write:
        if is_embedded():
            prepare_database(workspace, may_write)
        client: MlflowClient = mlflow.MlflowClient(uri, registry_uri)
        client.search_experiments(max_results=1)
    return client


@contextlib.contextmanager
def _locked(workspace: Path) -> Iterator[bool]:
    """Hold the lock of a workspace's store if the workspace is writable; yield whether it is."""
    may_write = Workspace(workspace).is_writable()
    with Workspace(workspace).lock("mlflow-store", "the MLflow store") if may_write else contextlib.nullcontext():
        yield may_write


def client_of(uri: str) -> MlflowClient:
    """Return MLflow's client for another store, while MLflow's functions keep using the workspace's store.

    Raises AttendError if its database cannot be read.
    """
    mlflow = _quiet_mlflow()
    if uri.startswith("sqlite:///"):
        workspace = Path(uri.removeprefix("sqlite:///")).parent
        with _locked(workspace) as may_write:
            prepare_database(workspace, may_write)
    client: MlflowClient = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    return client


def _quiet_mlflow() -> ModuleType:
    """Import MLflow so that it prints nothing and sends nothing, and return it."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is for our results
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    warnings.filterwarnings("ignore", module="mlflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs the errors that it raises
    return mlflow


def check_server(uri: str, setting: str = "MLFLOW_TRACKING_URI") -> None:
    """Raise AttendError if the MLflow server does not answer within 5 s. setting: its name, for the message."""
    shown = without_credentials(uri).rstrip("/")
    parts = urlsplit(uri)
    credentials, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}/health")
    if credentials:  # urllib does not take them from the URL
        request.add_header("Authorization", f"Basic {base64.b64encode(unquote(credentials).encode()).decode()}")
    reason = why_silent(request)
    if reason is not None:
        raise AttendError(
            f"{setting}: the MLflow server {shown} does not answer ({reason}): start it, or unset {setting} to use the "
            "store in the workspace"
        )


def run_page_url(store: str, run_id: str) -> str | None:
    """Return the address of a run's page; None for an embedded store that no server shows."""
    page = store if store.startswith(("http://", "https://")) else os.environ.get(MLFLOW_UI)
    return f"{without_credentials(page).rstrip('/')}/#/runs/{run_id}" if page else None


def flush_location(location: str) -> None:
    """Flush the files at an MLflow location to the disk, if they are on this machine."""
    folder = local_folder(location)
    if folder is not None and folder.is_dir():
        flush_all(folder)
