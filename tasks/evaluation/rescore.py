"""Scoring a registered captioner from photographs, with the code and the backbone saved in it, without the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.captioned import key_of_digest, takes_grids
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.common.progress import in_parts
from tasks.config.stages import EvaluationConfig
from tasks.data.manifest import files_by_digest, read_pictures
from tasks.datasets.base import DatasetOptions
from tasks.evaluation.caption_and_score import score, write_predictions
from tasks.evaluation.score_record import ScoreRecord
from tasks.grids.photographs import read_photograph
from tasks.grids.reader import GridReader
from tasks.pipeline.ledger import Artifact

_BATCH = 64


def rescore(
    captioner: Any,
    name: str,
    manifest: Artifact,
    data: DatasetOptions,
    vocabulary: Vocabulary,
    evaluation: EvaluationConfig,
    predictions: Path,
    digests: Sequence[str] | None = None,
    grids: GridReader | None = None,
) -> ScoreRecord:
    """Caption pictures of `evaluation.split` with a registered model, write the captions, and score the written file.

    The model uses its own search settings, not those of `evaluation`. captioner: as returned by `load_captioner`. name:
    the model's name, for messages. vocabulary: the data set's, to count the references' words that it lacks.
    predictions: the Parquet file to write. digests: the pictures to caption; None for all of the split. grids: the
    pictures' grids, to caption in place of their photographs. Pictures that cannot be decoded are left out. Return the
    scores, as `score` does. Raise AttendError if no picture could be read.
    """
    files = files_by_digest(manifest.path, data)
    pictures = read_pictures(manifest.path, evaluation.split)
    selected = [picture.digest for picture in pictures] if digests is None else list(digests)
    rows: list[dict[str, Any]] = []
    for part in in_parts(selected, _BATCH, f"captions of {name}"):
        captioned = _caption(captioner, part, files, data, grids)
        rows += [
            {"digest": digest, "caption": item.caption, "log_probability": item.log_probability}
            for digest, item in zip(part, captioned, strict=True)
            if item.error is None
        ]
    if not rows:
        takes = " (it takes grids)" if takes_grids(captioner.config) else ""
        raise AttendError(f"{name}{takes}: no picture of the split {evaluation.split!r} could be read")
    write_predictions(rows, pictures, predictions)
    return score(
        predictions, pictures, read_pictures(manifest.path, "train"), vocabulary, evaluation, captioner.decoding
    )


def _caption(
    captioner: Any,
    digests: Sequence[str],
    files: Mapping[str, Path],
    data: DatasetOptions,
    grids: GridReader | None,
) -> list[Any]:
    """Return the captioner's results for pictures, from their grids if given, else from their files."""
    if grids is None and not data.has_grids:
        return list(captioner.caption([read_photograph(digest, files[digest]) for digest in digests]))
    values = np.stack([np.load(files[digest]) for digest in digests]) if grids is None else grids.read(list(digests))
    return list(captioner.from_cached(values, [key_of_digest(digest) for digest in digests]))
