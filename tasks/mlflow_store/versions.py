"""Registered versions: finding them by address or alias, and reading their scores and predictions.

`attend caption` imports this file, so it imports nothing heavy.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tasks.captioner.load_bundle import check_bundle, stored_digest
from tasks.common.errors import AttendError, reason_of, suggestion
from tasks.common.files import digest_of_file, write_atomically
from tasks.common.log import log
from tasks.evaluation.score_record import ScoreRecord
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import BUNDLE, download
from tasks.mlflow_store.store_answers import ask

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

    from tasks.evaluation.report import EarlierVersion

EVALUATION = "attend.evaluation"  # tag of a version: the folder in its run with its predictions and scores
PICTURES = "pictures.parquet"  # in that folder: digest and split of the pictures of the version's data set
PREDICTIONS_DIGEST = "attend.predictions"  # tag of a version: the SHA-256 of its predictions
CHAMPIONS = "attend.champions"  # tag of a model: the versions that were champion, oldest first
MADE_FROM = "attend.made_from"  # prefix of a version's tags with the keys of its artifacts
REVIEWED = "attend.reviewed"  # tag of a version: the share of its captions that people accepted, in words
PROMOTED_AT = "attend.promoted_at"  # tag of a model: when its champion was last set (UTC, ISO 8601)
_FIXED = "model-in-use.txt"  # in the workspace: the name of the model chosen by `attend models use`
_ADDRESS = re.compile(r"[^/@:]+(@[^/@:]+|/[0-9]+)?")
_EARLIER_LIMIT = 10  # versions listed in a report
_MOST_VERSIONS = 10_000  # of a model, as many as MLflow returns by default


def number(version: ModelVersion) -> str:
    """Return a version's number as text; some of MLflow's calls return it as text and some as an integer."""
    return str(version.version)


def address_of(version: ModelVersion) -> str:
    """Return the address of a version, `models:/NAME/VERSION`."""
    return f"models:/{version.name}/{version.version}"


def files_of(client: MlflowClient, version: ModelVersion) -> Path | None:
    """Return the folder of a version's files; None if MLflow does not store them on this machine.

    Also None for a version that another program registered from something other than a logged model.
    """
    logged = logged_model(client, version)
    return None if logged is None else tracking.local_folder(str(logged.artifact_location))


def logged_model_of(client: MlflowClient, version: ModelVersion) -> str | None:
    """Return the id of a version's logged model, also for a copied version; None if it has none."""
    logged = logged_model(client, version)
    return None if logged is None else str(logged.model_id)


def logged_model(client: MlflowClient, version: ModelVersion) -> LoggedModel | None:
    """Return a version's logged model; None if it has none, or if that was deleted."""
    from mlflow.exceptions import MlflowException

    source = str(version.source)
    try:
        while source.startswith("models:/") and not source.startswith("models:/m-"):
            name, _, number_ = source.removeprefix("models:/").partition("/")
            source = str(client.get_model_version(name, number_).source)
        return client.get_logged_model(source.removeprefix("models:/")) if source.startswith("models:/m-") else None
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def version_with_alias(client: MlflowClient, model: str, alias: str) -> ModelVersion | None:
    """Return the version of a model that has an alias; None if no version has it yet."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(model, alias)
    except MlflowException as error:
        # MLflow's stores differ in their error codes for a missing alias and for a missing model.
        if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
            return None
        raise


def version_of_address(client: MlflowClient, address: str) -> ModelVersion:
    """Return the version at `models:/NAME@ALIAS` or `models:/NAME/VERSION`; AttendError if there is none."""
    from mlflow.exceptions import MlflowException

    path = full_address(address).removeprefix("models:/")
    name, separator, alias = path.partition("@")
    try:
        if separator:
            return client.get_model_version_by_alias(name, alias)
        name, _, version = path.partition("/")
        return client.get_model_version(name, version)
    except MlflowException as error:
        raise AttendError(f"{address}: no such model (`attend models list` shows them): {reason_of(error)}") from None


def earlier_versions(client: MlflowClient, model: str, scores: ScoreRecord) -> list[EarlierVersion]:
    """Return the latest versions of a model with their scores, newest first, at most 10.

    scores: the content of scores.json of the evaluation to list them with.
    """
    from tasks.evaluation.report import EarlierVersion

    return [
        EarlierVersion(
            number(version), scores_of(version), scored_on_same(version, scores), version.tags.get(REVIEWED, "")
        )
        for version in versions_of(client, model, most=_EARLIER_LIMIT)
    ]


def scores_of(version: ModelVersion) -> dict[str, float]:
    """Return a version's scores at its registration, by name, in percent."""
    tags = version.tags.items()
    return {name.removeprefix("score."): float(value) for name, value in tags if name.startswith("score.")}


