"""The training loop, whatever is trained by whatever objective, and the dev pictures that it is watched by.

While it runs, its folder holds `.checkpoint.pt` (weights and optimiser state, `weights_only`), from which a killed run
goes on mid-epoch with the same curve: batches, dropout and replaced words are functions of the seed and the step's
number.
"""

from __future__ import annotations

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.decoders.base import Decoder
from models.options import Decoding
from models.search import greedy
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.common.files import flush
from tasks.common.progress import Bar, Stopwatch, say
from tasks.config.devices import check_compiler, device_of
from tasks.config.schema import FitConfig, MachineConfig, OfGridsConfig
from tasks.data.manifest import Picture
from tasks.grids.reader import GridReader
from tasks.metrics import Scored, measure
from tasks.metrics.ptb import tokenize
from tasks.pipeline import distributed as processes
from tasks.pipeline.stage import PROGRESS
from tasks.training.batches import Batch, Batches, captioned_at_once, grids_in_order
from tasks.training.objectives import Count, LossOutput, Objective, count
from tasks.training.outputs import HISTORY, LAST, NEXT_BEST, WEIGHTS
from tasks.training.precision import SHARE

_CHECKPOINT, _EPOCH = ".checkpoint.pt", ".epoch-{}.safetensors"
DEV_SCORES = ("dev_bleu4", "dev_cider")
EpochDone = Callable[[dict[str, float]], None]


class Dev(ABC):
    """The dev pictures, captioned freely after each epoch."""

    def __init__(self, pictures: list[Picture], vocabulary: Vocabulary, machine: MachineConfig) -> None:
        self.pictures, self.own = pictures, processes.part(pictures)
        self.machine = machine
        self._references = [[tokenize(text) for text in picture.captions] for picture in pictures]
        self._vocabulary = vocabulary

    @abstractmethod
    def seen(self, model: nn.Module) -> tuple[Decoder, Iterator[Tensor]]:
        """The model's decoder, and the grids of this process's `own` pictures, a batch at a time, in order."""

    def scores(self, model: nn.Module) -> dict[str, float]:
        """`DEV_SCORES` of greedy captions: free-running, never teacher-forced."""
        model.eval()
        own: list[list[str]] = []
        decoding = Decoding(max_length=self._vocabulary.settings["max_tokens"] + 1)
        decoder, grids = self.seen(model)
        speaking = decoder.for_inference()
        for grid in grids:
            for caption in greedy(speaking, grid, decoding):
                own.append(tokenize(" ".join(self._vocabulary.decode(caption.tokens))))
        said = processes.gathered(own, len(self.pictures))
        scored = [Scored(*pair) for pair in zip(said, self._references, strict=True)]
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
        device, digests = next(model.parameters()).device, [picture.digest for picture in self.own]
        size = captioned_at_once(self.machine, self._grids.shape, rows=1)
        parts = grids_in_order(digests, self._grids, size)
        return model, (grid.to(device) for _, grid in parts)


