"""The training loop, for every model and objective.

While it runs, its folder holds `.checkpoint.pt` (weights and optimiser state, read with `weights_only`). From it a
killed run resumes in the middle of an epoch and gives the same curve as an uninterrupted one: batches, dropout and
replaced words are functions of the seed and the step's number.
"""

from __future__ import annotations

import math
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from models.decoders.base import Decoder
from models.graphs import Replayed
from models.memory import is_out_of_memory
from tasks.common.errors import AttendError
from tasks.common.files import write_whole
from tasks.common.interrupts import deferred_interrupt
from tasks.common.log import log
from tasks.common.progress import Bar, Stopwatch, lasting
from tasks.common.wording import counted
from tasks.config.devices import device_of, prepare_compiler
from tasks.config.machine import MachineConfig
from tasks.config.training import FitConfig, GridTrainingConfig
from tasks.device.copies import Arrival, copies_for
from tasks.device.recording import graphs_for
from tasks.pipeline import distributed as processes
from tasks.pipeline.stage import PROGRESS
from tasks.training.batches import Batch, Batches
from tasks.training.dev import Dev
from tasks.training.kept_weights import KeptWeights, save_weights
from tasks.training.objectives import Count, LossOutput, Objective, count
from tasks.training.outputs import HISTORY, LAST, NEXT_BEST, WEIGHTS
from tasks.training.precision import SHARE
from tasks.training.tally import NotFiniteError, Sums, Tally

_CHECKPOINT = ".checkpoint.pt"
EpochDone = Callable[[dict[str, float], Path | None], None]


class WeightGroup(NamedTuple):
    """Weights that are trained at one learning rate; learning_rate: at its peak."""

    learning_rate: float
    weights: Iterable[nn.Parameter]


class Step(NamedTuple):
    """The batch of a step, in the parts that the step takes one after another, on its way to the device.

    whole: the counts of the whole batch, of all processes. parts: in the host's memory. arrivals: their tensors, see
    `Batch.tensors`.
    """

    whole: list[float]
    parts: list[Batch]
    arrivals: list[Arrival]


