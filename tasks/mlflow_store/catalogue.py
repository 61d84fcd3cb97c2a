"""The catalogue of registered versions: their aliases, scores and model cards, and the reports of their evaluations."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.common.errors import AttendError, reason_of
from tasks.common.wording import minute
from tasks.evaluation.report import REPORT
from tasks.mlflow_store import tracking
from tasks.mlflow_store.versions import (
    EVALUATION,
    address_of,
    number,
    registered_models,
    scores_of,
    version_of_address,
    versions_of,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class CataloguedVersion:
    """A registered version. created: local time. scores: percent, by name. card: Markdown."""

    address: str
    aliases: list[str]
    created: str
    scores: dict[str, float]
    tags: dict[str, str]
    card: str


def all_versions(workspace: Path, name: str | None = None) -> list[CataloguedVersion]:
    """Return the versions of all registered models, or of one, newest first. Raises AttendError for an unknown name."""
    client = tracking.connect(workspace, must_exist=True)
    models = {model.name: model for model in registered_models(client)}
    if name is not None and name not in models:
        raise AttendError(f"{name}: no such model; registered: {', '.join(sorted(models)) or 'none'}")
    entries = []
    for model in sorted(models if name is None else [name]):
        entries += [_catalogued(version, models[model].aliases) for version in versions_of(client, model)]
    return entries


def one_version(workspace: Path, address: str) -> CataloguedVersion:
    """Return the version at an address. Raises AttendError if there is none."""
    client = tracking.connect(workspace, must_exist=True)
    version = version_of_address(client, address)
    return _catalogued(version, client.get_registered_model(version.name).aliases)


def _catalogued(version: ModelVersion, aliases: Mapping[str, Any]) -> CataloguedVersion:
    """Return a version's entry in the catalogue. aliases: of its model, alias -> version number."""
    return CataloguedVersion(
        address=address_of(version),
        aliases=sorted(alias for alias, own in aliases.items() if str(own) == number(version)),
        created=minute(version.creation_timestamp / 1000),
        scores=scores_of(version),
        tags=dict(version.tags),
        card=version.description or "",
    )


def write_version_report(workspace: Path, address: str, out: Path) -> None:
    """Write the report of a registered version's evaluation. Raises AttendError if there is none."""
    from mlflow.exceptions import MlflowException

    client = tracking.connect(workspace, must_exist=True)
    try:
        write_report_of(client, version_of_address(client, address), out)
    except LookupError as error:
        raise AttendError(f"{address}: has no report: {error}") from None
    except MlflowException as error:
        raise AttendError(
            f"{address}: MLflow does not give its report, and may have lost the files of its run "
            f"({reason_of(error)}): train and register it again with `attend run`"
        ) from None
    except OSError as error:
        raise AttendError(f"{out}: {error.strerror or error}: give another file with --out") from None


def write_report_of(client: MlflowClient, version: ModelVersion, out: Path) -> None:
    """Write a version's report into a file.

    Raises LookupError if it was registered without an evaluation, MlflowException if MLflow does not have the report,
    and OSError if the file cannot be written.
    """
    if EVALUATION not in version.tags:
        raise LookupError("it was registered without an evaluation")
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(str(version.run_id), f"{version.tags[EVALUATION]}/{REPORT}", folder)
        shutil.copyfile(path, out)
