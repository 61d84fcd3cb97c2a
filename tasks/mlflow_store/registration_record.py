"""The contents of registration.json: the version that a captioner became, as a type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, TypedDict, cast

REGISTRATION = "registration.json"


class RegistrationRecord(TypedDict):
    """A registered version.

    model, version: in MLflow's registry. alias: champion or challenger. why: the reason for the alias, as a sentence.
    uri: `models:/NAME/VERSION`. store: the address of the MLflow store, without credentials. run_id: of the training's
    run. files: the folder of the model's files, if MLflow stores them on this machine.
    """

    model: str
    version: str
    alias: str
    why: str
    uri: str
    store: str
    run_id: str
    files: NotRequired[str]


def read_registration(folder: Path) -> RegistrationRecord:
    """Return the contents of a folder's registration.json."""
    return cast(RegistrationRecord, json.loads((folder / REGISTRATION).read_text(encoding="utf-8")))


def write_registration(record: RegistrationRecord, folder: Path) -> None:
    """Write registration.json into a folder."""
    (folder / REGISTRATION).write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
