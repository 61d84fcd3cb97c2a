"""The training loop, for every model and objective.

While it runs, its folder holds `.checkpoint.pt` (weights and optimiser state, read with `weights_only`). A killed run
resumes from it in the middle of an epoch and gives the same curve as an uninterrupted one: batches, dropout and
replaced words are functions of the seed and the step's number.
"""

from __future__ import annotations

import copy
import math
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.decoders.ensemble import members_of
from models.end_to_end import EndToEnd
from models.out_of_memory import is_out_of_memory
from tasks.common.errors import AttendError
from tasks.common.files import atomic_file
from tasks.common.interrupts import deferred_interrupt
from tasks.common.log import log
from tasks.common.progress import Bar, duration
from tasks.common.wording import counted
from tasks.config.devices import device_of, prepare_compiler
from tasks.config.machine import MachineConfig
from tasks.config.training import FitConfig
from tasks.pipeline import distributed as processes
from tasks.pipeline.stage import PROGRESS
from tasks.training.batches import Batch, Batches
from tasks.training.best_weights import BestWeights, save_weights
from tasks.training.dev import DevEvaluator
from tasks.training.objectives import Count, LossOutput, Objective
from tasks.training.outputs import HISTORY, LAST, WEIGHTS
from tasks.training.precision import SHARE

_CHECKPOINT = ".checkpoint.pt"
NOT_BETTER = "no epoch is better on dev than what training began with, which is kept"
EpochDone = Callable[[dict[str, float], Path | None], None]


class WeightGroup(NamedTuple):
    """Weights that are trained at one learning rate. learning_rate: the peak."""

    learning_rate: float
    weights: Iterable[nn.Parameter]


@dataclass
class Sums:
    """The running sums of the current epoch, which are saved in the checkpoint."""

    total: float = 0.0  # of the objective's metric
    count: float = 0.0  # tokens or captions summed over in `total`
    seconds: float = 0.0
    bfloat16: int = 0  # steps computed in bfloat16

    @property
    def mean(self) -> float:
        """Return the metric's mean; NaN before the first step."""
        return self.total / self.count if self.count else float("nan")


