"""Registration of a trained model: its run in MLflow and its version, with everything that belongs to it.

A registered version is a self-contained bundle (see bundle.py) with a model card and a report.
champion_or_challenger.py collects the facts that decide whether it becomes champion.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tasks.captioner.bundle import make_captioner, write_bundle
from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.captioner.runtimes import export_runtimes
from tasks.common.errors import AttendError
from tasks.common.files import temporary_files_in
from tasks.common.log import log as logger
from tasks.common.source import commit
from tasks.config.schema import Config
from tasks.data.manifest import files_by_name
from tasks.evaluation.caption_and_score import PREDICTIONS, differing_scores, was_trained_on
from tasks.evaluation.report import REPORT, ComparedModel
from tasks.evaluation.score_record import NO_BETTER, SCORES, ScoreRecord, no_better_than_copied, read_scores
from tasks.inspection.inspect import inspect_data
from tasks.inspection.page import write_page
from tasks.inspection.record import FINDINGS, INSPECTION, PAGE, InspectionRecord, describe_drift
from tasks.mlflow_store.catalogue import write_report_of
from tasks.mlflow_store.evaluation_log import evaluation_name, log_data_and_scores, log_files, log_report
from tasks.mlflow_store.logged_model import drop_unregistered, log_model
from tasks.mlflow_store.registration_record import RegistrationRecord, write_registration
from tasks.mlflow_store.runs import EVALUATED_VERSION, TRAIN_KEY, TrainingLog, flush_run, training_log
from tasks.mlflow_store.tracking import flush_location, is_in_workspace, shown_tracking_uri
from tasks.mlflow_store.version_pictures import pictures_of_version
from tasks.mlflow_store.versions import (
    EVALUATION,
    MADE_FROM,
    PREDICTIONS_DIGEST,
    address_of,
    earlier_versions,
    files_of,
    number,
    versions_of,
)
from tasks.pipeline.ledger import FileRecord, Outcome, digest_of
from tasks.pipeline.plan import by_kind
from tasks.pipeline.stage import Work
from tasks.pipeline.workspace import Workspace
from tasks.registry.champion_or_challenger import (
    champion_to_beat,
    flaw_of,
    label,
    match_with,
    run_gates,
    tag_gates,
)
from tasks.registry.champion_rule import Candidate, Decision, decide
from tasks.registry.gates import GateResult
from tasks.registry.model_card import ancestry, card
from tasks.registry.promotion import apply, was_rolled_back
from tasks.training.fit_decoder import DecoderInputs
from tasks.training.outputs import HISTORY

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


# MLflow writes this file into a model's folder whenever the model is loaded, with the address used for loading.
_WRITTEN_BY_LOADING = "registered_model_meta"
_KEY, _BUNDLE = "attend.key", "attend.bundle"  # tags of a version: the stage's key, the digest of its bundle
_RUNTIMES = "attend.runtimes"  # tag of a version: the configured runtimes and the allowed loss


def register_captioner(config: Config, artifacts: CaptionerArtifacts, params: dict[str, Any], work: Work) -> Outcome:
    """Log the trained model with its history, scores and samples, register it, and decide whether it is champion.

    artifacts: the captioner's. params: the parameters of the model's run in MLflow. A version registered earlier with
    the same stage key is reused. registration.json in `work.out` names the version and its alias.
    """
    workspace, registry = config.workspace, config.registry
    from mlflow.exceptions import MlflowException

    scores = read_scores(artifacts.scores.path)
    with (
        Workspace(workspace).lock(f"registry-{registry.model}", f"registration of {registry.model}"),
        training_log(workspace, registry.model, artifacts.decoder.ledger.key, params) as log,
        work.scratch() as scratch,
        temporary_files_in(scratch),  # MLflow copies the model there
    ):
        for row in pq.read_table(artifacts.decoder.path / HISTORY).to_pylist():
            log.epoch(row)
        _check_predictions(artifacts, scores, Workspace(workspace))
        version = _intact_version(log.client, registry.model, {_KEY: work.key}, workspace)
        champion, why_first = champion_to_beat(log.client, registry.model, workspace)
        is_champion = champion is not None and version is not None and number(champion) == number(version)
        seen, match = None, None
        if champion is not None and not is_champion:
            seen = pictures_of_version(log.client, champion, scratch / "known")
            match = match_with(champion, scores, config, artifacts, log.client, scratch, seen)
        inspection = _inspect(config, artifacts, None if seen is None else seen.digests, work.out)
        gates = [] if is_champion else run_gates(config, artifacts, None if match is None else match.comparison)
        if version is None:
            rivals = [] if match is None else [ComparedModel(match.champion, match.comparison.scores)]
            version = _bundle_and_register(log, config, artifacts, scores, rivals, gates, work, scratch)
            is_champion = champion is not None and number(champion) == number(version)
        notes = []
        if no_better_than_copied(scores, registry.promote_on):
            start = "" if config.training.start_from else ", or start from an existing captioner"
            notes.append(f"{label(version)} is {NO_BETTER}{start}")
        decision = Decision("champion", f"{label(version)} is champion")
        if not is_champion:
            failed = tag_gates(log.client, version, gates)
            drift = describe_drift(inspection["drift"])
            log.client.set_model_version_tag(version.name, version.version, "attend.drift", drift)
            rolled_back = was_rolled_back(log.client, version)
            candidate = Candidate(label(version), failed, was_trained_on(scores["signature"]), rolled_back)
            decision = decide(registry, candidate, match, why_first)
            apply(log.client, version, decision)
            for warning in decision.warnings:
                logger.warning(f"register: {label(version)} is champion as the first, but {warning}")
        with contextlib.suppress(MlflowException, LookupError):  # `attend models report` then says why
            write_report_of(log.client, version, work.out / REPORT)
        files = files_of(log.client, version)
        shared = {} if files is None else _file_records(files, workspace)
    registration: RegistrationRecord = {
        "model": registry.model,
        "version": str(version.version),
        "alias": decision.alias,
        "why": decision.why,
        "uri": address_of(version),
        "store": shown_tracking_uri(workspace),
        "run_id": log.run_id,
    }
    if files is not None:
        registration["files"] = str(files)
    write_registration(registration, work.out)
    products = {"version": digest_of([registry.model, version.version])}
    return Outcome(products, {"version": int(version.version)}, [decision.why, *notes], shared)


def _bundle_and_register(
    log: TrainingLog,
    config: Config,
    artifacts: CaptionerArtifacts,
    scores: ScoreRecord,
    rivals: list[ComparedModel],
    gates: list[GateResult],
    work: Work,
    scratch: Path,
) -> ModelVersion:
    """Return the version of the captioner's bundle; log and register it if there is none.

    rivals: the models that the report compares it with. gates: the gates' results, for its model card.
    """
    registry = config.registry
    captioner = make_captioner(config, artifacts)
    digest = write_bundle(captioner, scratch / "bundle")
    made_of = {  # a version with the same training, bundle, runtimes and scores is this one, whatever its stage key
        TRAIN_KEY: artifacts.decoder.ledger.key,
        _BUNDLE: digest,
        _RUNTIMES: f"{','.join(registry.runtimes)} within {registry.max_runtime_loss:g}",
        "attend.data": scores["data"],
    }
    same = _intact_version(log.client, registry.model, made_of, config.workspace)
    if same is not None:
        for name, value in scores["scores"].items():  # adds the scores of metrics that are new
            log.client.set_model_version_tag(same.name, same.version, f"score.{name}", repr(value))
        return same
    exported = export_runtimes(captioner, config, artifacts, scores, scratch)
    folders = {"torch": scratch / "bundle", **{runtime.name: runtime.folder for runtime in exported if runtime.kept}}
    bundles = {str(name): folders[name] for name in registry.runtimes if name in folders}
    log_files(log, artifacts)
    for file in (FINDINGS, INSPECTION, PAGE):
        log.client.log_artifact(log.run_id, str(work.out / file), evaluation_name(artifacts))
    earlier = earlier_versions(log.client, registry.model, scores)
    log_report(log, captioner, config, artifacts, scores, rivals, earlier, scratch)
    drop_unregistered(log)
    name = str(log.client.get_run(log.run_id).info.run_name)
    source = log_model(log.run_id, name, bundles, captioner)
    model_id = source.removeprefix("models:/")
    evaluation_run = log_data_and_scores(log, config, artifacts, scores, model_id)
    # Before a version names them, because MLflow's database is on the disk at once.
    flush_run(log.client, log.run_id)
    flush_location(str(log.client.get_logged_model(model_id).artifact_location))
    description = card(config, artifacts, scores, gates, exported)
    version = _create_version(log, config, source, work, artifacts, scores, made_of, description)
    for runtime in exported:
        log.client.set_model_version_tag(version.name, version.version, f"attend.runtime.{runtime.name}", str(runtime))
    log.client.set_tag(evaluation_run, EVALUATED_VERSION, address_of(version))
    listed = json.dumps([{"name": version.name, "version": version.version}])  # on MLflow's page of the logged model
    log.client.set_logged_model_tags(model_id, {"mlflow.modelVersions": listed})
    return version


def _file_records(folder: Path, workspace: Path) -> dict[str, FileRecord]:
    """Return the sizes and digests of a model's files in the workspace: if they are damaged, the stage runs again."""
    if not is_in_workspace(str(folder), workspace):
        return {}
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.name != _WRITTEN_BY_LOADING
    ]
    root = workspace.resolve()
    return {path.resolve().relative_to(root).as_posix(): FileRecord.of(path) for path in paths}


