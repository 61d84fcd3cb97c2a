"""Stage `train`: fit a decoder to the cached grids by teacher forcing.

Writes weights.safetensors (best on dev), last.safetensors, decoder.json and history.parquet (a row an epoch).
While it runs, its partial folder holds `.checkpoint.pt` (weights and optimiser state, `weights_only`), from
which a killed run goes on mid-epoch with the same curve: batches, dropout and replaced words are functions
of the seed and the step's number.
"""

from __future__ import annotations

import json
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from torch import Tensor, nn

from models.cross_entropy import cross_entropy
from models.decoders.base import Decoder, make
from models.search import Decoding, greedy
from models.vocabulary import UNK, Vocabulary
from tasks.batches import Batch, Batches, GridBatches, ResidentBatches, captioned_at_once, grids_in_order
from tasks.captions import read_captions, read_vocabulary
from tasks.config import DecoderConfig, FitConfig, MachineConfig, TrainingConfig
from tasks.devices import check_compiler, device_of
from tasks.errors import AttendError
from tasks.features import open_grids
from tasks.grid_cache import GridReader
from tasks.ledger import Outcome, Stopwatch, Work, digest_of, digest_of_file, flush
from tasks.manifest import Picture, pictures_of
from tasks.metrics import Scored, measure
from tasks.metrics.ptb import words as cut
from tasks.progress import Bar, say
from tasks.stages import PROGRESS
from tasks.word_vectors import load_word_vectors

WEIGHTS, LAST, DECODER, HISTORY = "weights.safetensors", "last.safetensors", "decoder.json", "history.parquet"
_CHECKPOINT, _BEST = ".checkpoint.pt", ".best.safetensors"
EpochDone = Callable[[dict[str, float]], None]