class TrainingLoop:
    """A training: its loop, and all state that it carries from step to step.

    A GPU is never waited for within an epoch's steps, unless the objective must: batches are copied to it ahead of
    their step, and what a step gives is summed there. With `machine.compile` it repeats its steps from graphs.
    """

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
    ) -> None:
        """Prepare the training, and resume it from the checkpoint in `out` where there is one.

        model: a Decoder or an EndToEnd. groups: the weights that are trained, and how fast. training: its precision
        must be decided, not `auto` (see precision.py). name: the stage's kind.
        """
        assert training.precision != "auto"
        self.name, self.training, self.machine, self.batches, self.out = name, training, machine, batches, out
        self.objective, self.selected = objective, f"dev_{training.select}"
        self.keep = training.keep if isinstance(training, GridTrainingConfig) else 1
        self.device = device_of(machine)
        self.copies = copies_for(self.device)
        self.model: Any = model.to(self.device)
        if machine.compile:
            prepare_compiler()
            decoder: Any = model if isinstance(model, Decoder) else self.model.decoder
            pictures_at_once = math.ceil(batches.size / processes.size() / machine.accumulate)
            decoder.compile_step(pictures_at_once, objective.rows or batches.rows)
        loss_module = LossModule(self.model, objective)
        self.loss_module: Any = loss_module if processes.size() == 1 else synchronised(loss_module)
        self.average = _copy_weights(self.model.state_dict()) if training.averaging else None
        trainable = [
            {"params": [weight for weight in group.weights if weight.requires_grad], "peak": group.learning_rate}
            for group in groups
        ]
        self.optimiser = torch.optim.AdamW(
            [group for group in trainable if group["params"]],
            training.learning_rate,
            weight_decay=training.weight_decay,
            fused=True,
            capturable=True,
        )
        self._make_learning_rates()
        graphs = graphs_for(machine, self.device)
        self._replayed = None if graphs is None else Replayed(self._take_step, graphs)
        self.step = 0
        self.tally = Tally(self.device, self.copies, Sums())
        self.history: list[dict[str, float]] = []
        self.kept_weights = KeptWeights(out)
        self._resume()

    @property
    def section(self) -> str:
        """Return the name of the config section that this training follows."""
        return {"train": "training", "tune": "tuning"}.get(self.name, self.name)

    @property
    def steps(self) -> int:
        """Return the number of steps of all epochs."""
        return self.training.epochs * len(self.batches)

    def run(self, dev: Dev, epoch_done: EpochDone | None = None) -> None:
        """Train until the last epoch, or until the selected dev score has not risen for `patience` epochs.

        epoch_done: called with each row of the history as it is made, and with the file of the epoch's weights where
        they are the best so far; a resumed training first calls it with the rows of earlier runs.
        """
        if 0 < self.steps <= self.training.warmup_steps:
            log.warning(
                f"{self.name}: {self.section}.warmup_steps={self.training.warmup_steps} are all of the training's "
                f"{self.steps:,} steps: the learning rate never reaches its peak: lower warmup_steps"
            )
        report_row = epoch_done or _ignore_row
        for epoch, row in enumerate(self.history):
            report_row(row, self._file_of_best(epoch))
        while len(self.history) < self.training.epochs and not self._stalled():
            epoch = len(self.history)
            self._train_epoch(epoch)
            row = self._validate(dev)
            self.history.append(row)
            kept = self.kept()
            if epoch in kept:
                self.kept_weights.save(self.weights(), epoch, kept)
            self.checkpoint()
            self.kept_weights.remove_others(kept)
            metric = self.objective.metric
            log.info(
                f"{self.name}: epoch {epoch + 1}/{self.training.epochs}  {metric} {row[metric]:.3f}  "
                f"dev loss {row['dev_loss']:.3f}, BLEU-4 {row['dev_bleu4']:.2f}, CIDEr {row['dev_cider']:.2f} "
                f"(greedy)  {row['seconds']:.0f} s{self._rest()}"
            )
            report_row(row, self._file_of_best(epoch))
        best, last = self.kept()[0] + 1, len(self.history)
        ended = (
            ""
            if last == self.training.epochs
            else f"ended after {counted(self.training.patience, 'epoch')} without a "
            f"better {self.selected.replace('_', ' ')} ({self.section}.patience): "
        )
        self._replayed = None  # it holds this object, and so would keep the device's memory
        log.info(f"{self.name}: {ended}the weights of epoch {best} of {last} are kept")

    def _rest(self) -> str:
        """Return how long the other epochs may take, by those so far; empty after the last."""
        rest = self.training.epochs - len(self.history)
        seconds = rest * sum(row["seconds"] for row in self.history) / len(self.history)
        return f"; {counted(rest, 'more epoch')} at most, {lasting(seconds)}" if rest else ""

    def _file_of_best(self, epoch: int) -> Path | None:
        """Return the file of an epoch's weights where no epoch has better ones; None otherwise."""
        return self.kept_weights.path(epoch) if self.kept()[0] == epoch else None

    def _train_epoch(self, epoch: int) -> None:
        """Take the steps of an epoch that are not taken yet, with a checkpoint every `checkpoint_seconds`."""
        start = self.step - epoch * len(self.batches)
        earlier_seconds = self.tally.sums.seconds
        since_start, since_checkpoint = Stopwatch(), Stopwatch()
        self.model.train()
        label = f"epoch {epoch + 1}/{self.training.epochs}"
        with (
            deferred_interrupt("this step") as is_interrupted,
            Bar(len(self.batches), label, "batches", done=start, says_end=False) as bar,
        ):
            for step in self.ahead(self.batches.epoch(epoch, start)):
                self.learn(step)
                self.tally.sums.bfloat16 += self.training.precision == "bfloat16"
                self.tally.sums.seconds = earlier_seconds + since_start.seconds()
                with self._refusing_infinity():
                    # Processes refuse a loss at the same step, or they would wait for each other.
                    sums = self.tally.latest() if processes.size() == 1 else self.tally.read()
                if sums.count:
                    bar.note(f"{self.objective.metric} {sums.mean:.3f}")
                bar.advance()
                # Several processes stop each for itself, and so between two checkpoints.
                stops = is_interrupted() and processes.size() == 1
                if stops or since_checkpoint.seconds() > self.machine.checkpoint_seconds:
                    self.checkpoint()
                    since_checkpoint = Stopwatch()
                if stops or is_interrupted():
                    raise KeyboardInterrupt
            with self._refusing_infinity():
                self.tally.read()
            self.tally.sums.seconds = earlier_seconds + since_start.seconds()

    @contextmanager
    def _refusing_infinity(self) -> Iterator[None]:
        """Raise AttendError where the tally found a loss that is not finite."""
        try:
            yield
        except NotFiniteError as error:
            raise AttendError(
                f"{self.name}: the loss is not finite at step {error.step}: "
                f"lower {self.section}.learning_rate, or "
                + (f"{self.section}.clip_norm" if self.training.clip_norm else f"set {self.section}.clip_norm=5")
            ) from None

    def ahead(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Yield the steps of these batches; the next one is copied to the device while one is taken."""
        ahead: deque[Step] = deque()
        for batch in batches:
            ahead.append(self.upload(batch))
            if len(ahead) > 1:
                yield ahead.popleft()
        yield from ahead

    def upload(self, batch: Batch) -> Step:
        """Begin to copy a batch to the device."""
        weight = 0.0 if batch.is_padding else 1.0
        whole = processes.all_reduce_sum([weight * float(number) for number in count(batch)])
        parts = [self._shaped(part) for part in batch.parts(self.machine.accumulate)]
        return Step(whole, parts, [self.copies.upload(part.tensors()) for part in parts])

    def _shaped(self, batch: Batch) -> Batch:
        """Return a batch of the shape that it is trained on in: one of few, where steps are recorded."""
        return batch if self._replayed is None else batch.rounded()

    def learn(self, step: Step) -> None:
        """Take one step. What it gives is added to the tally."""
        # Dropout and everything else random follows the step's number, so a checkpoint needs no random state.
        torch.manual_seed(self.training.seed * 1_000_003 + self.step + processes.rank() * 2**40)
        self.model.train()
        parts = [self._prepared(*part) for part in zip(step.parts, step.arrivals, strict=True)]
        weight = 0.0 if step.parts[0].is_padding else 1.0
        numbers = torch.tensor([*step.whole, self.step / self.steps, self.schedule(), weight])
        inputs = [*self.copies.upload([numbers]).use(), *(tensor for part in parts for tensor in part)]
        outcome = self._take_step(*inputs) if self._replayed is None else self._replayed(*inputs)
        if processes.size() > 1:
            distributed.all_reduce(outcome)
        self.tally.add(outcome, self.step)
        self.step += 1
        self._update_average()

    def _prepared(self, part: Batch, arrival: Arrival) -> list[Tensor]:
        """Return the tensors, on the device, of what is trained on in place of a part of a batch."""
        tensors = arrival.use()
        pictures = self.batches.shown(tensors[0])
        prepared = self.objective.prepare(self.model, pictures, part, self.step)
        if prepared is part:
            return [pictures, *tensors[1:]]
        return [pictures, *self.copies.upload(self._shaped(prepared).tensors()[1:]).use()]

    def _take_step(self, numbers: Tensor, *tensors: Tensor) -> Tensor:
        """Take a step, and return its loss, and the total and the count of its metric: (3,) float32.

        numbers (6,): the counts of pictures, captions and tokens, the share of the training that is done, the learning
        rate's share of its peak, and the weight of this process's part, 0 or 1. tensors: those of each part of the
        batch. A GPU may record this: whatever changes from step to step is in these tensors.
        """
        pictures, captions, tokens, done, rate, weight = numbers.unbind()
        for group in self.optimiser.param_groups:
            group["lr"].copy_(group["peak"] * rate)
        self.optimiser.zero_grad(set_to_none=True)
        outcome = torch.zeros(3, device=self.device)
        for first in range(0, len(tensors), 5):
            # The processes exchange gradients once a step, with the last part.
            exchanges = first + 5 == len(tensors) or processes.size() == 1
            with nullcontext() if exchanges else self.loss_module.no_sync():
                batch = Batch.of_tensors(tensors[first : first + 5])
                output = self.loss_module(batch, Count(pictures, captions, tokens), done)
                # DDP averages gradients over the processes; times their number, the processes' losses add up instead.
                (output.loss * (weight * processes.size())).backward()
            outcome += weight * torch.stack([output.loss.detach(), output.total, output.number]).float()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm or math.inf)
        self.optimiser.step()
        return outcome

    def _make_learning_rates(self) -> None:
        """Make the optimiser's learning rates tensors on the device, so that its steps can be recorded."""
        for group in self.optimiser.param_groups:
            group["lr"], group["capturable"] = torch.zeros((), device=self.device), True

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
            # The decay is lower in the first steps, so that the average soon forgets the random initial weights.
            decay = min(self.training.averaging, self.step / (self.step + 10))
            learned = {name: value for name, value in self.model.state_dict().items() if value.is_floating_point()}
            torch._foreach_lerp_([self.average[name] for name in learned], list(learned.values()), 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that are validated and kept: the averaged ones where `averaging` is set."""
        return self.average if self.average is not None else self.model.state_dict()

    def _validate(self, dev: Dev) -> dict[str, float]:
        """Return the epoch's row of the history, with its dev scores, and reset the running sums."""
        learned = _copy_weights(self.model.state_dict())
        self.model.load_state_dict(self.weights())
        scores = dev.scores(self.model)
        self.model.load_state_dict(learned)
        row = {
            "epoch": float(len(self.history) + 1),
            "step": float(self.step),
            self.objective.metric: self.tally.sums.mean,
            "learning_rate": self.training.learning_rate * self.schedule(),
            "seconds": self.tally.sums.seconds,
            SHARE: self.tally.sums.bfloat16 / len(self.batches),
            **scores,
        }
        self.tally = Tally(self.device, self.copies, Sums())
        return row

    def kept(self) -> list[int]:
        """Return the `keep` best epochs on dev, as indices into the history, the best first; of equals, the later."""
        ranking = sorted(range(len(self.history)), key=lambda epoch: (-self.history[epoch][self.selected], -epoch))
        return ranking[: self.keep]

    def _stalled(self) -> bool:
        """Return whether the selected dev score has not risen for `patience` epochs."""
        scores = [row[self.selected] for row in self.history]
        return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self.training.patience

    def checkpoint(self) -> None:
        """Save everything that the next step depends on, atomically; of several processes only the leader saves.

        Raises AttendError where a loss was not finite: no checkpoint is kept of what it led to.
        """
        if processes.rank():
            return
        with self._refusing_infinity():
            sums = self.tally.read()
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "sums": asdict(sums),
            "history": self.history,
            "kept_digests": self.kept_weights.digests,
        }
        with write_whole(self.out / _CHECKPOINT) as temporary:
            torch.save(state, temporary)
        progress = f"step {self.step:,} of {self.steps:,}, {len(self.history)} of {self.training.epochs} epochs done"
        (self.out / PROGRESS).write_text(progress, encoding="utf-8")

    def _resume(self) -> None:
        """Restore the state from the leader's checkpoint, in all processes; do nothing where there is none."""
        state = processes.broadcast_from_leader(None if processes.rank() else self._read_checkpoint())
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        if state["average"] is not None:
            self.average = {name: value.to(self.device) for name, value in state["average"].items()}
        self.optimiser.load_state_dict(state["optimiser"])
        self._make_learning_rates()
        self.step, self.history = state["step"], state["history"]
        self.tally = Tally(self.device, self.copies, Sums(**state["sums"]))
        self.kept_weights.digests = state["kept_digests"]
        log.info(f"{self.name}: resumes at step {self.step:,} of {self.steps:,}")

    def _read_checkpoint(self) -> dict[str, Any] | None:
        """Return the checkpoint's state; None where there is none, or where weights that it ranks are damaged."""
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
        damage = self.kept_weights.damage(state["kept_digests"])
        if damage is not None:
            log.warning(f"{self.name}: {damage}: the training begins again")
            return None
        return state

    def write(self) -> None:
        """Write the finished artifact's weights and history. The checkpoint stays until they are published.

        Raises AttendError where the kept weights are damaged or not finite.
        """
        self.kept_weights.check(self.kept(), self.name, self.section)
        for left_over in self.out.glob(NEXT_BEST.format("*")):  # where an earlier attempt could not be published
            left_over.unlink()
        save_weights(self.weights(), self.out / LAST)
        for rank, epoch in enumerate(self.kept(), 1):
            shutil.copyfile(
                self.kept_weights.path(epoch), self.out / (WEIGHTS if rank == 1 else NEXT_BEST.format(rank))
            )
        self.write_history()

    def write_history(self) -> None:
        """Write history.parquet, with one row per epoch."""
        pq.write_table(pa.Table.from_pylist(self.history), self.out / HISTORY)

    def best(self) -> dict[str, Tensor]:
        """Return the weights with the best dev score so far, on the CPU; AttendError where they are damaged."""
        self.kept_weights.check(self.kept(), self.name, self.section)
        return dict(safetensors.torch.load_file(self.kept_weights.path(self.kept()[0])))


class LossModule(nn.Module):
    """A model and its objective as one module, whose forward pass is the loss: DDP needs a module to wrap."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, whole: Count, done: Tensor) -> LossOutput:
        return self.objective(self.model, batch, whole, done)


def synchronised(loss_module: LossModule) -> DistributedDataParallel:
    """Return the module with its gradients averaged over all processes."""
    return DistributedDataParallel(loss_module)


def _ignore_row(row: dict[str, float], best: Path | None) -> None:  # noqa: ARG001 -- an EpochDone that does nothing
    return


def _copy_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