def scored_on_same(version: ModelVersion, scores: ScoreRecord) -> bool:
    """Return whether a version was scored on the same pictures and references as `scores`."""
    return version.tags.get("attend.data") == scores["data"]


def download_version_predictions(client: MlflowClient, version: ModelVersion, folder: Path) -> Path | None:
    """Download the predictions of a version's evaluation into a folder, and return their path.

    Return None if the version's run does not have them, or if they are not the registered ones: if their digest or the
    scores computed from them differ.
    """
    from tasks.evaluation.caption_and_score import PREDICTIONS, differing_scores

    evaluation = version.tags.get(EVALUATION)
    if evaluation is None:
        return None
    path = download_predictions(client, str(version.run_id), folder, f"{evaluation}/{PREDICTIONS}")
    if path is None:
        return None
    if version.tags.get(PREDICTIONS_DIGEST) not in (None, digest_of_file(path)):
        log.warning(f"{address_of(version)}: its predictions in MLflow do not match their digest: they are not used")
        return None
    if differing_scores(path, scores_of(version)):
        log.warning(f"{address_of(version)}: its predictions in MLflow do not have its scores: they are not used")
        return None
    return path


def download_predictions(client: MlflowClient, run_id: str, folder: Path, artifact: str) -> Path | None:
    """Download a run's predictions file into a folder, and return its path.

    artifact: the file's path in the run. Return None if the run has no such file, or if it cannot be read.
    """
    from mlflow.exceptions import MlflowException

    from tasks.evaluation.caption_and_score import read_predictions

    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = Path(client.download_artifacts(run_id, artifact, str(folder)))
        read_predictions(path)
    except (MlflowException, OSError, AttendError):
        return None
    return path


class Registered(NamedTuple):
    """A captioner: its address `models:/NAME/VERSION`, and its files if they are on this machine.

    For an exported folder, the address is its name with the captioner's digest.
    """

    address: str
    files: Path | None


def find_captioner(model: str | None, workspace: Path) -> Registered:
    """Return the captioner named by `model`: a version, like `find`, or a folder written by `attend export`."""
    if model is not None and (digest := exported_digest(Path(model).expanduser())) is not None:
        return Registered(f"{model} ({digest[:12]})", Path(model).expanduser().absolute())
    return find(model, workspace)


def find(model: str | None, workspace: Path) -> Registered:
    """Return the version named by `model`; AttendError if there is none, or its files are missing.

    model: an address in MLflow's registry; None for the champion from `default_champion`.
    """
    check_address(model)
    tracking.check_store(workspace, must_exist=True)

    def answer() -> list[str | None]:
        client = tracking.connect(workspace, must_exist=True)
        version = version_of_address(client, model or default_champion(client, workspace))
        files = files_of(client, version)
        return [address_of(version), None if files is None else str(files)]

    if tracking.is_embedded():
        question = f"address of {model}" if model else f"champion of {_fixed_model(workspace) or 'the workspace'}"
        address, folder = ask(workspace, question, answer)
    else:
        address, folder = answer()
    files = None if folder is None else Path(folder)
    if tracking.is_embedded() and files is not None and not files.is_dir():
        raise AttendError(
            f"{address}: its files were in {files}, which is gone: where the workspace was moved, "
            "`attend run` registers the model again"
        )
    if files is None:
        tracking.connect(workspace, must_exist=True)  # sets the store from which MLflow downloads it
    return Registered(str(address), files)


