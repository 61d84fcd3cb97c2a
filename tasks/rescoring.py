"""Score a registered model from photographs: its own code, its own backbone, nothing out of the cache."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.vocabulary import Vocabulary
from tasks import tracking
from tasks.captions import read_vocabulary
from tasks.config import Config, EvaluationConfig
from tasks.datasets.base import DatasetOptions
from tasks.errors import AttendError
from tasks.evaluation import PREDICTIONS, SCORES, captions_in, score, write_predictions
from tasks.extraction import read_photograph
from tasks.ledger import Artifact, digest_of
from tasks.logged_model import load_captioner
from tasks.manifest import GENERATED, files_of, pictures_of
from tasks.progress import Bar
from tasks.report import REPORT, write_report
from tasks.results import export
from tasks.running import run_stage
from tasks.sessions import prepare, session
from tasks.stages import BY_NAME
from tasks.staleness import artifacts, inputs_of
from tasks.versions import address_of, earlier_versions, version_at
from tasks.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_BATCH = 64


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
        inputs = inputs_of(config, "tensorise")
        for stage in ("ingest", "tensorise"):
            run_stage(config, stage, inputs)
        made = artifacts(config, "tensorise", inputs)
        name = f"{version.name} version {version.version}"
        pictures = [made["ingest"].products[split] for split in (config.evaluation.split, "train")]
        words = made["tensorise"].products["vocabulary"]
        settings = [BY_NAME["evaluate"].version, config.evaluation.key_part()]
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


def rescore(
    captioner: Any,
    name: str,
    manifest: Artifact,
    data: DatasetOptions,
    vocabulary: Vocabulary,
    evaluation: EvaluationConfig,
    predictions: Path,
    digests: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Caption pictures of `evaluation.split` with a registered model, write the captions, and score what was written.

    captioner: of `load_captioner`. name: the model, for messages. vocabulary: of the data set, to tell which
    words of the references it lacks. predictions: the Parquet file to write. digests: the pictures; all that can be
    read where not given. Raises AttendError where the model's own code cannot search as `evaluation` asks.
    """
    files = files_of(manifest.path, data.image_folder(manifest.path / GENERATED))
    pictures = pictures_of(manifest.path, evaluation.split)
    wanted = [picture.digest for picture in pictures] if digests is None else list(digests)
    rows: list[dict[str, Any]] = []
    with Bar(len(wanted), f"captions of {name}", "pictures") as bar:
        for at in range(0, len(wanted), _BATCH):
            part = wanted[at : at + _BATCH]
            try:
                photographs = [read_photograph(digest, files[digest]) for digest in part]
                captioned = captioner.caption(photographs, **evaluation.decoding())
            except TypeError as error:
                raise AttendError(
                    f"{name}: its own code cannot search as evaluation asks ({error}): "
                    "change evaluation.*, or take its alias from it and run again"
                ) from None
            rows += [
                {"digest": digest, "caption": item.caption, "log_probability": item.log_probability}
                for digest, item in zip(part, captioned, strict=True)
                if item.error is None
            ]
            bar.advance(len(part))
    if not rows:
        raise AttendError(f"{name}: no picture of the split {evaluation.split!r} could be read")
    write_predictions(rows, pictures, predictions)
    return score(predictions, pictures, pictures_of(manifest.path, "train"), vocabulary, evaluation)
