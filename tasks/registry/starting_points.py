"""Find the captioner that training starts from: a registered version or an exported folder, local or remote.

Remote captioners are downloaded once, into the workspace's folder `captioners`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.captioner.copied_loader import DIGEST
from tasks.captioner.load_bundle import ORIGIN, check_bundle, is_intact, stored_digest
from tasks.common.errors import AttendError, reason_of
from tasks.config.starting_point import StartingPoint
from tasks.mlflow_store.embedded_store import DATABASE
from tasks.mlflow_store.logged_model import BUNDLE
from tasks.mlflow_store.store_answers import ask
from tasks.mlflow_store.tracking import check_server, client_of, local_folder, tracking_uri, without_credentials
from tasks.mlflow_store.versions import address_of, logged_model, version_of_address
from tasks.pipeline.ledger import digest_of
from tasks.pipeline.workspace import Workspace

CAPTIONERS = "captioners"
_FIELD = "training.start_from"
_WEIGHTS = "decoder.safetensors"


def find_starting_point(start_from: str, store: str | None, workspace: Path) -> StartingPoint:
    """Return the captioner named by `training.start_from`, with its files checked.

    store: `training.start_store`. workspace: the folder of the workspace. Raises AttendError if there is no such
    captioner, or it has no weights for torch, or its files are damaged.
    """
    if start_from.startswith("models:/"):
        address, folder = _registered(start_from, store, workspace)
    elif "://" in start_from:
        address, folder = without_credentials(start_from), _in_storage(start_from, workspace)
    else:
        folder = Path(start_from).expanduser().absolute()
        address = _address_of(folder)
        if not folder.is_dir():
            raise AttendError(
                f"{_FIELD}: {folder}: no such folder: give models:/NAME@champion, or a captioner's folder"
            )
    bundle = _bundle_in(folder, address)
    if not is_intact(bundle):
        if bundle.is_relative_to(workspace / CAPTIONERS):
            shutil.rmtree(folder, ignore_errors=True)  # it is downloaded again
        raise AttendError(
            f"{_FIELD}: {address}: the files in {bundle} do not match its {DIGEST}: they are damaged or incomplete: "
            "export or download the captioner again"
        )
    check_bundle(bundle, f"{_FIELD}: {address}")
    return StartingPoint(address, bundle, stored_digest(bundle))


def _address_of(folder: Path) -> str:
    """Return a folder's address, with that of the version that was exported to it, if the folder names one."""
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        return f"models:/{origin['model']}/{origin['version']} in {folder}"
    except (OSError, ValueError, KeyError, TypeError):
        return str(folder)


def _bundle_in(folder: Path, address: str) -> Path:
    """Return the bundle for torch in a captioner's folder: the folder itself, or MLflow's subfolder."""
    for bundle in (folder / BUNDLE, folder):
        if (bundle / DIGEST).is_file() and (bundle / _WEIGHTS).is_file():
            return bundle
    if any(folder.rglob("*.onnx")):
        raise AttendError(
            f"{_FIELD}: {address}: was exported for onnxruntime, and has no weights to train: export it with "
            "`attend export --runtime torch`"
        )
    raise AttendError(
        f"{_FIELD}: {address}: is no captioner: it has no {DIGEST} and no {_WEIGHTS}: give the folder that `attend "
        "export --runtime torch` or MLflow wrote"
    )


def _registered(start_from: str, store: str | None, workspace: Path) -> tuple[str, Path]:
    """Return the address of a version in a store, and the folder of its files."""
    uri = _uri(store, workspace)

    def answer() -> list[str]:
        client = client_of(uri)
        try:
            version = version_of_address(client, start_from)
        except AttendError as error:
            raise AttendError(f"{_FIELD}: {error}") from None
        logged = logged_model(client, version)
        if logged is None:
            raise AttendError(f"{_FIELD}: {start_from}: is no captioner that attend registered")
        return [address_of(version), str(logged.artifact_location)]

    if uri.startswith("sqlite:///"):  # the answer is cached in the workspace that has the store
        workspace_folder = Path(uri.removeprefix("sqlite:///")).parent
        address, location = ask(workspace_folder, f"starting point {start_from}", answer)
    else:
        address, location = answer()
    shown = address if store is None else f"{address} of {without_credentials(store) if '://' in store else store}"
    folder = local_folder(location)
    if folder is not None:
        if not folder.is_dir():
            raise AttendError(
                f"{_FIELD}: {shown}: its files were in {folder}, which is gone: where the workspace was moved, "
                "`attend run` there registers the model again"
            )
        return shown, folder
    return shown, _download(workspace, [uri, location], shown, lambda target: _from_mlflow(uri, location, target))


def _uri(store: str | None, workspace: Path) -> str:
    """Return the URI of a store: a workspace's folder or a URI; None for this workspace's own."""
    if store is None:
        uri = tracking_uri(workspace)
    elif "://" in store:
        uri = store
    else:
        uri = f"sqlite:///{Path(store).expanduser().absolute() / DATABASE}"
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        folder = Path(uri.removeprefix("sqlite:///")).parent
        raise AttendError(
            f"{_FIELD}: {folder}: no model is registered in this workspace: name the one that has it with "
            "training.start_store=WORKSPACE"
        )
    if uri.startswith(("http://", "https://")):
        check_server(uri, "training.start_store" if store else "MLFLOW_TRACKING_URI")
    return uri


def _from_mlflow(uri: str, location: str, target: Path) -> Path:
    """Download the files at an MLflow location into a folder, and return the (sub)folder that contains them."""
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    try:
        return Path(download_artifacts(artifact_uri=location, dst_path=str(target), tracking_uri=uri))
    except MlflowException as error:
        raise OSError(str(error)) from None


def _in_storage(url: str, workspace: Path) -> Path:
    """Return the folder into which a captioner in object storage was downloaded.

    Its small bundle.json is read each time, so that a captioner that was replaced is downloaded again.
    """
    import fsspec

    try:
        filesystem, root = fsspec.core.url_to_fs(url)
        names = [name for name in (f"{root}/{BUNDLE}/{DIGEST}", f"{root}/{DIGEST}") if filesystem.exists(name)]
        if not names:
            raise AttendError(f"{_FIELD}: {url}: has no {DIGEST}: give the URL of an exported captioner")
        content = filesystem.cat_file(names[0])
    except (ImportError, ValueError, OSError) as error:
        raise AttendError(f"{_FIELD}: {url}: cannot be read: {reason_of(error)}") from None
    bundle = names[0].removesuffix(f"/{DIGEST}")

    def fetch(target: Path) -> Path:
        filesystem.get(f"{bundle}/", f"{target}/", recursive=True)
        return target

    return _download(workspace, [url, content.decode("utf-8", "replace")], without_credentials(url), fetch)


def _download(workspace: Path, source: list[Any], shown: str, fetch: Callable[[Path], Path]) -> Path:
    """Return the local folder of a captioner; download it if there is none.

    source: identifies the captioner. shown: its address, for messages. fetch: downloads it into a given folder, and
    returns that folder or the subfolder that contains the files.
    """
    folder = workspace / CAPTIONERS / digest_of(source)[:20]
    with Workspace(workspace).lock(f"captioner-{folder.name}", f"download of {shown}"):
        if folder.is_dir():
            return folder
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            fetch(partial).rename(folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise AttendError(f"{_FIELD}: {shown}: cannot be downloaded: {reason_of(error)}") from None
        shutil.rmtree(partial, ignore_errors=True)
    return folder
