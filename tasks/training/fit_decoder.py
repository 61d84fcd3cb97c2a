"""Fitting a decoder to the cached grids: the code shared by the stages `train` and `self_critical`.

The files written are listed in train.py. How a killed run resumes is described in loop.py.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch

from models.decoders.ensemble import make, members_of
from models.options import DecoderSpec
from tasks.common.errors import AttendError
from tasks.config.decoder import DecoderConfig
from tasks.config.devices import device_of
from tasks.config.machine import MachineConfig
from tasks.config.training import GridTrainingConfig, TrainingConfig
from tasks.data.caption_files import read_captions, read_vocabulary
from tasks.data.manifest import read_pictures
from tasks.grids.index import open_grids
from tasks.pipeline import distributed as processes
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.training.batches import GridBatches, ResidentBatches
from tasks.training.dev import DEV_SCORES, GridDevEvaluator
from tasks.training.loop import NOT_BETTER, EpochDone, TrainingLoop, WeightGroup
from tasks.training.objectives import CrossEntropy
from tasks.training.outputs import DECODER, HISTORY, LAST, WEIGHTS, decoder_digest, write_shape
from tasks.training.precision import precision_by_epoch, with_precision
from tasks.training.warm_start import start_from


@dataclass(frozen=True)
class DecoderInputs:
    """The artifacts of earlier stages on which a decoder is trained, validated and evaluated."""

    manifest: Artifact
    captions: Artifact
    grids: Artifact


class Start(NamedTuple):
    """A captioner whose weights a training starts from. folder: its bundle for torch. name: for messages."""

    folder: Path
    name: str


def fit_decoder(
    decoder: DecoderConfig,
    training: TrainingConfig,
    machine: MachineConfig,
    sources: DecoderInputs,
    out: Path,
    epoch_done: EpochDone,
    start: Start | None = None,
) -> Outcome:
    """Train a decoder, keep the weights with the best free-running dev score, and write them to `out`.

    start: the captioner to start from; None for random weights. Raises AttendError if the decoder does not take the
    options.
    """
    vocabulary = read_vocabulary(sources.captions.path)
    training = with_precision(training, device_of(machine))
    batches, dev = prepare("train", training, machine, sources)
    shape: DecoderSpec = {
        "name": decoder.name,
        "channels": batches.channels,
        "vocabulary": len(vocabulary),
        "options": decoder.options(),
        "members": decoder.members,
    }
    torch.manual_seed(training.seed)
    try:
        initial = make(**shape)
    except ValueError as error:
        raise AttendError(f"decoder: {error}") from None
    if decoder.pca_dim is not None:
        gram = batches.gram()
        for member in members_of(initial):
            member.fit_basis(gram)
    notes = []
    if start is not None:
        caption_tokens = np.concatenate([picture.tokens.ravel() for picture in batches.captioned]).tolist()
        notes = start_from(initial, shape, vocabulary, start.folder, start.name, caption_tokens)
    groups = [WeightGroup(training.learning_rate, initial.parameters())]
    objective, was_trained = CrossEntropy(training), start is not None
    fit = TrainingLoop(initial, groups, training, machine, batches, out, objective, was_trained=was_trained)
    fit.run(dev, epoch_done)
    outcome = finish(fit, shape, out)
    return replace(outcome, notes=[*notes, *outcome.notes])


def prepare(
    stage: str, training: GridTrainingConfig, machine: MachineConfig, sources: DecoderInputs
) -> tuple[GridBatches, GridDevEvaluator]:
    """Return the batches of the train split, and the dev pictures.

    stage: the stage's kind, for messages. training: the stage's config section, with its precision decided. Raises
    AttendError if the grids exceed the local cache and would be read in random order, or if no picture of the train or
    dev split has a grid.
    """
    grids = open_grids(sources.grids, machine)
    pictures = read_captions(sources.captions.path, "train")
    device = device_of(machine)
    # On a CPU the files are memory-mapped, and the system keeps as much of them in memory as fits.
    resident = machine.resident and device.type != "cpu"
    batches_class = ResidentBatches if resident else GridBatches
    cache_limit = grids.limit
    if training.block is None and cache_limit is not None and not resident and grids.size > cache_limit:
        raise AttendError(
            f"{stage}: the grids take {grids.size / 2**30:.1f} GiB, but this machine's cache holds "
            f"{cache_limit / 2**30:.1f}: set training.block=64, so that grids are read in long runs, or a larger "
            "machine.cache_gib"
        )
    batches = batches_class(
        pictures,
        grids,
        training.batch_pictures,
        training.seed,
        training.block,
        training.captions_per_picture,
        training.epoch_batches,
        device=device,
    )
    dev_pictures = read_pictures(sources.manifest.path, "dev")
    dev = GridDevEvaluator(dev_pictures, grids, sources.captions.path, machine)
    if not batches.captioned or not dev.pictures:
        raise AttendError(f"{stage}: no picture of the train or dev split could be read: see extract's failed.parquet")
    return batches, dev


def adopt_decoder(tuned: Artifact, out: Path, epoch_done: EpochDone) -> Outcome:
    """Write the decoder of a `tune` artifact to `out` in the format of `train`, with the history of its tuning."""
    for name in (DECODER, WEIGHTS, LAST, HISTORY):
        shutil.copyfile(tuned.path / name, out / name)
    for row in pq.read_table(out / HISTORY).to_pylist():
        epoch_done(row, None)
    return Outcome({"weights": tuned.products["decoder"]}, dict(tuned.ledger.counts))


def finish(fit: TrainingLoop, shape: DecoderSpec, out: Path) -> Outcome:
    """Write the trained decoder to `out`; the outcome's product is the digest of the best weights and of `shape`.

    shape: the arguments of `models.decoders.ensemble.make`. If several processes train, only the leader writes; the
    others return an empty outcome.
    """
    if processes.rank():
        return Outcome({})
    write_shape(shape, out)
    fit.write()
    best = fit.history[fit.best_row()]
    notes = [f"computed in {precision_by_epoch(fit.history)}"]
    if not best["epoch"]:
        notes.append(NOT_BETTER)
    counts: dict[str, int | float] = {"epochs": fit.trained_epochs}
    counts |= {name: round(best[name], 3) for name in (*DEV_SCORES, "dev_loss") if name in best}
    return Outcome({"weights": decoder_digest(out)}, counts, notes)