@dataclass
class Sums:
    """Running sums of the epoch under way, kept in the checkpoint."""

    total: float = 0.0  # of the objective's metric
    count: int = 0  # tokens or captions that it is summed over
    seconds: float = 0.0
    bfloat16: int = 0  # steps computed in it


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
        """name: of the stage. model: a Decoder or an EndToEnd. rates: peak learning rate -> the weights it is for.

        training: its precision is decided (see precision.py).
        """
        assert training.precision != "auto"
        self.name, self.training, self.machine, self.batches, self.out = name, training, machine, batches, out
        self.objective, self.selected = objective, f"dev_{training.select}"
        self.keep = training.keep if isinstance(training, OfGridsConfig) else 1
        self.device = device_of(machine)
        self.model: Any = model.to(self.device)
        if machine.compile:
            check_compiler()
            decoder: Any = model if isinstance(model, Decoder) else self.model.decoder
            at_once = math.ceil(batches.size / processes.size() / machine.accumulate)
            decoder.compile_step(at_once, objective.rows or batches.rows)
        loss_module = _LossModule(self.model, objective)
        self.loss_module: Any = loss_module if processes.size() == 1 else _synchronised(loss_module)
        self.average = _copied(self.model.state_dict()) if training.averaging else None
        trainable = {rate: [weight for weight in weights if weight.requires_grad] for rate, weights in rates.items()}
        groups = [{"params": weights, "peak": rate} for rate, weights in trainable.items() if weights]
        self.optimiser = torch.optim.AdamW(
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
            if epoch in self.ranking()[: self.keep]:
                _save_weights(self.weights(), self._of_epoch(epoch))
            self.checkpoint()
            self._drop_others()
            metric = self.objective.metric
            say(
                f"{self.name}: epoch {epoch + 1}/{self.training.epochs}  {metric} {row[metric]:.3f}  "
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
                total, count = self.learn(batch.to(self.device))
                self.sums.total += total
                self.sums.count += count
                self.sums.bfloat16 += self.training.precision == "bfloat16"
                self.sums.seconds = spent + watch.seconds()
                bar.note(f"{self.objective.metric} {self.sums.total / self.sums.count:.3f}")
                bar.advance()
                if saved.seconds() > self.machine.checkpoint_seconds:
                    self.checkpoint()
                    saved = Stopwatch()

    def learn(self, batch: Batch) -> tuple[float, int]:
        """Take one step; return the total of the objective's metric, and the count that its mean is taken over."""
        # Dropout and all else that is drawn follows the step's number: nothing random is carried over.
        torch.manual_seed(self.training.seed * 1_000_003 + self.step + processes.rank() * 2**40)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * self.schedule()
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        loss, total, number = self._gradient(batch)
        if not math.isfinite(loss):
            raise AttendError(
                f"{self.name}: the loss is {loss} at step {self.step}: "
                f"lower {self.section}.learning_rate or {self.section}.clip_norm"
            )
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        self.optimiser.step()
        self.step += 1
        self._update_average()
        return total, int(number)

    def _gradient(self, batch: Batch) -> tuple[float, ...]:
        """Add the step's gradient to the weights'; return the step's loss, total and count, over all processes."""
        weight = 0.0 if batch.spare else 1.0
        whole = Count(*processes.summed([weight * number for number in count(batch)]))
        pieces = batch.pieces(self.machine.accumulate)
        total = [0.0, 0.0, 0.0]
        for piece in pieces:
            shared = nullcontext() if piece is pieces[-1] or processes.size() == 1 else self.loss_module.no_sync()
            with shared:
                output = self.loss_module(piece, whole, self.step, self.step / self.steps)
                # Gradients are averaged over the processes, and losses add up.
                (output.loss * (weight * processes.size())).backward()
            found = float(output.loss.detach()), output.total, output.number
            total = [sum_ + weight * value for sum_, value in zip(total, found, strict=True)]
        return tuple(processes.summed(total))

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
            self.objective.metric: self.sums.total / self.sums.count,
            "learning_rate": self.training.learning_rate * self.schedule(),
            "seconds": self.sums.seconds,
            SHARE: self.sums.bfloat16 / len(self.batches),
            **scores,
        }
        self.sums = Sums()
        return row

    def ranking(self) -> list[int]:
        """The epochs by their places in the history, the best on dev first; of equals the later is better."""
        return sorted(range(len(self.history)), key=lambda at: (-self.history[at][self.selected], -at))

    def _kept(self) -> list[Path]:
        return [self._of_epoch(epoch) for epoch in self.ranking()[: self.keep]]

    def _of_epoch(self, epoch: int) -> Path:
        return self.out / _EPOCH.format(epoch)

    def _drop_others(self) -> None:
        """Weights that are not kept: once the checkpoint knows which are, or a killed run would miss some."""
        kept = self._kept()
        for path in self.out.glob(_EPOCH.format("*")):
            if path not in kept:
                path.unlink()

    def _stalled(self) -> bool:
        scores = [row[self.selected] for row in self.history]
        return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self.training.patience

    def checkpoint(self) -> None:
        """Save everything the next step depends on, atomically; the leader of several processes does."""
        if processes.rank():
            return
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
        there = path.exists()
        state = processes.from_leader(torch.load(path, map_location="cpu", weights_only=True) if there else None)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        if state["average"] is not None:
            self.average = {name: value.to(self.device) for name, value in state["average"].items()}
        self.optimiser.load_state_dict(state["optimiser"])
        # Checkpoints of before the share was counted are of trainings whose key names the precision.
        asked = float(self.training.precision == "bfloat16")
        rows = [{**row, SHARE: row.get(SHARE, asked)} for row in state["history"]]
        counted = {"bfloat16": int(asked) * (state["step"] - len(rows) * len(self.batches))}
        self.step, self.sums, self.history = state["step"], Sums(**{**counted, **state["sums"]}), rows
        say(f"{self.name}: goes on at step {self.step:,} of {self.steps:,}")

    def write(self) -> None:
        """Write the finished artifact's files. The checkpoint stays until they are published."""
        _save_weights(self.weights(), self.out / LAST)
        for place, path in enumerate(self._kept(), 1):
            shutil.copyfile(path, self.out / (WEIGHTS if place == 1 else NEXT_BEST.format(place)))
        self.write_history()

    def write_history(self) -> None:
        """history.parquet, a row an epoch."""
        pq.write_table(pa.Table.from_pylist(self.history), self.out / HISTORY)

    def best(self) -> dict[str, Tensor]:
        """The weights with the best dev score so far, on the CPU."""
        return dict(safetensors.torch.load_file(self._kept()[0]))


class _LossModule(nn.Module):
    """A model and its objective as one module: its forward pass is what several processes share the gradient of."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, whole: Count, step: int, done: float) -> LossOutput:
        return self.objective(self.model, batch, whole, step, done)


def _synchronised(loss_module: _LossModule) -> DistributedDataParallel:
    """Return the module with its gradients averaged over all processes; of some decoders not every layer takes part."""
    return DistributedDataParallel(loss_module, find_unused_parameters=True)


def _nobody(row: dict[str, float]) -> None:  # noqa: ARG001 -- an EpochDone that tells no one
    return


def _copied(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _save_weights(state: dict[str, Tensor], path: Path) -> None:
    temporary = path.with_name(path.name + ".tmp")
    safetensors.torch.save_file({name: value.contiguous().cpu() for name, value in state.items()}, temporary)
    temporary.replace(path)
