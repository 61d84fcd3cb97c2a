"""The runtimes of a registered captioner other than torch: exported, and scored like any model before they are kept."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.captioner import Captioner
from models.onnx.captioner import OnnxCaptioner
from models.options import Runtime
from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.captioner.exported.folder import complete
from tasks.captioner.exported.graphs import export
from tasks.common.log import log
from tasks.config.schema import Config
from tasks.data.caption_files import read_vocabulary
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions
from tasks.evaluation.rescore import rescore
from tasks.evaluation.score_record import ScoreRecord
from tasks.grids.index import open_grids
from tasks.grids.weights import IMPORTED


@dataclass(frozen=True)
class ExportedRuntime:
    """An exported runtime.

    name: of `Runtime`. folder: with its files. metric: for the comparison with torch; None if it does not apply to
    these captions. score, of_torch: that score of both, in percent. same: how many of the captions, of all `pictures`,
    equal torch's. kept: whether its score is below torch's by no more than `registry.max_runtime_loss`.
    """

    name: Runtime
    folder: Path
    metric: str | None
    score: float
    of_torch: float
    same: int
    pictures: int
    kept: bool

    def __str__(self) -> str:
        scores = f"{self.metric} {self.score:.2f}, torch {self.of_torch:.2f}; " if self.metric else ""
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        refused = "" if self.kept else "left out: it falls short of torch by more than registry.max_runtime_loss; "
        return f"{refused}{scores}{self.same:,} of {self.pictures:,} captions as torch's; {size / 1e6:.1f} MB"


def export_runtimes(
    captioner: Captioner, config: Config, artifacts: CaptionerArtifacts, scores: ScoreRecord, folder: Path
) -> list[ExportedRuntime]:
    """Export a captioner for each runtime of `registry.runtimes` except torch, below `folder`, and score them.

    captioner: on the CPU. scores: of the captioner in torch. Raises AttendError if it cannot be exported.
    """
    names = [name for name in config.registry.runtimes if name != "torch"]
    exported = []
    if names:
        log.info(f"register: exporting for {', '.join(names)}")
        export(captioner, folder / "graphs")
    for name in names:
        shutil.copytree(folder / "graphs", folder / name)
        complete(folder / name, name)
        exported.append(_scored(name, folder / name, config, artifacts, scores, folder / f"{name}.parquet"))
    for runtime in exported:
        (log.info if runtime.kept else log.warning)(f"register: {runtime.name}: {runtime}")
    return exported


def _scored(
    name: Runtime,
    folder: Path,
    config: Config,
    artifacts: CaptionerArtifacts,
    scores: ScoreRecord,
    predictions: Path,
) -> ExportedRuntime:
    """Return the runtime in a folder with its scores, on the pictures that the captioner in torch was scored on."""
    in_torch = read_predictions(artifacts.scores.path / PREDICTIONS)
    captioned = caption_alike(OnnxCaptioner(folder), name, config, artifacts, predictions)
    captions = read_predictions(predictions)
    metric = config.registry.promote_on
    applies = metric in captioned["scores"] and metric in scores["scores"]
    score, of_torch = (part["scores"][metric] if applies else 0.0 for part in (captioned, scores))
    return ExportedRuntime(
        name,
        folder,
        metric if applies else None,
        score,
        of_torch,
        sum(captions[digest].caption == in_torch[digest].caption for digest in captions),
        len(captions),
        score >= of_torch - config.registry.max_runtime_loss,
    )


def caption_alike(
    captioner: Any, name: str, config: Config, artifacts: CaptionerArtifacts, predictions: Path
) -> ScoreRecord:
    """Write a captioner's captions of the pictures that a version was evaluated on, and return their scores.

    See `rescore`. name: the captioner's, for messages. artifacts: of the version. predictions: the Parquet file.
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
