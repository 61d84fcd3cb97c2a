"""Stage `train`: fit a decoder to the cached grids by teacher forcing.

Writes weights.safetensors (best on dev; the next best, where they are kept, as weights-2.safetensors and so on),
last.safetensors, decoder.json and history.parquet (a row an epoch).
While it runs, its partial folder holds `.checkpoint.pt` (weights and optimiser state, `weights_only`), from
which a killed run goes on mid-epoch with the same curve: batches, dropout and replaced words are functions
of the seed and the step's number.
"""

from __future__ import annotations

import json
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from torch import Tensor, nn

from models.decoders.base import Decoder, make
from models.decoders.ensemble import Ensemble
from models.search import Decoding, greedy
from models.vocabulary import Vocabulary
from tasks.batches import Batch, Batches, GridBatches, ResidentBatches, captioned_at_once, grids_in_order
from tasks.captions import read_captions, read_vocabulary
from tasks.config import DecoderConfig, FitConfig, MachineConfig, TrainingConfig, ViewsConfig
from tasks.devices import check_compiler, device_of
from tasks.errors import AttendError
from tasks.features import open_grids
from tasks.grid_cache import GridReader
from tasks.ledger import Artifact, Outcome, Stopwatch, Work, digest_of, digest_of_file, flush
from tasks.manifest import Picture, pictures_of
from tasks.metrics import Scored, measure
from tasks.metrics.ptb import words as cut
from tasks.objectives import CrossEntropy, Objective
from tasks.progress import Bar, say
from tasks.stages import PROGRESS
from tasks.views import choices
from tasks.word_vectors import load_word_vectors

WEIGHTS, LAST, DECODER, HISTORY = "weights.safetensors", "last.safetensors", "decoder.json", "history.parquet"
_CHECKPOINT, _EPOCH = ".checkpoint.pt", ".epoch-{}.safetensors"
DEV_SCORES = ("dev_bleu4", "dev_cider")
EpochDone = Callable[[dict[str, float]], None]


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
    training: FitConfig, views: ViewsConfig | None, machine: MachineConfig, work: Work, name: str
) -> tuple[GridBatches, GridDev]:
    """The batches of the train split, with the views of its pictures where there are any, and the dev pictures."""
    grids = open_grids(work.upstream["extract"], machine)
    vocabulary = read_vocabulary(work.upstream["tensorise"].path)
    pictures = read_captions(work.upstream["tensorise"].path, "train")
    device = device_of(machine)
    resident = machine.resident and device.type != "cpu"  # a CPU maps the files: as much as fits is in its memory
    of_grids = partial(ResidentBatches, device=device) if resident else GridBatches
    chosen = None if views is None else choices(pictures, views, vocabulary)
    seen = grids if views is None else grids.together_with(open_grids(work.upstream["views"], machine))
    block = training.block if isinstance(training, TrainingConfig) else None
    batches = of_grids(pictures, seen, training.batch_pictures, training.seed, block, chosen)
    dev = GridDev(pictures_of(work.upstream["ingest"].path, "dev"), grids, vocabulary, machine)
    if not batches.captioned or not dev.pictures:
        raise AttendError(f"{name}: no picture of the train or dev split could be read: see extract's failed.parquet")
    return batches, dev


def finish(fit: Fit, shape: dict[str, Any], work: Work) -> Outcome:
    """Write what was trained; its product is the digest of the best weights and of the decoder's shape."""
    (work.out / DECODER).write_text(json.dumps(shape, indent=1, sort_keys=True), encoding="utf-8")
    fit.write()
    best = max(fit.history, key=lambda row: row[fit.selected])
    counts: dict[str, int | float] = {"epochs": len(fit.history)}
    counts |= {name: round(best[name], 3) for name in DEV_SCORES}
    kept = [digest_of_file(path) for path in kept_weights(work.out)]
    return Outcome({"weights": digest_of([kept, shape])}, counts)


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


