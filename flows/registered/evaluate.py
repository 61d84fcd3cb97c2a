"""Score a registered model from photographs, on a config's held-out pictures as they are today."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.pipeline import pipeline_of
from flows.prepare import prepare
from tasks.config.schema import Config
from tasks.data.captions import read_vocabulary
from tasks.data.manifest import GENERATED, files_of, pictures_of
from tasks.evaluation.coco_files import export
from tasks.evaluation.evaluate import Scores
from tasks.evaluation.predictions import PREDICTIONS, SCORES, captions_in
from tasks.evaluation.report import REPORT, write_report
from tasks.evaluation.rescore import rescore
from tasks.pipeline.ledger import Artifact, digest_of
from tasks.pipeline.plan import artifacts, inputs_of, up_to
from tasks.pipeline.run import run_stage
from tasks.pipeline.sessions import session
from tasks.pipeline.workspace import Workspace
from tasks.registry import tracking
from tasks.registry.logged_model import load_captioner
from tasks.registry.versions import address_of, earlier_versions, version_at

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def evaluate_registered(config: Config, model: str | None = None, results: Path | None = None) -> dict[str, Any]:
    """Score a registered model on `config`'s held-out pictures; an MLflow run keeps the scores and the captions.

    model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; the config's champion where not given. What was scored on
    the same pictures with the same settings is answered from that run. results: a folder that gets its captions and
    their references in the COCO caption toolkit's formats.
    """
    address = model or f"models:/{config.registry.model}@champion"
    prepare(config)
    with session(Workspace(config.workspace), f"evaluation of {address}"):
        client = tracking.connect(config.workspace)
        version = version_at(client, address)
        stages = up_to(pipeline_of(config), "tensorise")
        inputs = inputs_of(stages)
        for stage in ("ingest", "tensorise"):
            run_stage(stages, stage, inputs)
        made = artifacts(stages, inputs)
        name = f"{version.name} version {version.version}"
        pictures = [made["ingest"].products[split] for split in (config.evaluation.split, "train")]
        words = made["tensorise"].products["vocabulary"]
        settings = [Scores.version, config.evaluation.key_part()]
        key = digest_of([version.name, version.version, pictures, words, settings])
        run_id = tracking.evaluation_with(client, config.workspace, version.name, key)
        if run_id is None:
            captioner = load_captioner(address_of(version))
            with tempfile.TemporaryDirectory(prefix="attend-") as scratch:
                told = _evaluate(config, captioner, version, made, client, Path(scratch))
                run_id = tracking.log_evaluation(
                    client, config.workspace, version.name, f"{name} scored", key, told, scratch
                )
        else:
            told = json.loads(Path(client.download_artifacts(run_id, SCORES)).read_text(encoding="utf-8"))
        if results is not None:
            captioned = captions_in(Path(client.download_artifacts(run_id, PREDICTIONS)))
            export(captioned, pictures_of(made["ingest"].path, config.evaluation.split), results)
    return {"model": name, "run_id": run_id, **told}


def _evaluate(
    config: Config,
    captioner: Any,
    version: ModelVersion,
    made: dict[str, Artifact],
    client: MlflowClient,
    out: Path,
) -> dict[str, Any]:
    """Write predictions, scores and report into a folder; returns the scores."""
    name, vocabulary = f"{version.name} version {version.version}", read_vocabulary(made["tensorise"].path)
    predictions = out / PREDICTIONS
    told = rescore(captioner, name, made["ingest"], config.data, vocabulary, config.evaluation, predictions)
    (out / SCORES).write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
    write_report(
        out / REPORT,
        f"{name}: {told['pictures']:,} held-out pictures",
        told,
        predictions,
        captioner,
        files_of(made["ingest"].path, config.data.image_folder(made["ingest"].path / GENERATED)),
        config.evaluation.decoding(),
        earlier=earlier_versions(client, version.name, told),
    )
    return told
