"""A registered version's card: what it is made of, what it was trained on and scored, and what it says."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pyarrow.parquet as pq

from tasks.config.schema import Config, TrainingConfig
from tasks.evaluation.predictions import PREDICTIONS, read_predictions, score_lines
from tasks.metrics.bleu import of_one
from tasks.pipeline.ledger import Artifact
from tasks.registry.made_from import MadeFrom
from tasks.training.outputs import HISTORY
from tasks.training.precision import SHARE, precision_by_epoch

_SAMPLES = 3


def card(config: Config, made: MadeFrom, told: dict[str, Any]) -> str:
    """Return Markdown. told: scores.json."""
    data, grids, decoder, training, evaluation = (
        config.data,
        config.grids,
        config.decoder,
        config.training,
        config.evaluation,
    )
    ingested, trained = made.manifest.ledger.counts, made.trained.ledger.counts
    members = evaluation.ensemble
    together = f"{members} checkpoints together, " if members > 1 else ""
    further = (
        f", then {made.self_critical.ledger.counts['epochs']} epochs rewarded by CIDEr-D"
        if made.self_critical is not None
        else ""
    )
    words = made.captions.ledger.counts
    splits = ", ".join(f"{ingested[split]:,} {split}" for split in ("train", "dev", "test") if split in ingested)
    tuned = ", fine-tuned on these pictures" if made.tuned is not None else ""
    seen = ", trained on cropped and mirrored views too" if made.views is not None else ""
    lines = [
        f"# {config.registry.model}",
        "",
        f"Captions photographs. Made by attend {metadata.version('attend')}.",
        "",
        "## Data",
        "",
        f"{ingested['pictures']:,} pictures ({splits}) with {ingested['captions']:,} captions, read as "
        f"`{data.model_dump()['adapter']}`; a vocabulary of {words['words']:,}. It knows no other words, and says what "
        "captions like these say.",
        "",
        "## Model",
        "",
        f"- backbone: `{grids.backbone}`, {grids.image_size} px ({grids.fit}), {grids.precision}{tuned}{seen}",
        f"- decoder: {together}`{decoder.name}`, {trained['epochs']} epochs{further}, seed {training.seed}, "
        f"{_precision(made.trained, training)}",
        "",
        "## Scores",
        "",
        *score_lines(told),
        "",
    ]
    ranked = sorted(read_predictions(made.scores.path / PREDICTIONS).values(), key=of_one, reverse=True)
    for title, chosen in (("good", ranked[:_SAMPLES]), ("bad", ranked[::-1][:_SAMPLES])):
        lines += [f"## Captions: {title}", "", "| it says | a person wrote |", "| --- | --- |"]
        lines += [f"| {_cell(item.caption)} | {_cell(item.references[0])} |" for item in chosen]
        lines.append("")
    return "\n".join(lines)


def _cell(words: list[str]) -> str:
    return " ".join(words).replace("|", "\\|")


def _precision(trained: Artifact, training: TrainingConfig) -> str:
    """Return what the training was computed in; an artifact of before that was kept says what was asked for."""
    history = pq.read_table(trained.path / HISTORY).to_pylist()
    return precision_by_epoch(history) if SHARE in history[0] else training.precision