def _check_predictions(artifacts: CaptionerArtifacts, scores: ScoreRecord, workspace: Workspace) -> None:
    """Raise AttendError if the evaluation's files do not match their digests, or its captions do not give its scores.

    The files become suspect, so that the next run evaluates again.
    """
    scored = artifacts.scores
    damage = workspace.damage(scored, {path for path, _ in scored.files(workspace.root)})
    if damage is None:
        differing = differing_scores(scored.path / PREDICTIONS, scores["scores"])
        damage = (
            f"{scored.path / PREDICTIONS}: does not give the scores in {SCORES} ({differing[0]})" if differing else None
        )
    if damage is not None:
        workspace.suspect(path for path, _ in scored.files(workspace.root))
        raise AttendError(f"{damage}: not registered: run again, which evaluates again")


def _intact_version(client: MlflowClient, model: str, tags: dict[str, str], workspace: Path) -> ModelVersion | None:
    """Return the latest version of a model that has these tags and intact files; None if there is none."""
    tagged = (version for version in versions_of(client, model) if tags.items() <= version.tags.items())
    return next((version for version in tagged if flaw_of(client, version, workspace) is None), None)


def _create_version(
    log: TrainingLog,
    config: Config,
    source: str,
    work: Work,
    artifacts: CaptionerArtifacts,
    scores: ScoreRecord,
    made_of: dict[str, str],
    description: str,
) -> ModelVersion:
    """Create the version of a logged model, with tags for its scores and its origin.

    source: the address of the logged model. made_of: the tags by which it is found again. description: its model card.
    """
    from mlflow.exceptions import MlflowException

    model, start = config.registry.model, config.starting_point
    with contextlib.suppress(MlflowException):  # the registered model exists already
        log.client.create_registered_model(model)
    tags = {
        _KEY: work.key,
        **made_of,
        "attend.signature": scores["signature"],
        EVALUATION: evaluation_name(artifacts),
        **({"attend.commit": commit()} if commit() else {}),
        **({} if start is None else {"attend.started_from": ancestry(start.origin())}),
        PREDICTIONS_DIGEST: artifacts.scores.ledger.files[PREDICTIONS].sha256,
        **{f"score.{name}": repr(value) for name, value in scores["scores"].items()},
        **{f"{MADE_FROM}.{stage}": artifact.ledger.key for stage, artifact in by_kind(work.artifacts).items()},
    }
    model_id = source.removeprefix("models:/")
    return log.client.create_model_version(model, source, log.run_id, tags, description=description, model_id=model_id)


def _inspect(
    config: Config, artifacts: CaptionerArtifacts, known: frozenset[str] | None, out: Path
) -> InspectionRecord:
    """Inspect the data set with the trained model, and write findings, record and page to `out`.

    known: digests of the pictures from which the champion was trained; None if they are not known.
    """
    sources = DecoderInputs(artifacts.manifest, artifacts.captions, artifacts.grids)
    record = inspect_data(config, artifacts.decoder, artifacts.memory, sources, known, out)
    files = files_by_name(artifacts.manifest.path, config.data) if not config.data.has_grids else None
    write_page(f"{config.name}: the data, seen by the model", record, out, files)
    return record