class TrainingLoop:
    """The training loop, with all state carried from step to step."""

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[WeightGroup],
        training: FitConfig,
        machine: MachineConfig,
        batches: Batches,
        out: Path,
        objective: Objective,
        name: str = "train",
        *,
        was_trained: bool = False,
    ) -> None:
        """Prepare the training, and resume it from the checkpoint in `out` if there is one.

        model: a Decoder, an Ensemble or an EndToEnd. groups: the weights to train, and their learning rates. training:
        its precision must be decided, not `auto` (see precision.py). name: the stage's kind. was_trained: whether the
        model was trained before: it is then validated first, as epoch 0, and kept if no later epoch is better.
        """
        assert training.precision != "auto"
        self.name, self.training, self.machine, self.batches, self.out = name, training, machine, batches, out
        self.objective, self.selected = objective, f"dev_{training.select}"
        self.device = device_of(machine)
        self.model: Any = model.to(self.device)
        if machine.compile:
            prepare_compiler()
            decoder: Any = self.model.decoder if isinstance(model, EndToEnd) else model
            pictures_at_once = math.ceil(batches.size / processes.size() / machine.accumulate)
            for member in members_of(decoder):
                member.compile_step(pictures_at_once, objective.rows or batches.rows)
        loss_module = LossModule(self.model, objective)
        self.loss_module: Any = loss_module if processes.size() == 1 else DistributedDataParallel(loss_module)
        self.average = copy.deepcopy(self.model.state_dict()) if training.averaging else None
        trainable = [
            {"params": [weight for weight in group.weights if weight.requires_grad], "peak": group.learning_rate}
            for group in groups
        ]
        self.optimiser = torch.optim.Adam(
            [group for group in trainable if group["params"]],
            training.learning_rate,
            fused=True,
        )
        self.step = 0
        self.sums = Sums()
        self.history: list[dict[str, float]] = []
        self.best_weights = BestWeights(out)
        self.was_trained = processes.broadcast_from_leader(was_trained)  # only the leader knows about a champion
        self._resume()

    @property
    def section(self) -> str:
        """Return the name of this training's config section."""
        return {"train": "training", "tune": "tuning"}.get(self.name, self.name)

    @property
    def trained_epochs(self) -> int:
        """Return the number of finished epochs, without epoch 0."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    @property
    def steps(self) -> int:
        """Return the number of steps of all epochs."""
        return self.training.epochs * len(self.batches)

    def run(self, dev: DevEvaluator, epoch_done: EpochDone = lambda _row, _best: None) -> None:
        """Train until the last epoch, or until the selected dev score has not risen for `patience` epochs.

        epoch_done: called with each new row of the history, and with the file of the epoch's weights if they are the
        best so far; a resumed training first calls it with the rows of earlier runs.
        """
        if 0 < self.steps <= self.training.warmup_steps:
            log.warning(
                f"{self.name}: training.warmup_steps={self.training.warmup_steps} are all of the training's "
                f"{self.steps:,} steps: the learning rate never reaches its peak: lower warmup_steps"
            )
        for index, row in enumerate(self.history):
            epoch_done(row, self._file_of_best(index))
        # Always deferred: an interrupt raised inside a library's callback may be lost there.
        with deferred_interrupt("this step") as is_interrupted:
            if self.was_trained and not self.history and not self.step:
                self._end_epoch(0, dev, epoch_done)
            while self.trained_epochs < self.training.epochs and not self._stalled():
                if is_interrupted():  # for example during validation: the epoch is in the checkpoint
                    raise KeyboardInterrupt
                self._train_epoch(self.trained_epochs, is_interrupted)
                self._end_epoch(self.trained_epochs + 1, dev, epoch_done)
            if is_interrupted():
                raise KeyboardInterrupt
        best, last = int(self.history[self.best_row()]["epoch"]), self.trained_epochs
        ended = (
            ""
            if last == self.training.epochs
            else f"ended after {counted(self.training.patience, 'epoch')} without a "
            f"better {self.selected.replace('_', ' ')} (training.patience): "
        )
        message = f"the weights of epoch {best} of {last} are kept" if best else NOT_BETTER
        log.info(f"{self.name}: {ended}{message}")

    def _end_epoch(self, epoch: int, dev: DevEvaluator, epoch_done: EpochDone) -> None:
        """Validate an epoch, add it to the history, write its weights if they are the best, and write a checkpoint."""
        row = self._validate(epoch, dev)
        self.history.append(row)
        index = len(self.history) - 1
        if self.best_row() == index:
            self.best_weights.save(self.weights(), index)
        self.checkpoint()
        self.best_weights.remove_others()
        metric = self.objective.metric
        done = f"epoch {epoch}/{self.training.epochs}  {metric} {row[metric]:.3f}" if epoch else "before training"
        log.info(
            f"{self.name}: {done}  dev loss {row['dev_loss']:.3f}, BLEU-4 {row['dev_bleu4']:.2f}, "
            f"CIDEr {row['dev_cider']:.2f} (greedy){self._rest(epoch)}"
        )
        epoch_done(row, self._file_of_best(index))

    def _rest(self, epoch: int) -> str:
        """Return the seconds of an epoch, and an estimate for the remaining epochs; empty before the first."""
        if not epoch:
            return ""
        rest = self.training.epochs - epoch
        seconds = rest * sum(row["seconds"] for row in self.history) / epoch
        more = f"; {counted(rest, 'more epoch')} at most, {duration(seconds)}" if rest else ""
        return f"  {self.history[-1]['seconds']:.0f} s{more}"

    def _file_of_best(self, index: int) -> Path | None:
        """Return the file of an epoch's weights if that epoch is the best so far; None otherwise."""
        return self.best_weights.path if self.best_row() == index else None

    def _train_epoch(self, epoch: int, is_interrupted: Callable[[], bool]) -> None:
        """Take the remaining steps of an epoch, with a checkpoint every `checkpoint_seconds`.

        Raises KeyboardInterrupt, after a checkpoint, if the training is interrupted.
        """
        start = self.step - epoch * len(self.batches)
        last_checkpoint = time.monotonic()
        started = last_checkpoint - self.sums.seconds  # includes the seconds before a kill
        self.model.train()
        label = f"epoch {epoch + 1}/{self.training.epochs}"
        with Bar(len(self.batches), label, "batches", done=start, says_end=False) as bar:
            for batch in self.batches.epoch(epoch, start):
                self.learn(batch)
                self.sums.bfloat16 += self.training.precision == "bfloat16"
                self.sums.seconds = time.monotonic() - started
                bar.advance(note=f"{self.objective.metric} {self.sums.mean:.3f}")
                # Several processes do not stop at the same step, so they write no checkpoint then.
                stops = is_interrupted() and processes.size() == 1
                if stops or time.monotonic() - last_checkpoint > self.machine.checkpoint_seconds:
                    self.checkpoint()
                    last_checkpoint = time.monotonic()
                if stops or is_interrupted():
                    raise KeyboardInterrupt
        if is_interrupted():  # after the last step's check
            self.checkpoint()
            raise KeyboardInterrupt

    def learn(self, batch: Batch) -> None:
        """Take one step, and add its metric to the sums; AttendError if its loss is not finite."""
        # All randomness, such as dropout, is seeded by the step's number, so a checkpoint needs no random state.
        torch.manual_seed(self.training.seed * 1_000_003 + self.step + processes.rank() * 2**40)
        self.model.train()
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * self.schedule()
        weight = 0.0 if batch.is_padding else 1.0
        whole = Count(*processes.all_reduce_sum([weight * number for number in Count.of(batch)]))
        self.optimiser.zero_grad(set_to_none=True)
        outcome = torch.zeros(3, device=self.device)
        parts = batch.parts(self.machine.accumulate)
        for part in parts:
            # The processes exchange gradients once per step, with the last part.
            exchanges = part is parts[-1] or processes.size() == 1
            with nullcontext() if exchanges else self.loss_module.no_sync():
                on_device = self.objective.prepare(self.model, self.batches.to_device(part, self.device), self.step)
                output = self.loss_module(on_device, whole, self.step / self.steps)
                # DDP averages gradients over the processes; multiplying by their number makes that a sum.
                (output.loss * (weight * processes.size())).backward()
            outcome += weight * torch.stack([output.loss.detach(), output.total, output.number]).float()
        for member in members_of(self.model):
            torch.nn.utils.clip_grad_norm_(member.parameters(), self.training.clip_norm or math.inf)
        self.optimiser.step()
        loss, total, number = processes.all_reduce_sum(outcome.tolist())
        if not math.isfinite(loss):
            raise AttendError(
                f"{self.name}: the loss is not finite at step {self.step}: "
                f"lower {self.section}.learning_rate, or "
                + ("training.clip_norm" if self.training.clip_norm else "set training.clip_norm=5")
            )
        self.sums.total, self.sums.count = self.sums.total + total, self.sums.count + number
        self.step += 1
        self._update_average()

    def schedule(self) -> float:
        """Return the learning rate at this step as a share of its peak, from 0 to 1.

        Linear warm-up, then a cosine down to zero at the last step (Loshchilov and Hutter 2017).
        """
        warmup = self.training.warmup_steps
        if self.step < warmup:
            return (self.step + 1) / warmup
        share = (self.step - warmup) / max(self.steps - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * share))

    @torch.no_grad()
    def _update_average(self) -> None:
        if self.average is not None:
            # The decay is lower in the first steps, so that the average quickly forgets the random initial weights.
            decay = min(self.training.averaging, self.step / (self.step + 10))
            learned = {name: value for name, value in self.model.state_dict().items() if value.is_floating_point()}
            torch._foreach_lerp_([self.average[name] for name in learned], list(learned.values()), 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that are validated and kept: the averaged ones if `averaging` is set."""
        return self.average if self.average is not None else self.model.state_dict()

    def _validate(self, epoch: int, dev: DevEvaluator) -> dict[str, float]:
        """Return the epoch's row of the history, with its dev scores, and reset the running sums."""
        learned = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.weights())
        scores = dev.scores(self.model)
        self.model.load_state_dict(learned)
        row = {
            "epoch": float(epoch),
            "step": float(self.step),
            self.objective.metric: self.sums.mean,
            "learning_rate": self.training.learning_rate * self.schedule(),
            "seconds": self.sums.seconds,
            SHARE: self.sums.bfloat16 / len(self.batches),
            **scores,
        }
        self.sums = Sums()
        return row

    def best_row(self) -> int:
        """Return the index in the history of the epoch with the best dev score; of equal ones, the last."""
        return max(range(len(self.history)), key=lambda index: (self.history[index][self.selected], index))

    def _stalled(self) -> bool:
        """Return whether the selected dev score has not risen for `patience` epochs."""
        scores = [row[self.selected] for row in self.history if row["epoch"]]
        return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self.training.patience

    def checkpoint(self) -> None:
        """Save everything that the next step depends on, atomically; only the leader saves."""
        if processes.rank():
            return
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "sums": asdict(self.sums),
            "history": self.history,
            "best": self.best_weights.record,
        }
        with atomic_file(self.out / _CHECKPOINT) as temporary:
            torch.save(state, temporary)
        progress = f"step {self.step:,} of {self.steps:,}, {self.trained_epochs} of {self.training.epochs} epochs done"
        (self.out / PROGRESS).write_text(progress, encoding="utf-8")

    def _resume(self) -> None:
        """Restore the state from the leader's checkpoint, in all processes; do nothing if there is none."""
        state = processes.broadcast_from_leader(None if processes.rank() else self._read_checkpoint())
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        if state["average"] is not None:
            self.average = {name: value.to(self.device) for name, value in state["average"].items()}
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.history = state["step"], state["history"]
        self.sums = Sums(**state["sums"])
        self.best_weights.record = state["best"]
        log.info(f"{self.name}: resumes at step {self.step:,} of {self.steps:,}")

    def _read_checkpoint(self) -> dict[str, Any] | None:
        """Return the checkpoint's state; None if there is none, or if it or the best weights are damaged."""
        path = self.out / _CHECKPOINT
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch's reader raises various errors for a damaged file
            if is_out_of_memory(error):
                raise
            log.warning(f"{self.name}: {path}: the checkpoint is damaged: the training begins again")
            return None
        damage = self.best_weights.damage(state["best"])
        if damage is not None:
            log.warning(f"{self.name}: {damage}: the training begins again")
            return None
        return state

    def write(self) -> None:
        """Write the finished artifact's weights and history. The checkpoint stays until they are published.

        Raises AttendError if the kept weights are damaged or not finite.
        """
        self.best_weights.load(self.name, self.section)  # checks them
        save_weights(self.weights(), self.out / LAST)
        shutil.copyfile(self.best_weights.path, self.out / WEIGHTS)
        self.write_history()

    def write_history(self) -> None:
        """Write history.parquet, with one row per epoch."""
        pq.write_table(pa.Table.from_pylist(self.history), self.out / HISTORY)

    def best(self) -> dict[str, Tensor]:
        """Return the weights with the best dev score so far, on the CPU; AttendError if they are damaged."""
        return self.best_weights.load(self.name, self.section)


class LossModule(nn.Module):
    """A model and its objective as one module whose forward pass is the loss, because DDP needs a module to wrap."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, whole: Count, done: float) -> LossOutput:
        return self.objective(self.model, batch, whole, done)