def exported_digest(folder: Path) -> str | None:
    """Return the digest of the captioner in a folder written by `attend export`; None for any other folder."""
    try:
        return stored_digest(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def aliases_of(workspace: Path, model: str) -> dict[str, str]:
    """Return alias -> version number for a model's current aliases; empty if there is no such model.

    Raises AttendError if MLflow does not answer.
    """

    def answer() -> dict[str, str]:
        from mlflow.exceptions import MlflowException

        try:
            aliases = tracking.connect(workspace, must_exist=True).get_registered_model(model).aliases
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return {}
            raise AttendError(f"{model}: MLflow does not say who is champion ({reason_of(error)})") from None
        return {alias: str(version) for alias, version in aliases.items()}

    return ask(workspace, f"aliases of {model}", answer) if tracking.is_embedded() else answer()


def key_of_grids(address: str, workspace: Path) -> str | None:
    """Return the key of the `extract` artifact whose grids a version's decoder was trained on; None if it has none.

    address: `models:/NAME/VERSION`.
    """

    def answer() -> str | None:
        client = tracking.connect(workspace, must_exist=True)
        return version_of_address(client, address).tags.get(f"{MADE_FROM}.extract")

    return ask(workspace, f"grids of {address}", answer) if tracking.is_embedded() else answer()


def champion_bundle(workspace: Path, model: str, scratch: Path) -> Path | None:
    """Return the folder of the bundle for torch of a model's champion; None if there is none that can be read here.

    scratch: a folder for the download if MLflow does not store it on this machine.
    """
    client = tracking.connect(workspace)
    version = version_with_alias(client, model, "champion")
    if version is None:
        return None
    bundle = (files_of(client, version) or download(address_of(version), scratch / "champion")) / BUNDLE
    try:
        check_bundle(bundle, address_of(version))
    except AttendError as error:
        log.warning(str(error))
        return None
    return bundle


def full_address(model: str) -> str:
    """Return the address in MLflow's registry of NAME (its champion), NAME@ALIAS or NAME/VERSION.

    Each may begin with `models:/`. Raises AttendError for any other text.
    """
    path = model.removeprefix("models:/")
    if not _ADDRESS.fullmatch(path):
        raise AttendError(
            f"{model}: is no model: give NAME, NAME@ALIAS or NAME/VERSION (see `attend models list`), or a folder on "
            "this machine that `attend export` wrote"
        )
    return f"models:/{path}" if "@" in path or "/" in path else f"models:/{path}@champion"


def check_address(model: str | None) -> None:
    """Raise AttendError if `model` is given and is not an address in MLflow's registry."""
    if model is not None:
        full_address(model)


def default_champion(client: MlflowClient, workspace: Path) -> str:
    """Return `models:/NAME@champion` for the model chosen by `attend models use`, else the one promoted last.

    Only models registered by attend count. Raises AttendError if none of them has a champion.
    """
    fixed = _fixed_model(workspace)
    if fixed is None:
        promoted = {
            model.name: model.tags.get(PROMOTED_AT, "")
            for model in registered_models(client)
            if CHAMPIONS in model.tags and "champion" in model.aliases
        }
        if not promoted:
            raise AttendError(
                f"{tracking.shown_tracking_uri(workspace)}: no champion is registered yet: run `attend run` first"
            )
        fixed = max(promoted, key=lambda name: promoted[name])
    return f"models:/{fixed}@champion"


def registered_models(client: MlflowClient) -> list[RegisteredModel]:
    """Return all registered models; MLflow returns pages of a hundred."""
    models: list[RegisteredModel] = []
    token = None
    while True:
        page = client.search_registered_models(page_token=token)
        models += page
        token = page.token
        if not token:
            return models


def versions_of(client: MlflowClient, model: str, most: int = _MOST_VERSIONS) -> list[ModelVersion]:
    """Return the latest versions of a model, newest first, at most `most`."""
    quote = '"' if "'" in model else "'"  # other programs' names may have one
    versions: list[ModelVersion] = client.search_model_versions(
        f"name = {quote}{model}{quote}", order_by=["version_number DESC"], max_results=most
    )
    return versions


def _fixed_model(workspace: Path) -> str | None:
    """Return the name of the model that `attend models use` chose for the workspace; None if none was chosen."""
    try:
        return (workspace / _FIXED).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def fix_model(workspace: Path, model: str | None) -> None:
    """Make commands use this model's champion by default; None for the one promoted last.

    Raises AttendError if attend registered no model with this name.
    """
    if model is None:
        (workspace / _FIXED).unlink(missing_ok=True)
        return
    client = tracking.connect(workspace, must_exist=True)
    names = [registered.name for registered in registered_models(client) if CHAMPIONS in registered.tags]
    if model not in names:
        raise AttendError(f"{model}: no model of this name has a champion{suggestion(model, names)}")
    write_atomically(workspace / _FIXED, f"{model}\n")
