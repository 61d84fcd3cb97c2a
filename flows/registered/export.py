"""Export a registered captioner into a folder that needs neither MLflow nor torch nor this program."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from models.captioner import Captioner
from models.options import Runtime
from tasks.captioner.bundle import seal
from tasks.captioner.exported.folder import write_exported
from tasks.captioner.load_bundle import ORIGIN, check_bundle, is_intact
from tasks.common.errors import AttendError, reason_of
from tasks.common.log import log
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import BUNDLE, bundle_of, download
from tasks.mlflow_store.versions import find, version_of_address


def export_model(model: str | None, folder: Path, runtime: Runtime, workspace: Path) -> int:
    """Write a registered version for a runtime into a new folder, and return the bytes written.

    model: an address in MLflow's registry; None for the champion in use. runtime: if the version was not
    registered for it, it is exported now. Raises AttendError if there is no such model, it cannot be exported, or
    `folder` already exists and is not an empty folder.
    """
    if ":/" in str(folder):
        raise AttendError(f"--to: {folder}: is an address: export to a folder of this machine, and copy it there")
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AttendError(f"--to: {folder}: is there already: give another name")
    if not folder.parent.is_dir():
        raise AttendError(f"--to: {folder.parent}: no such folder")
    registered = find(model, workspace)
    client = tracking.connect(workspace, must_exist=True)
    version = version_of_address(client, registered.address)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        files, out = registered.files or download(registered.address, Path(scratch) / "model"), Path(scratch) / "out"
        registered_bundle = files / "artifacts" / bundle_of(runtime)
        if not (files / BUNDLE).is_dir():
            raise AttendError(f"{registered.address}: is not a captioner that attend registered: give one that is")
        for bundle in (registered_bundle, files / BUNDLE):
            if bundle.is_dir() and not is_intact(bundle):
                raise AttendError(f"{registered.address}: {bundle}: is damaged: run `attend run` again")
        check_bundle(files / BUNDLE, registered.address)  # otherwise this program could not use the folder
        if registered_bundle.is_dir():
            _copy(registered_bundle, out)
        else:
            log.info(f"{registered.address} was not registered for {runtime}: it is exported now, and not scored")
            write_exported(_captioner_in(files / BUNDLE, registered.address), out, runtime)
        origin = {"model": version.name, "version": str(version.version), "runtime": runtime}
        (out / ORIGIN).write_text(json.dumps(origin), encoding="utf-8")
        (out / "MODEL_CARD.md").write_text(version.description or "", encoding="utf-8")
        seal(out)
        try:
            out.rename(folder)  # may replace an empty folder
        except OSError as error:
            raise AttendError(f"--to: {folder}: cannot be written: {error.strerror}: give another name") from None
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _copy(folder: Path, out: Path) -> None:
    """Copy the files of a bundle with the permissions of new files: the bundle's may be read-only."""
    for path in folder.rglob("*"):
        if path.is_file() and path.parent.name != "__pycache__":
            target = out / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _captioner_in(bundle: Path, address: str) -> Captioner:
    """Return the captioner in a bundle, loaded by this code; AttendError if it was written by incompatible code."""
    try:
        return Captioner.load(bundle)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = reason_of(error)
        raise AttendError(
            f"{address}: was registered by other code, which this cannot export ({reason}): run `attend run` again"
        ) from None
