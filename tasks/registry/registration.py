"""The trained model's run in MLflow, its version, and whether that is champion.

A registered version is a self-contained bundle (see bundle.py) with a card and a report. Who is champion is decided
in promotion.py.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tasks.common.progress import say
from tasks.config.schema import Config, RegistryConfig
from tasks.data.captions import VOCABULARY, read_vocabulary
from tasks.data.manifest import GENERATED, files_of
from tasks.evaluation.predictions import PREDICTIONS, SCORES, read_predictions
from tasks.evaluation.report import REPORT, Earlier, Rival, write_report
from tasks.evaluation.rescore import rescore
from tasks.pipeline.ledger import Outcome, digest_of
from tasks.pipeline.plan import by_kind
from tasks.pipeline.stage import Work
from tasks.pipeline.workspace import Workspace
from tasks.registry.bundle import make_captioner, write_bundle
from tasks.registry.logged_model import drop_unregistered, load_captioner, log_model
from tasks.registry.made_from import MadeFrom
from tasks.registry.model_card import card
from tasks.registry.promotion import SideBySide, crown, promote, rolled_back, side_by_side
from tasks.registry.tracking import TRAIN_KEY, TrainingLog, log_scores, store_of, training_log
from tasks.registry.versions import (
    EVALUATION,
    address_of,
    earlier_versions,
    number,
    version_predictions,
    version_with_alias,
)
from tasks.training.outputs import HISTORY, LAST, kept_weights

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from models.captioner import Captioner

REGISTRATION = "registration.json"
_KEY = "attend.key"


def register_captioner(config: Config, made: MadeFrom, params: dict[str, Any], work: Work) -> Outcome:
    """Log the trained model with its history, scores and samples, register it, and decide who is champion.

    made: the artifacts that the captioner is made from. params: of the model's run in MLflow.
    """
    workspace, registry, evaluation = config.workspace, config.registry, config.evaluation
    scores = json.loads((made.scores.path / SCORES).read_text(encoding="utf-8"))
    with (
        Workspace(workspace).lock(f"registry-{registry.model}", f"registration of {registry.model}"),
        training_log(workspace, registry.model, made.decoder.ledger.key, params) as log,
        work.scratch() as scratch,
    ):
        for row in pq.read_table(made.decoder.path / HISTORY).to_pylist():
            log.epoch(row)
        version = _version_with_key(log.client, registry.model, work.key)
        champion = version_with_alias(log.client, registry.model, "champion")
        against = None
        if champion is not None and (version is None or number(champion) != number(version)):
            theirs = _predictions_of(champion, scores, config, made, log.client, scratch)
            against = side_by_side(theirs, made.scores.path / PREDICTIONS, evaluation.metrics)
        if version is None:
            captioner = make_captioner(config.grids, evaluation, made)
            digest = write_bundle(captioner, scratch / "bundle")
            _log_files(log, made, scores)
            rivals = [] if champion is None or against is None else [Rival(_name(champion), against.scores)]
            earlier = earlier_versions(log.client, registry.model, scores)
            _log_report(log, captioner, config, made, scores, rivals, earlier, scratch)
            drop_unregistered(log, registry.model)
            libraries = ("timm",) if config.grids.backbone.startswith("timm:") else ()
            source = log_model(log.run_id, scratch / "bundle", libraries)
            text = card(config, made, scores)
            version = _create_version(log, registry.model, source, work, made, scores, digest, text)
        alias, why = _decide(log.client, registry, version, champion, against)
    uri = address_of(version)
    told = {"model": registry.model, "version": version.version, "alias": alias, "why": why, "uri": uri}
    told |= {"store": store_of(workspace), "run_id": log.run_id}
    (work.out / REGISTRATION).write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
    return Outcome({"version": digest_of([registry.model, version.version])}, {"version": int(version.version)}, [why])


def _version_with_key(client: MlflowClient, model: str, key: str) -> ModelVersion | None:
    found = client.search_model_versions(f"name = '{model}'")
    return next((version for version in found if version.tags.get(_KEY) == key), None)


def _log_files(log: TrainingLog, made: MadeFrom, scores: dict[str, Any]) -> None:
    log_scores(log.client, log.run_id, scores["scores"])
    log.client.set_tag(log.run_id, "attend.signature", scores["signature"])
    evaluation = _evaluation_folder(made)
    files = [(made.decoder.path / HISTORY, "")]
    files += [(path, "checkpoints") for path in (*kept_weights(made.decoder.path), made.decoder.path / LAST)]
    files += [(made.scores.path / PREDICTIONS, evaluation), (made.scores.path / SCORES, evaluation)]
    files.append((made.captions.path / VOCABULARY, ""))
    if made.tuned is not None:
        files.append((made.tuned.path / HISTORY, "tune"))
    for path, folder in files:
        log.client.log_artifact(log.run_id, str(path), folder or None)


def _create_version(
    log: TrainingLog,
    model: str,
    source: str,
    work: Work,
    made: MadeFrom,
    scores: dict[str, Any],
    digest: str,
    description: str,
) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):  # it exists already
        log.client.create_registered_model(model)
    tags = {
        _KEY: work.key,
        TRAIN_KEY: made.decoder.ledger.key,
        "attend.bundle": digest,
        "attend.data": scores["data"],
        "attend.signature": scores["signature"],
        EVALUATION: _evaluation_folder(made),
        **{f"score.{name}": repr(value) for name, value in scores["scores"].items()},
        **{f"attend.made_from.{stage}": artifact.ledger.key for stage, artifact in by_kind(work.artifacts).items()},
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
    config: Config,
    made: MadeFrom,
    scores: dict[str, Any],
    rivals: list[Rival],
    earlier: list[Earlier],
    scratch: Path,
) -> None:
    manifest = made.manifest.path
    write_report(
        scratch / REPORT,
        f"{log.client.get_run(log.run_id).info.run_name}: {scores['pictures']:,} held-out pictures",
        scores,
        made.scores.path / PREDICTIONS,
        captioner,
        files_of(manifest, config.data.image_folder(manifest / GENERATED)),
        config.evaluation.decoding(),
        pq.read_table(made.decoder.path / HISTORY).to_pylist(),
        rivals,
        earlier,
    )
    log.client.log_artifact(log.run_id, str(scratch / REPORT), _evaluation_folder(made))


def _evaluation_folder(made: MadeFrom) -> str:
    """Where the run keeps an evaluation: a training may be evaluated by many settings, and is one run."""
    return f"evaluation-{made.scores.ledger.key[:12]}"


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
    config: Config,
    made: MadeFrom,
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
        made.manifest,
        config.data,
        read_vocabulary(made.captions.path),
        config.evaluation,
        predictions,
        list(read_predictions(made.scores.path / PREDICTIONS)),
    )
    return predictions