class Dev(ABC):
    """The dev pictures, captioned freely after each epoch."""

    def __init__(self, pictures: list[Picture], vocabulary: Vocabulary, machine: MachineConfig) -> None:
        self.pictures = pictures
        self.machine = machine
        self._references = [[cut(text) for text in picture.captions] for picture in pictures]
        self._vocabulary = vocabulary

    @abstractmethod
    def seen(self, model: nn.Module) -> tuple[Decoder, Iterator[Tensor]]:
        """The model's decoder, and the grids of the pictures, a batch at a time, in order."""

    def scores(self, model: nn.Module) -> dict[str, float]:
        """`DEV_SCORES` of greedy captions: free-running, never teacher-forced."""
        model.eval()
        scored: list[Scored] = []
        decoding = Decoding(max_length=self._vocabulary.settings["max_tokens"] + 1)
        decoder, grids = self.seen(model)
        speaking = decoder.speaking()
        for grid in grids:
            for caption in greedy(speaking, grid, decoding):
                said = cut(" ".join(self._vocabulary.decode(caption.tokens)))
                scored.append(Scored(said, self._references[len(scored)]))
        return {"dev_bleu4": measure("bleu", scored)["bleu4"], "dev_cider": measure("cider", scored)["cider"]}


class GridDev(Dev):
    """The dev pictures by their cached grids; those without one are left out."""

    def __init__(
        self, pictures: list[Picture], grids: GridReader, vocabulary: Vocabulary, machine: MachineConfig
    ) -> None:
        super().__init__([picture for picture in pictures if picture.digest in grids], vocabulary, machine)
        self._grids = grids

    def seen(self, model: nn.Module) -> tuple[Decoder, Iterator[Tensor]]:
        assert isinstance(model, Decoder)
        device, digests = next(model.parameters()).device, [picture.digest for picture in self.pictures]
        size = captioned_at_once(self.machine, self._grids.shape, rows=1)
        parts = grids_in_order(digests, self._grids, size)
        return model, (grid.to(device) for _, grid in parts)


@dataclass
class Sums:
    """Running sums of the epoch under way, kept in the checkpoint."""

    figure: float = 0.0  # of the objective, summed over `things`
    things: int = 0
    seconds: float = 0.0


