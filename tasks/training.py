"""Stage `train`: fit a decoder to the cached grids by teacher forcing.

Writes weights.safetensors (best on dev; the next best, where they are kept, as weights-2.safetensors and so on),
last.safetensors, decoder.json and history.parquet (a row an epoch). It resumes as fitting.py says.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import torch

from models.decoders.base import Decoder, make
from models.vocabulary import Vocabulary
from tasks import processes
from tasks.batches import GridBatches, ResidentBatches
from tasks.captions import read_captions, read_vocabulary
from tasks.config import DecoderConfig, MachineConfig, OfGridsConfig, TrainingConfig, ViewsConfig
from tasks.devices import device_of
from tasks.errors import AttendError
from tasks.features import open_grids
from tasks.files import digest_of_file
from tasks.fitting import DEV_SCORES, EpochDone, Fit, GridDev
from tasks.ledger import Outcome, Work, digest_of
from tasks.manifest import pictures_of
from tasks.objectives import CrossEntropy
from tasks.precision import precision_by_epoch, with_precision
from tasks.trained import DECODER, kept_weights
from tasks.views import choices
from tasks.word_vectors import load_word_vectors


def train(
    decoder: DecoderConfig,
    training: TrainingConfig,
    views: ViewsConfig | None,
    machine: MachineConfig,
    work: Work,
    epoch_done: EpochDone | None = None,
) -> Outcome:
    """Train, keep the weights with the best free-running dev score, and write them.

    epoch_done is called with each row of the history as it is made; a resumed run calls it for earlier rows too.
    """
    vocabulary = read_vocabulary(work.upstream["tensorise"].path)
    training = with_precision(training, device_of(machine), "training")
    batches, dev = prepare(training, views, machine, work, "train")
    shape = {
        "name": decoder.name,
        "channels": batches.channels,
        "vocabulary": len(vocabulary),
        "options": decoder.options(),
    }
    first = _first_decoder(shape, decoder, training, batches, vocabulary)
    rates = {training.learning_rate: list(first.parameters())}
    fit = Fit(first, rates, training, machine, batches, work.out, CrossEntropy(training))
    fit.run(dev, epoch_done)
    return finish(fit, shape, work)


def prepare(
    training: OfGridsConfig,
    views: ViewsConfig | None,
    machine: MachineConfig,
    work: Work,
    name: str,
) -> tuple[GridBatches, GridDev]:
    """The batches of the train split, with the views of its pictures where there are any, and the dev pictures."""
    grids = open_grids(work.upstream["extract"], machine)
    vocabulary = read_vocabulary(work.upstream["tensorise"].path)
    pictures = read_captions(work.upstream["tensorise"].path, "train")
    device = device_of(machine)
    resident = machine.resident and device.type != "cpu"  # a CPU maps the files: as much as fits is in its memory
    of_grids = partial(ResidentBatches, device=device) if resident else GridBatches
    seen, chosen = grids, None
    if views is not None:
        seen = grids.together_with(open_grids(work.upstream["views"], machine))
        chosen = choices(pictures, views, vocabulary, seen)
    if training.block is None and seen.limit is not None and not resident and seen.size > seen.limit:
        section = "training" if name == "train" else name
        raise AttendError(
            f"{name}: the grids take {seen.size / 2**30:.1f} GiB, and {seen.limit / 2**30:.1f} are kept here: set "
            f"{section}.block=64, so that they are read in long runs, or a larger machine.cache_gib"
        )
    batches = of_grids(pictures, seen, training.batch_pictures, training.seed, training.block, chosen)
    dev = GridDev(pictures_of(work.upstream["ingest"].path, "dev"), grids, vocabulary, machine)
    if not batches.captioned or not dev.pictures:
        raise AttendError(f"{name}: no picture of the train or dev split could be read: see extract's failed.parquet")
    return batches, dev


def finish(fit: Fit, shape: dict[str, Any], work: Work) -> Outcome:
    """Write what was trained; its product is the digest of the best weights and of the decoder's shape.

    The leader of several processes does; the others have nothing to write.
    """
    if processes.rank():
        return Outcome({})
    (work.out / DECODER).write_text(json.dumps(shape, indent=1, sort_keys=True), encoding="utf-8")
    fit.write()
    best = fit.history[fit.ranking()[0]]
    counts: dict[str, int | float] = {"epochs": len(fit.history)}
    counts |= {name: round(best[name], 3) for name in DEV_SCORES}
    kept = [digest_of_file(path) for path in kept_weights(work.out)]
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
    if decoder.reduce is not None:
        first.fit_basis(batches.gram())
    if decoder.word_vectors is not None:
        with torch.no_grad():
            load_word_vectors(decoder.word_vectors, vocabulary, first.embed.weight)
    first.embed.weight.requires_grad_(not decoder.freeze_words)
    return first
