"""The model card of a registered version: its parts, training data, scores, and samples of its captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import pyarrow.parquet as pq

from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.captioner.runtimes import ExportedRuntime
from tasks.common.wording import counted_by_split
from tasks.config.schema import Config
from tasks.data.manifest import sources_by_digest
from tasks.datasets.base import SPLITS
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions, score_lines
from tasks.evaluation.score_record import ScoreRecord
from tasks.evaluation.slices import scores_by_slice
from tasks.metrics.bleu import sentence_bleu4
from tasks.registry.gates import GateResult
from tasks.training.outputs import HISTORY
from tasks.training.precision import precision_by_epoch

_SAMPLES = 3


def card(
    config: Config,
    artifacts: CaptionerArtifacts,
    scores: ScoreRecord,
    gates: Sequence[GateResult] = (),
    exported: Sequence[ExportedRuntime] = (),
) -> str:
    """Return the model card of a captioner as Markdown.

    scores: the content of scores.json. gates: the gates' results. exported: the runtimes other than torch.
    """
    data, decoder, training = config.data, config.decoder, config.training
    ingested, trained = artifacts.manifest.ledger.counts, artifacts.trained.ledger.counts
    several = f"{decoder.members} times " if decoder.members > 1 else ""
    self_critical = (
        f", then {artifacts.self_critical.ledger.counts['epochs']} epochs rewarded by CIDEr-D"
        if artifacts.self_critical is not None
        else ""
    )
    vocabulary = artifacts.captions.ledger.counts
    splits = counted_by_split({split: ingested[split] for split in SPLITS if split in ingested})
    tuned = ", fine-tuned on these pictures" if artifacts.tuned is not None else ""
    takes = "grids that another program made, each a .npy file" if config.encoding is None else "photographs"
    lines = [
        f"# {config.registry.model}",
        "",
        f"Captions {takes}. Made by attend {metadata.version('attend')}.",
        "",
        "## Data",
        "",
        f"{ingested['pictures']:,} pictures ({splits}) with {ingested['captions']:,} captions, read as "
        f"`{data.model_dump()['adapter']}`; a vocabulary of {vocabulary['words']:,}. It knows no other words, "
        "and says what captions like these say.",
        "",
        "## Model",
        "",
        f"- backbone: {_backbone(config)}{tuned}",
        f"- decoder: {several}`{decoder.name}`, {trained['epochs']} epochs{self_critical}, seed {training.seed}, "
        f"{precision_by_epoch(pq.read_table(artifacts.trained.path / HISTORY).to_pylist())}",
        *([] if config.starting_point is None else [f"- started from: {ancestry(config.starting_point.origin())}"]),
        "",
        "## Scores",
        "",
        *score_lines(scores),
        "",
    ]
    captions = read_predictions(artifacts.scores.path / PREDICTIONS)
    if parts := scores_by_slice(captions, sources_by_digest(artifacts.manifest.path, data)):
        lines += ["## Slices", "", "| pictures | number | CIDEr, 95 % interval |", "| --- | --- | --- |"]
        lines += [
            f"| {part.name} | {part.pictures:,} | {part.cider:.1f} ({part.interval[0]:.1f} to {part.interval[1]:.1f}) |"
            for part in parts
        ]
        lines.append("")
    if gates:
        lines += ["## Gates", ""]
        lines += [f"- {'refused' if result.refused else 'passed'}: {result}" for result in gates]
        lines.append("")
    if exported:
        lines += ["## Runtimes", "", "- torch", *(f"- {runtime.name}: {runtime}" for runtime in exported), ""]
    ranked = sorted(captions.values(), key=sentence_bleu4, reverse=True)
    for title, chosen in (("good", ranked[:_SAMPLES]), ("bad", ranked[::-1][:_SAMPLES])):
        lines += [f"## Captions: {title}", "", "| it says | a person wrote |", "| --- | --- |"]
        lines += [f"| {_cell(item.caption)} | {_cell(item.references[0])} |" for item in chosen]
        lines.append("")
    return "\n".join(lines)


def ancestry(origin: Mapping[str, Any]) -> str:
    """Return the captioners that a training started from, latest first. origin: see `StartingPoint.origin`."""
    shown = f"{origin['address']} ({origin['digest'][:12]})"
    earlier = origin["started_from"]
    return shown if earlier is None else f"{shown}, which started from {ancestry(earlier)}"


def _backbone(config: Config) -> str:
    """Return the backbone and the preprocessing of photographs, in Markdown."""
    grids = config.encoding
    if grids is None:
        return f"none: the grids are imported (`{config.grids.weights}`)"
    projected = ", projected" if config.encoder is not None and config.encoder.projection is not None else ""
    return f"`{grids.backbone}`, {grids.image_size} px ({grids.fit}), {grids.precision}{projected}"


def _cell(words: list[str]) -> str:
    """Return words as the text of a Markdown table's cell."""
    return " ".join(words).replace("|", "\\|")