class Fit:
    """The training loop and everything it carries from step to step."""

    def __init__(
        self,
        model: nn.Module,
        rates: dict[float, list[nn.Parameter]],
        training: FitConfig,
        machine: MachineConfig,
        batches: Batches,
        out: Path,
        objective: Objective,
        name: str = "train",
    ) -> None:
        """name: of the stage. model: a Decoder or an EndToEnd. rates: peak learning rate -> the weights it is for."""
        self.name, self.training, self.machine, self.batches, self.out = name, training, machine, batches, out
        self.objective, self.selected = objective, f"dev_{training.select}"
        self.device = device_of(machine)
        self.model: Any = model.to(self.device)
        if machine.compile:
            check_compiler()
            decoder: Any = model if isinstance(model, Decoder) else self.model.decoder
            decoder.compile_step(batches.size, batches.rows)
        self.average = _copied(self.model.state_dict()) if training.averaging else None
        learnt = {rate: [weight for weight in weights if weight.requires_grad] for rate, weights in rates.items()}
        groups = [{"params": weights, "peak": rate} for rate, weights in learnt.items() if weights]
        self.optimiser = torch.optim.Adam(
            groups, training.learning_rate, weight_decay=training.weight_decay, fused=True
        )
        self.step = 0
        self.sums = Sums()
        self.history: list[dict[str, float]] = []
        self._resume()

    @property
    def section(self) -> str:
        """Of the config, that this follows."""
        return {"train": "training", "tune": "tuning"}.get(self.name, self.name)

    @property
    def steps(self) -> int:
        return self.training.epochs * len(self.batches)

    def run(self, dev: Dev, epoch_done: EpochDone | None = None) -> None:
        """Train until the last epoch, or until the dev score selected has not risen for `patience` epochs.

        epoch_done is called with each row of the history as it is made, and with those from before it was resumed.
        """
        tell = epoch_done or _nobody
        for row in self.history:
            tell(row)
        while len(self.history) < self.training.epochs and not self._stalled():
            epoch = len(self.history)
            self._epoch(epoch)
            row = self._validate(dev)
            self.history.append(row)
            self._keep(epoch)
            self.checkpoint()
            figure = self.objective.figure
            say(
                f"{self.name}: epoch {epoch + 1}/{self.training.epochs}  {figure} {row[figure]:.3f}  "
                f"dev BLEU-4 {row['dev_bleu4']:.2f}, CIDEr {row['dev_cider']:.2f} (greedy)  {row['seconds']:.0f} s"
            )
            tell(row)

    def _epoch(self, epoch: int) -> None:
        start = self.step - epoch * len(self.batches)
        watch, spent, saved = Stopwatch(), self.sums.seconds, Stopwatch()
        self.model.train()
        label = f"epoch {epoch + 1}/{self.training.epochs}"
        with Bar(len(self.batches), label, "batches", done=start) as bar:
            for batch in self.batches.epoch(epoch, start):
                figure, things = self.learn(batch.to(self.device))
                self.sums.figure += figure * things
                self.sums.things += things
                self.sums.seconds = spent + watch.seconds()
                if not math.isfinite(figure):
                    raise AttendError(
                        f"{self.name}: the {self.objective.figure} is {figure} at step {self.step}: "
                        f"lower {self.section}.learning_rate or {self.section}.clip_norm"
                    )
                bar.note(f"{self.objective.figure} {self.sums.figure / self.sums.things:.3f}")
                bar.advance()
                if saved.seconds() > self.machine.checkpoint_seconds:
                    self.checkpoint()
                    saved = Stopwatch()

    def learn(self, batch: Batch) -> tuple[float, int]:
        """One step; the objective's figure, and the number of things that it is the mean of."""
        # Dropout and all else that is drawn follows the step's number: nothing random is carried over.
        torch.manual_seed(self.training.seed * 1_000_003 + self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * self.schedule()
        self.model.train()
        judged = self.objective(self.model, batch, self.step, self.step / self.steps)
        self.optimiser.zero_grad(set_to_none=True)
        judged.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        self.optimiser.step()
        self.step += 1
        self._update_average()
        return judged.figure, judged.things

    def schedule(self) -> float:
        """The share of its peak that a learning rate has at this step.

        Linear warm-up, then a cosine down to nothing at the last step (Loshchilov and Hutter 2017).
        """
        warm = self.training.warmup_steps
        if self.step < warm:
            return (self.step + 1) / warm
        share = (self.step - warm) / max(self.steps - warm, 1)
        return 0.5 * (1 + math.cos(math.pi * share))

    @torch.no_grad()
    def _update_average(self) -> None:
        if self.average is not None:
            # Young averages forget faster, so that the first ones are not held back by random weights.
            decay = min(self.training.averaging, self.step / (self.step + 10))
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    self.average[name].lerp_(value, 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """The weights that are validated and kept: averaged where `averaging` is set."""
        return self.average if self.average is not None else self.model.state_dict()

    def _validate(self, dev: Dev) -> dict[str, float]:
        learned = _copied(self.model.state_dict())
        self.model.load_state_dict(self.weights())
        scores = dev.scores(self.model)
        self.model.load_state_dict(learned)
        row = {
            "epoch": float(len(self.history) + 1),
            "step": float(self.step),
            self.objective.figure: self.sums.figure / self.sums.things,
            "learning_rate": self.training.learning_rate * self.schedule(),
            "seconds": self.sums.seconds,
            **scores,
        }
        self.sums = Sums()
        return row

    def _keep(self, epoch: int) -> None:
        """Keep the weights of the best epochs alone, this one maybe among them; of equals the later is better."""
        kept = self._ranked()
        if self.out / _EPOCH.format(epoch) in kept:
            _save_weights(self.weights(), self.out / _EPOCH.format(epoch))
        for path in self.out.glob(_EPOCH.format("*")):
            if path not in kept:
                path.unlink()

    def _ranked(self) -> list[Path]:
        ranked = sorted(range(len(self.history)), key=lambda at: (-self.history[at][self.selected], -at))
        return [self.out / _EPOCH.format(at) for at in ranked[: self.training.keep]]

    def _stalled(self) -> bool:
        scores = [row[self.selected] for row in self.history]
        return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self.training.patience

    def checkpoint(self) -> None:
        """Save everything the next step depends on, atomically."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "sums": asdict(self.sums),
            "history": self.history,
        }
        temporary = self.out / f"{_CHECKPOINT}.tmp"
        torch.save(state, temporary)
        flush(temporary)
        temporary.replace(self.out / _CHECKPOINT)
        told = f"step {self.step:,} of {self.steps:,}, {len(self.history)} of {self.training.epochs} epochs done"
        (self.out / PROGRESS).write_text(told, encoding="utf-8")

    def _resume(self) -> None:
        path = self.out / _CHECKPOINT
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.sums, self.history = state["step"], Sums(**state["sums"]), state["history"]
        say(f"{self.name}: goes on at step {self.step:,} of {self.steps:,}")

    def write(self) -> None:
        """Write the finished artifact's files. The checkpoint stays until they are published."""
        _save_weights(self.weights(), self.out / LAST)
        for place, path in enumerate(self._ranked(), 1):
            shutil.copyfile(path, self.out / (WEIGHTS if place == 1 else f"weights-{place}.safetensors"))
        self.write_history()

    def write_history(self) -> None:
        """history.parquet, a row an epoch."""
        pq.write_table(pa.Table.from_pylist(self.history), self.out / HISTORY)

    def best(self) -> dict[str, Tensor]:
        """The weights with the best dev score so far, on the CPU."""
        return dict(safetensors.torch.load_file(self._ranked()[0]))


def _nobody(row: dict[str, float]) -> None:  # noqa: ARG001 -- an EpochDone that tells no one
    return


def last_trained(made: Mapping[str, Artifact]) -> Artifact:
    """The artifact with the decoder that is evaluated and registered; made: by stage."""
    return made.get("self_critical", made["train"])


def load_decoder(folder: Path, device: torch.device) -> tuple[Decoder, dict[str, Any]]:
    """The best decoder of a train artifact, in evaluation mode, and its shape."""
    shape = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    return _loaded(shape, folder / WEIGHTS).to(device).eval(), shape


def load_ensemble(folder: Path, members: int) -> tuple[Decoder | Ensemble, dict[str, Any]]:
    """The ensemble of a train artifact's best `members`, on the CPU in evaluation mode, and its shape; one is itself.

    AttendError where it keeps fewer: it stopped before so many epochs.
    """
    if members == 1:
        return load_decoder(folder, torch.device("cpu"))
    shape = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    kept = kept_weights(folder)
    if members > len(kept):
        raise AttendError(
            f"evaluation.ensemble: {members} cannot speak together: training ended with {len(kept)} epochs"
        )
    together = Ensemble([_loaded(shape, path) for path in kept[:members]])
    return together.eval(), {**shape, "members": members}


def _loaded(shape: dict[str, Any], weights: Path) -> Decoder:
    decoder = make(**shape)
    decoder.load_state_dict(safetensors.torch.load_file(weights))
    return decoder


def kept_weights(folder: Path) -> list[Path]:
    """The weights of a train artifact, the best on dev first."""
    others = sorted(folder.glob("weights-*.safetensors"), key=lambda path: int(path.stem.partition("-")[2]))
    return [folder / WEIGHTS, *others]


def _copied(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _save_weights(state: dict[str, Tensor], path: Path) -> None:
    temporary = path.with_name(path.name + ".tmp")
    safetensors.torch.save_file({name: value.contiguous().cpu() for name, value in state.items()}, temporary)
    temporary.replace(path)
