"""Score a captioner from photographs: its own code, its own backbone, nothing out of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.common.progress import Bar
from tasks.config.schema import EvaluationConfig
from tasks.data.manifest import GENERATED, files_of, pictures_of
from tasks.datasets.base import DatasetOptions
from tasks.evaluation.predictions import score, write_predictions
from tasks.grids.encoding import read_photograph
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
