"""Captions by another captioner of the pictures that a version was evaluated on, as it was, and their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.config.schema import Config
from tasks.data.caption_files import read_vocabulary
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions
from tasks.evaluation.rescore import rescore
from tasks.evaluation.score_record import ScoreRecord
from tasks.grids.index import open_grids
from tasks.grids.weights import IMPORTED


def caption_alike(
    captioner: Any, name: str, config: Config, artifacts: CaptionerArtifacts, predictions: Path
) -> ScoreRecord:
    """Write the captions of a captioner to the Parquet file `predictions`, and return their scores: see `rescore`.

    name: the captioner's name, for messages. artifacts: of the version, whose pictures are captioned.
    """
    return rescore(
        captioner,
        name,
        artifacts.manifest,
        config.data,
        read_vocabulary(artifacts.captions.path),
        config.evaluation,
        predictions,
        list(read_predictions(artifacts.scores.path / PREDICTIONS)),
        open_grids(artifacts.grids, config.machine) if config.grids.backbone == IMPORTED else None,
    )
