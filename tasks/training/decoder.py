"""Fitting a decoder to the cached grids: what the training stages that end in a decoder share.

train.py says what is written; it resumes as loop.py says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from models.decoders.base import Decoder, make
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.config.devices import device_of
from tasks.config.schema import DecoderConfig, MachineConfig, OfGridsConfig, TrainingConfig, ViewsConfig
from tasks.data.captions import read_captions, read_vocabulary
from tasks.data.manifest import pictures_of
from tasks.data.word_vectors import load_word_vectors
from tasks.grids.index import open_grids
from tasks.grids.view_crops import choices
from tasks.pipeline import distributed as processes
from tasks.pipeline.ledger import Artifact, Outcome, digest_of
from tasks.training.batches import GridBatches, ResidentBatches
from tasks.training.loop import DEV_SCORES, EpochDone, Fit, GridDev
from tasks.training.objectives import CrossEntropy
from tasks.training.outputs import DECODER, kept_weights
from tasks.training.precision import precision_by_epoch, with_precision


@dataclass(frozen=True)
class FitSources:
    """What a decoder is fitted to and watched by: artifacts of the stages before. views: None where none are drawn."""

    manifest: Artifact
    captions: Artifact
    grids: Artifact
    views: tuple[ViewsConfig, Artifact] | None

    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.captions.path)


def fit_decoder(
    decoder: DecoderConfig,
    training: TrainingConfig,
    machine: MachineConfig,
    sources: FitSources,
    out: Path,
    epoch_done: EpochDone,
) -> Outcome:
    """Train, keep the weights with the best free-running dev score, and write them to `out`."""
    vocabulary = sources.vocabulary()
    training = with_precision(training, device_of(machine), "training")
    batches, dev = prepare("train", training, machine, sources)
    shape = {
        "name": decoder.name,
        "channels": batches.channels,
        "vocabulary": len(vocabulary),
        "options": decoder.options(),
    }
    first = _first_decoder(shape, decoder, training, batches, vocabulary)
    rates = {training.learning_rate: list(first.parameters())}
    fit = Fit(first, rates, training, machine, batches, out, CrossEntropy(training))
    fit.run(dev, epoch_done)
    return finish(fit, shape, out)


def prepare(
    stage: str, training: OfGridsConfig, machine: MachineConfig, sources: FitSources
) -> tuple[GridBatches, GridDev]:
    """Return the batches of the train split, with the views of its pictures where there are any, and the dev pictures.

    stage: its kind, for messages. training: its section, the precision decided.
    """
    grids, vocabulary = open_grids(sources.grids, machine), sources.vocabulary()
    pictures = read_captions(sources.captions.path, "train")
    device = device_of(machine)
    resident = machine.resident and device.type != "cpu"  # a CPU maps the files: as much as fits is in its memory
    of_grids = partial(ResidentBatches, device=device) if resident else GridBatches
    seen, chosen = grids, None
    if sources.views is not None:
        views, extracted = sources.views
        seen = grids.together_with(open_grids(extracted, machine))
        chosen = choices(pictures, views, vocabulary, seen)
    if training.block is None and seen.limit is not None and not resident and seen.size > seen.limit:
        section = "training" if stage == "train" else stage
        raise AttendError(
            f"{stage}: the grids take {seen.size / 2**30:.1f} GiB, and {seen.limit / 2**30:.1f} are kept here: set "
            f"{section}.block=64, so that they are read in long runs, or a larger machine.cache_gib"
        )
    batches = of_grids(pictures, seen, training.batch_pictures, training.seed, training.block, chosen)
    dev_pictures = pictures_of(sources.manifest.path, "dev")
    dev = GridDev(dev_pictures, grids, vocabulary, machine)
    if not batches.captioned or not dev.pictures:
        raise AttendError(f"{stage}: no picture of the train or dev split could be read: see extract's failed.parquet")
    return batches, dev


def finish(fit: Fit, shape: dict[str, Any], out: Path) -> Outcome:
    """Write what was trained; its product is the digest of the best weights and of the decoder's shape.

    The leader of several processes does; the others have nothing to write.
    """
    if processes.rank():
        return Outcome({})
    (out / DECODER).write_text(json.dumps(shape, indent=1, sort_keys=True), encoding="utf-8")
    fit.write()
    best = fit.history[fit.ranking()[0]]
    counts: dict[str, int | float] = {"epochs": len(fit.history)}
    counts |= {name: round(best[name], 3) for name in DEV_SCORES}
    kept = [digest_of_file(path) for path in kept_weights(out)]
    notes = [f"computed in {precision_by_epoch(fit.history)}"]
    return Outcome({"weights": digest_of([kept, shape])}, counts, notes)


def _first_decoder(
    shape: dict[str, Any],
    decoder: DecoderConfig,
    training: TrainingConfig,
    batches: GridBatches,
    vocabulary: Vocabulary,
) -> Decoder:
    """The decoder before its first step: a function of the seed, the train split and the word vectors' file."""
    torch.manual_seed(training.seed)
    try:
        first = make(**shape)
    except ValueError as error:
        raise AttendError(f"decoder: {error}") from None
    if decoder.pca_dim is not None:
        first.fit_basis(batches.gram())
    if decoder.word_vectors is not None:
        with torch.no_grad():
            load_word_vectors(decoder.word_vectors, vocabulary, first.embed.weight)
    first.embed.weight.requires_grad_(not decoder.freeze_words)
    return first