def train(
    decoder: DecoderConfig,
    training: TrainingConfig,
    machine: MachineConfig,
    work: Work,
    epoch_done: EpochDone | None = None,
) -> Outcome:
    """Train, keep the weights with the best free-running dev BLEU-4, and write them.

    epoch_done is called with each row of the history as it is made; a resumed run calls it for earlier rows too.
    """
    grids = open_grids(work.upstream["extract"], machine)
    vocabulary = read_vocabulary(work.upstream["tensorise"].path)
    pictures = read_captions(work.upstream["tensorise"].path, "train")
    device = device_of(machine)
    resident = machine.resident and device.type != "cpu"  # a CPU maps the files: as much as fits is in its memory
    of_grids = partial(ResidentBatches, device=device) if resident else GridBatches
    batches = of_grids(pictures, grids, training.batch_pictures, training.seed, training.block)
    dev = GridDev(pictures_of(work.upstream["ingest"].path, "dev"), grids, vocabulary, machine)
    if not batches.captioned or not dev.pictures:
        raise AttendError("train: no picture of the train or dev split could be read: see extract's failed.parquet")
    sizes = {"channels": grids.shape[2], "vocabulary": len(vocabulary)}
    shape = {"name": decoder.name, **sizes, "options": decoder.options()}
    first = _first_decoder(shape, decoder, training, batches, vocabulary)
    fit = Fit(first, {training.learning_rate: list(first.parameters())}, training, machine, batches, work.out)
    fit.run(dev, epoch_done or _nobody)
    (work.out / DECODER).write_text(json.dumps(shape, indent=1, sort_keys=True), encoding="utf-8")
    fit.write()
    best = max(fit.history, key=lambda row: row["dev_bleu4"])
    counts: dict[str, int | float] = {"epochs": len(fit.history), "dev_bleu4": round(best["dev_bleu4"], 3)}
    products = {"weights": digest_of([digest_of_file(work.out / WEIGHTS), shape])}
    return Outcome(products, counts)


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

    def bleu4(self, model: nn.Module) -> float:
        """Corpus BLEU-4 of greedy captions: free-running, never teacher-forced."""
        model.eval()
        scored: list[Scored] = []
        decoding = Decoding(max_length=self._vocabulary.settings["max_tokens"] + 1)
        decoder, grids = self.seen(model)
        speaking = decoder.speaking()
        for grid in grids:
            for caption in greedy(speaking, grid, decoding):
                said = cut(" ".join(self._vocabulary.decode(caption.tokens)))
                scored.append(Scored(said, self._references[len(scored)]))
        return measure("bleu", scored)["bleu4"]


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

    loss: float = 0.0
    tokens: int = 0
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
        name: str = "train",
    ) -> None:
        """name: of the stage. model: a Decoder or an EndToEnd. rates: peak learning rate -> the weights it is for."""
        self.name, self.training, self.machine, self.batches, self.out = name, training, machine, batches, out
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
        return "tuning" if self.name == "tune" else "training"

    @property
    def steps(self) -> int:
        return self.training.epochs * len(self.batches)

    def run(self, dev: Dev, epoch_done: EpochDone) -> None:
        """Train until the last epoch, or until dev BLEU-4 has not risen for `patience` epochs."""
        for row in self.history:
            epoch_done(row)
        while len(self.history) < self.training.epochs and not self._stalled():
            epoch = len(self.history)
            self._epoch(epoch)
            row = self._validate(dev)
            self.history.append(row)
            if row["dev_bleu4"] >= max(item["dev_bleu4"] for item in self.history):
                _save_weights(self.weights(), self.out / _BEST)
            self.checkpoint()
            say(
                f"{self.name}: epoch {epoch + 1}/{self.training.epochs}  loss {row['loss']:.3f}  "
                f"dev BLEU-4 {row['dev_bleu4']:.2f} (greedy)  {row['seconds']:.0f} s"
            )
            epoch_done(row)

    def _epoch(self, epoch: int) -> None:
        start = self.step - epoch * len(self.batches)
        watch, spent, saved = Stopwatch(), self.sums.seconds, Stopwatch()
        self.model.train()
        label = f"epoch {epoch + 1}/{self.training.epochs}"
        with Bar(len(self.batches), label, "batches", done=start) as bar:
            for batch in self.batches.epoch(epoch, start):
                loss, tokens = self.learn(batch.to(self.device))
                self.sums.loss += loss * tokens
                self.sums.tokens += tokens
                self.sums.seconds = spent + watch.seconds()
                if not math.isfinite(loss):
                    raise AttendError(
                        f"{self.name}: the loss is {loss} at step {self.step}: "
                        f"lower {self.section}.learning_rate or {self.section}.clip_norm"
                    )
                bar.note(f"loss {self.sums.loss / self.sums.tokens:.3f}")
                bar.advance()
                if saved.seconds() > self.machine.checkpoint_seconds:
                    self.checkpoint()
                    saved = Stopwatch()

    def learn(self, batch: Batch) -> tuple[float, int]:
        """One step; the cross-entropy in nats a token, and the number of tokens."""
        # Dropout and word replacement are drawn from the step's number: nothing random is carried over.
        torch.manual_seed(self.training.seed * 1_000_003 + self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * self.schedule()
        words, valid = self._with_unknown(batch.words), batch.valid
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.training.precision == "bfloat16"):
            logits, read = self.model(batch.pictures, words, valid)
        targets = batch.targets[valid]
        entropy = cross_entropy(logits, targets, self.training.label_smoothing)
        loss = entropy
        if self.training.doubly_stochastic:
            loss = loss + self.training.doubly_stochastic * attention_penalty(read.alphas, valid)
        own = self.model.penalty(read, logits, targets, valid)
        if own is not None:
            loss = loss + own
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        self.optimiser.step()
        self.step += 1
        self._update_average()
        return float(entropy.detach()), int(valid.sum())

    def schedule(self) -> float:
        """The share of its peak that a learning rate has at this step.

        Linear warm-up, then a cosine down to nothing at the last step (Loshchilov and Hutter 2017).
        """
        warm = self.training.warmup_steps
        if self.step < warm:
            return (self.step + 1) / warm
        share = (self.step - warm) / max(self.steps - warm, 1)
        return 0.5 * (1 + math.cos(math.pi * share))

    def _with_unknown(self, words: Tensor) -> Tensor:
        """A share of the words read replaced by UNK, START and NULL left alone."""
        if not self.training.unknown_words:
            return words
        chosen = torch.rand(words.shape, device=words.device) < self.training.unknown_words
        return words.masked_fill(chosen & (words > UNK), UNK)

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
        score = dev.bleu4(self.model)
        self.model.load_state_dict(learned)
        row = {
            "epoch": float(len(self.history) + 1),
            "step": float(self.step),
            "loss": self.sums.loss / self.sums.tokens,
            "learning_rate": self.training.learning_rate * self.schedule(),
            "seconds": self.sums.seconds,
            "dev_bleu4": score,
        }
        self.sums = Sums()
        return row

    def _stalled(self) -> bool:
        scores = [row["dev_bleu4"] for row in self.history]
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
        shutil.copyfile(self.out / _BEST, self.out / WEIGHTS)
        self.write_history()

    def write_history(self) -> None:
        """history.parquet, a row an epoch."""
        pq.write_table(pa.Table.from_pylist(self.history), self.out / HISTORY)

    def best(self) -> dict[str, Tensor]:
        """The weights with the best dev BLEU-4 so far, on the CPU."""
        return dict(safetensors.torch.load_file(self.out / _BEST))


def _nobody(row: dict[str, float]) -> None:  # noqa: ARG001 -- an EpochDone that tells no one
    return


def attention_penalty(alphas: Tensor, valid: Tensor) -> Tensor:
    """The doubly stochastic term of Xu et al. 2015, equation 14: mean over captions of sum_i (1 - sum_t alpha_ti)^2.

    alphas (N, R, T, P), valid (N, R, T). Only valid steps count, and only captions that have any. The sum
    over positions is a mean here, so that lambda means the same on every grid.
    """
    attended = (alphas * valid.unsqueeze(-1)).sum(dim=2)  # (N, R, P)
    captions = valid.any(dim=2)
    return ((1 - attended) ** 2).mean(dim=-1)[captions].mean()


def load_decoder(folder: Path, device: torch.device) -> tuple[Decoder, dict[str, Any]]:
    """The best decoder of a train artifact, in evaluation mode, and its shape."""
    shape = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    decoder = make(**shape)
    decoder.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
    return decoder.to(device).eval(), shape


def _copied(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _save_weights(state: dict[str, Tensor], path: Path) -> None:
    temporary = path.with_name(path.name + ".tmp")
    safetensors.torch.save_file({name: value.contiguous().cpu() for name, value in state.items()}, temporary)
    temporary.replace(path)
