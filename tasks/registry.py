"""Stage `register`: the trained model's run in MLflow, its version, and whether that is champion.

A registered version is a self-contained bundle (see bundle.py) with a card and a report. Who is champion is decided
in promotion.py.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tasks.bundle import make_captioner, write_bundle
from tasks.captions import read_vocabulary
from tasks.config import (
    CaptionsConfig,
    DecoderConfig,
    EvaluationConfig,
    GridsConfig,
    MachineConfig,
    RegistryConfig,
    SelfCriticalConfig,
    TrainingConfig,
    TuningConfig,
    ViewsConfig,
)
from tasks.datasets.base import DatasetOptions
from tasks.evaluation import PREDICTIONS, SCORES, read_predictions
from tasks.ledger import Artifact, Outcome, Work, digest_of
from tasks.logged_model import drop_unregistered, load_captioner, log_model
from tasks.manifest import GENERATED, files_of
from tasks.model_card import card
from tasks.progress import say
from tasks.promotion import SideBySide, crown, promote, rolled_back, side_by_side
from tasks.report import REPORT, Rival, write_report
from tasks.rescoring import rescore
from tasks.section import Section
from tasks.tracking import TRAIN_KEY, TrainingLog, log_scores, params_of, store_of, training_log
from tasks.trained import HISTORY, LAST, kept_weights, last_trained
from tasks.versions import (
    EVALUATION,
    Earlier,
    address_of,
    earlier_versions,
    number,
    version_predictions,
    version_with_alias,
)
from tasks.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from models.captioner import Captioner

REGISTRATION = "registration.json"
_KEY = "attend.key"


def register(
    registry: RegistryConfig,
    data: DatasetOptions,
    grids: GridsConfig,
    captions: CaptionsConfig,
    decoder: DecoderConfig,
    training: TrainingConfig,
    views: ViewsConfig | None,
    tuning: TuningConfig | None,
    self_critical: SelfCriticalConfig | None,
    evaluation: EvaluationConfig,
    machine: MachineConfig,
    work: Work,
) -> Outcome:
    """Log the trained model with its history, scores and samples, register it, and decide who is champion."""
    workspace = machine.folder
    trained, evaluated = last_trained(work.upstream), work.upstream["evaluate"]
    scores = json.loads((evaluated.path / SCORES).read_text(encoding="utf-8"))
    sections: dict[str, Section] = {
        "data": data,
        "grids": grids,
        "captions": captions,
        "decoder": decoder,
        "training": training,
    }
    more = {"views": views, "tuning": tuning, "self_critical": self_critical}
    sections |= {name: section for name, section in more.items() if section is not None}
    params = params_of(sections, _files_behind(work.upstream))
    with (
        Workspace(workspace).lock(f"registry-{registry.model}", f"registration of {registry.model}"),
        training_log(workspace, registry.model, trained.ledger.key, params) as log,
        work.scratch() as scratch,
    ):
        for row in pq.read_table(trained.path / "history.parquet").to_pylist():
            log.epoch(row)
        version = _version_with_key(log.client, registry.model, work.key)
        champion = version_with_alias(log.client, registry.model, "champion")
        against = None
        if champion is not None and (version is None or number(champion) != number(version)):
            theirs = _predictions_of(champion, scores, data, evaluation, work, log.client, scratch)
            against = side_by_side(theirs, evaluated.path / PREDICTIONS, evaluation.metrics)
        if version is None:
            captioner = make_captioner(grids, evaluation, work.upstream)
            digest = write_bundle(captioner, scratch / "bundle")
            _log_files(log, work, scores)
            rivals = [] if champion is None or against is None else [Rival(_name(champion), against.scores)]
            earlier = earlier_versions(log.client, registry.model, scores)
            _log_report(log, captioner, work, data, evaluation, scores, rivals, earlier, scratch)
            drop_unregistered(log, registry.model)
            libraries = ("timm",) if grids.backbone.startswith("timm:") else ()
            source = log_model(log.run_id, scratch / "bundle", libraries)
            text = card(registry.model, data, grids, decoder, training, evaluation, work.upstream, scores)
            version = _create_version(log, registry.model, source, work, scores, digest, text)
        alias, why = _decide(log.client, registry, version, champion, against)
    uri = address_of(version)
    told = {"model": registry.model, "version": version.version, "alias": alias, "why": why, "uri": uri}
    told |= {"store": store_of(workspace), "run_id": log.run_id}
    (work.out / REGISTRATION).write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
    return Outcome({"version": digest_of([registry.model, version.version])}, {"version": int(version.version)}, [why])


def _files_behind(made: Mapping[str, Artifact]) -> dict[str, str]:
    """What came from outside beside the data set, for MLflow: backbone weights and word vectors."""
    given = {"grids.weights": made["extract"].ledger.parts["inputs"]["weights"]}
    vectors = made["train"].ledger.parts["inputs"]
    return given | {f"decoder.{name}": digest for name, digest in vectors.items()}


def _version_with_key(client: MlflowClient, model: str, key: str) -> ModelVersion | None:
    found = client.search_model_versions(f"name = '{model}'")
    return next((version for version in found if version.tags.get(_KEY) == key), None)


def _log_files(log: TrainingLog, work: Work, scores: dict[str, Any]) -> None:
    log_scores(log.client, log.run_id, scores["scores"])
    log.client.set_tag(log.run_id, "attend.signature", scores["signature"])
    evaluation = _evaluation_folder(work)
    places = {
        "evaluate": ((PREDICTIONS, evaluation), (SCORES, evaluation)),
        "tensorise": (("vocabulary.json", ""),),
        "tune": (("history.parquet", "tune"),),
    }
    logged = [(work.upstream[stage], files) for stage, files in places.items() if stage in work.upstream]
    trained = last_trained(work.upstream)
    weights = [path.name for path in (*kept_weights(trained.path), trained.path / LAST)]
    for artifact, files in [(trained, [(HISTORY, ""), *((name, "checkpoints") for name in weights)]), *logged]:
        for file, folder in files:
            log.client.log_artifact(log.run_id, str(artifact.path / file), folder or None)


def _create_version(
    log: TrainingLog, model: str, source: str, work: Work, scores: dict[str, Any], digest: str, description: str
) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):  # it exists already
        log.client.create_registered_model(model)
    tags = {
        _KEY: work.key,
        TRAIN_KEY: last_trained(work.upstream).ledger.key,
        "attend.bundle": digest,
        "attend.data": scores["data"],
        "attend.signature": scores["signature"],
        EVALUATION: _evaluation_folder(work),
        **{f"score.{name}": repr(value) for name, value in scores["scores"].items()},
        **{f"attend.made_from.{stage}": artifact.ledger.key for stage, artifact in work.upstream.items()},
    }
    return log.client.create_model_version(
        model,
        source,
        log.run_id,
        tags=tags,
        description=description,
        model_id=source.removeprefix("models:/"),
    )


def _log_report(
    log: TrainingLog,
    captioner: Captioner,
    work: Work,
    data: DatasetOptions,
    evaluation: EvaluationConfig,
    scores: dict[str, Any],
    rivals: list[Rival],
    earlier: list[Earlier],
    scratch: Path,
) -> None:
    made = work.upstream
    manifest = made["ingest"].path
    write_report(
        scratch / REPORT,
        f"{log.client.get_run(log.run_id).info.run_name}: {scores['pictures']:,} held-out pictures",
        scores,
        made["evaluate"].path / PREDICTIONS,
        captioner,
        files_of(manifest, data.image_folder(manifest / GENERATED)),
        evaluation.decoding(),
        pq.read_table(last_trained(made).path / "history.parquet").to_pylist(),
        rivals,
        earlier,
    )
    log.client.log_artifact(log.run_id, str(scratch / REPORT), _evaluation_folder(work))


def _evaluation_folder(work: Work) -> str:
    """Where the run keeps an evaluation: a training may be evaluated by many settings, and is one run."""
    return f"evaluation-{work.upstream['evaluate'].ledger.key[:12]}"


def _name(version: ModelVersion) -> str:
    return f"version {version.version}"


def _decide(
    client: MlflowClient,
    registry: RegistryConfig,
    version: ModelVersion,
    champion: ModelVersion | None,
    against: SideBySide | None,
) -> tuple[str, str]:
    """The version's alias, and why. against: the champion compared with it, where that is another version."""
    if champion is None:
        return "champion", crown(client, version, f"{_name(version)} is champion: the first")
    if against is None:
        return "champion", f"{_name(version)} is champion"
    if rolled_back(client, version):
        why = f"{_name(version)} was champion and was rolled back: `attend promote` makes it champion again"
        return "challenger", why
    compared = next(item for item in against.scores if item.score == registry.promote_on)
    return promote(client, version, champion, compared, registry.certainty)


def _predictions_of(
    champion: ModelVersion,
    scores: dict[str, Any],
    data: DatasetOptions,
    evaluation: EvaluationConfig,
    work: Work,
    client: MlflowClient,
    scratch: Path,
) -> Path:
    """The champion's captions of the same pictures by the same settings: as its run kept them, or else found now."""
    if (
        champion.tags.get("attend.data") == scores["data"]
        and champion.tags.get("attend.signature") == scores["signature"]
    ):
        kept = version_predictions(client, champion, scratch / "kept")
        if kept is not None:
            return kept

    name = f"{champion.name} version {champion.version}"
    say(f"register: {name} was scored on other pictures or settings; scoring it on these")
    captioner = load_captioner(address_of(champion))
    predictions = scratch / "champion.parquet"
    rescore(
        captioner,
        name,
        work.upstream["ingest"],
        data,
        read_vocabulary(work.upstream["tensorise"].path),
        evaluation,
        predictions,
        list(read_predictions(work.upstream["evaluate"].path / PREDICTIONS)),
    )
    return predictions
