"""Score a registered model from photographs, on a config's current held-out pictures."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.planned_run import planned_run
from models.captioned import takes_grids
from tasks.config.schema import Config
from tasks.data.caption_files import read_vocabulary
from tasks.data.manifest import files_by_digest, read_pictures
from tasks.evaluation.caption_and_score import PREDICTIONS, captions_in, describe_pictures
from tasks.evaluation.coco_files import export
from tasks.evaluation.evaluate import Evaluate
from tasks.evaluation.report import REPORT, write_report
from tasks.evaluation.rescore import rescore
from tasks.evaluation.score_record import SCORES, ScoreRecord, read_scores, write_scores
from tasks.mlflow_store import tracking
from tasks.mlflow_store.lineage import pictures_of
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.runs import find_evaluation_run, log_evaluation
from tasks.mlflow_store.versions import address_of, earlier_versions, files_of, logged_model_of, version_of_address
from tasks.pipeline.ledger import Artifact, digest_of
from tasks.pipeline.run import run_stage

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class RegisteredScores:
    """The scores of a registered model. model: name and version. run_id: of the MLflow run that stores them."""

    model: str
    run_id: str
    scores: ScoreRecord


def evaluate_registered(config: Config, model: str | None = None, results: Path | None = None) -> RegisteredScores:
    """Score a registered model on `config`'s held-out pictures, and return the scores with the MLflow run's id.

    The version captions with the search that it was registered with, whatever the config's `evaluation` sets. The
    scores and the captions are stored in an MLflow run. If a run exists for the same version, pictures and metrics, it
    is read instead. model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; None for the champion of the config's
    model. results: a folder for the captions and their references, in the formats of the COCO caption toolkit.
    """
    address = model or f"models:/{config.registry.model}@champion"
    with planned_run(config, "tensorise", f"evaluation of {address}") as plan:
        client = tracking.connect(config.workspace)
        version = version_of_address(client, address)
        for stage in ("ingest", "tensorise"):
            run_stage(plan, stage)
        stage_artifacts = plan.by_kind
        name = f"{version.name} version {version.version}"
        manifest, captions = stage_artifacts["ingest"], stage_artifacts["tensorise"]
        split_digests = [manifest.products[split] for split in (config.evaluation.split, "train")]
        vocabulary_digest = captions.products["vocabulary"]
        settings = [Evaluate.version, config.evaluation.metrics]
        key = digest_of([version.name, version.version, split_digests, vocabulary_digest, settings])
        run_id = find_evaluation_run(client, config.workspace, version.name, key)
        with tempfile.TemporaryDirectory(prefix="attend-") as scratch:
            if run_id is None:
                captioner = load_captioner(address_of(version), files_of(client, version), "torch")
                scores = _score(config, captioner, version, manifest, captions, client, Path(scratch))
                scored = pictures_of(manifest, config, config.evaluation.split)
                run_id = log_evaluation(
                    client, config.workspace, version, key, scores, scratch, logged_model_of(client, version), scored
                )
            else:
                scores = read_scores(Path(client.download_artifacts(run_id, SCORES, scratch)).parent)
            if results is not None:
                predictions = captions_in(Path(client.download_artifacts(run_id, PREDICTIONS, scratch)))
                export(predictions, read_pictures(manifest.path, config.evaluation.split), results)
    return RegisteredScores(name, run_id, scores)


def _score(
    config: Config,
    captioner: Any,
    version: ModelVersion,
    manifest: Artifact,
    captions: Artifact,
    client: MlflowClient,
    out: Path,
) -> ScoreRecord:
    """Write predictions, scores and report to the folder `out`, and return the scores."""
    name, vocabulary = f"{version.name} version {version.version}", read_vocabulary(captions.path)
    predictions = out / PREDICTIONS
    scores = rescore(captioner, name, manifest, config.data, vocabulary, config.evaluation, predictions)
    write_scores(scores, out)
    if config.data.has_grids != takes_grids(captioner.config):  # the captioner cannot read this data set's files
        return scores
    write_report(
        out / REPORT,
        f"{name}: {describe_pictures(scores)}",
        scores,
        predictions,
        captioner,
        files_by_digest(manifest.path, config.data),
        None,
        captioner.decoding,
        earlier=earlier_versions(client, version.name, scores),
    )
    return scores
