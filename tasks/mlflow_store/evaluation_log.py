"""Log an evaluated training to MLflow, registered or not: its files, its report and its scores."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tasks.captioner.bundle import make_captioner
from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.config.schema import Config
from tasks.data.caption_files import VOCABULARY
from tasks.data.manifest import files_by_digest
from tasks.evaluation.caption_and_score import PREDICTIONS, describe_pictures
from tasks.evaluation.report import REPORT, ComparedModel, EarlierVersion, write_report
from tasks.evaluation.score_record import SCORES, ScoreRecord, confidence_metrics, copied_scores, read_scores
from tasks.grids.index import open_grids
from tasks.mlflow_store.lineage import log_pictures, pictures_of, source_tags
from tasks.mlflow_store.runs import CHECKPOINTS, PARENT_RUN, TrainingLog, flush_run, log_scores, training_log
from tasks.mlflow_store.version_pictures import pictures_table
from tasks.mlflow_store.versions import PICTURES
from tasks.neighbours.make_memory import read_remembered
from tasks.training.outputs import HISTORY, LAST, WEIGHTS

if TYPE_CHECKING:
    from models.captioner import Captioner

_LOGGED = "attend.logged"  # tag of a training's run: the evaluations whose files are all logged, separated by spaces


def log_unregistered(config: Config, artifacts: CaptionerArtifacts, params: dict[str, Any]) -> None:
    """Log an evaluated training that is not registered, unless it is logged already.

    artifacts: the captioner's. params: the parameters of the training's run.
    """
    scores, evaluation = read_scores(artifacts.scores.path), evaluation_name(artifacts)
    with training_log(config.workspace, config.registry.model, artifacts.decoder.ledger.key, params) as log:
        done = str(log.client.get_run(log.run_id).data.tags.get(_LOGGED, "")).split()
        if evaluation in done:
            return
        for row in pq.read_table(artifacts.decoder.path / HISTORY).to_pylist():
            log.epoch(row)
        log_files(log, artifacts)
        captioner = make_captioner(config, artifacts)
        with tempfile.TemporaryDirectory(prefix="attend-report-") as scratch:
            log_report(log, captioner, config, artifacts, scores, [], [], Path(scratch))
        log_data_and_scores(log, config, artifacts, scores, None)
        flush_run(log.client, log.run_id)
        log.client.set_tag(log.run_id, _LOGGED, " ".join([*done, evaluation]))


def evaluation_name(artifacts: CaptionerArtifacts) -> str:
    """Return the name of an evaluation's run, and of its folder in the training's run."""
    return f"evaluation-{artifacts.scores.ledger.key[:12]}"


def log_files(log: TrainingLog, artifacts: CaptionerArtifacts) -> None:
    """Log a model's histories, weights, predictions, scores and vocabulary, and its pictures' digests in its run."""
    evaluation = evaluation_name(artifacts)
    decoder = artifacts.decoder.path
    files = [(decoder / HISTORY, "")]
    files += [(decoder / name, CHECKPOINTS) for name in (WEIGHTS, LAST)]
    files += [(artifacts.scores.path / PREDICTIONS, evaluation), (artifacts.scores.path / SCORES, evaluation)]
    files.append((artifacts.captions.path / VOCABULARY, ""))
    if artifacts.tuned is not None:
        files.append((artifacts.tuned.path / HISTORY, "tune"))
    for path, folder in files:
        log.client.log_artifact(log.run_id, str(path), folder or None)
    with tempfile.TemporaryDirectory(prefix="attend-pictures-") as scratch:
        pq.write_table(pictures_table(artifacts.manifest.path), Path(scratch) / PICTURES)
        log.client.log_artifact(log.run_id, str(Path(scratch) / PICTURES), evaluation)


def log_report(
    log: TrainingLog,
    captioner: Captioner,
    config: Config,
    artifacts: CaptionerArtifacts,
    scores: ScoreRecord,
    rivals: list[ComparedModel],
    earlier: list[EarlierVersion],
    scratch: Path,
) -> None:
    """Write the evaluation's report and log it in the training's run."""
    reads_others = config.data.has_grids != captioner.takes_grids  # takes photographs from grids, or the reverse
    write_report(
        scratch / REPORT,
        f"{log.client.get_run(log.run_id).info.run_name}: {describe_pictures(scores)}",
        scores,
        artifacts.scores.path / PREDICTIONS,
        captioner,
        files_by_digest(artifacts.manifest.path, config.data),
        open_grids(artifacts.grids, config.machine) if reads_others else None,
        config.evaluation.decoding(),
        pq.read_table(artifacts.decoder.path / HISTORY).to_pylist(),
        rivals,
        earlier,
        read_remembered(artifacts.memory.path),
    )
    log.client.log_artifact(log.run_id, str(scratch / REPORT), evaluation_name(artifacts))


def log_data_and_scores(
    log: TrainingLog, config: Config, artifacts: CaptionerArtifacts, scores: ScoreRecord, model_id: str | None
) -> str:
    """Log the scores in a child of the training's run, and the pictures that both runs read. Returns the child's id.

    A training may be evaluated in several ways, each with a separate child; the training's run gets the scores that
    were logged last. model_id: of the logged model; None if there is none.
    """
    client, name = log.client, evaluation_name(artifacts)
    for split, context in (("train", "training"), ("dev", "validation")):
        log_pictures(client, log.run_id, pictures_of(artifacts.manifest, config, split), context)
    experiment = client.get_run(log.run_id).info.experiment_id
    query = f"tags.`{PARENT_RUN}` = '{log.run_id}' and attributes.run_name = '{name}'"
    earlier = client.search_runs([experiment], query, max_results=1)
    tags = {PARENT_RUN: log.run_id, "attend.signature": scores["signature"], **source_tags()}
    run = earlier[0] if earlier else client.create_run(experiment, tags=tags, run_name=name)
    run_id = str(run.info.run_id)
    scored = pictures_of(artifacts.manifest, config, config.evaluation.split)
    log_pictures(client, run_id, scored, "evaluation")
    figures = {**scores["scores"], **copied_scores(scores), **confidence_metrics(scores)}
    log_scores(client, run_id, figures, model_id=model_id, pictures=scored)
    client.set_terminated(run_id)
    log_scores(client, log.run_id, scores["scores"])  # MLflow's pages sort trainings by these
    return run_id
