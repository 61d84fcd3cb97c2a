"""Compare one training step (forward, loss, backward, clipping, Adam) with the textbook form.

    python -m bench.speed.training_step [--rounds 5] [--threads N] [ROW ...]

All forms have the same loss and gradients. The textbook form (textbook.py) has one caption per row. All forms take
turns on the same weights and batch; the fastest of their rounds counts. Peak memory is measured in separate processes,
in addition to the memory before the first step.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.machine import describe, peak_memory, precisions
from bench.speed.textbook import Textbook
from models.decoders.base import make
from models.vocabulary import START
from tasks.config.machine import MachineConfig
from tasks.config.training import TrainingConfig
from tasks.training.batches import Batch
from tasks.training.loop import Sums, TrainingLoop, WeightGroup
from tasks.training.objectives import CrossEntropy

RATE = 1e-4
LENGTH, CAPTIONS = 16, 5


@dataclass(frozen=True)
class Row:
    """A problem size, and the ratios to reach in float32 and bfloat16.

    native: side of the stored grid if it differs from `side`, at which the grid is presented.
    """

    side: int
    channels: int
    vocabulary: int
    pictures: int
    goals: tuple[float | None, float]
    native: int | None = None


ROWS = {
    "14x14x2048": Row(14, 2048, 9490, 16, (9.0, 17.0)),
    "8x8x2048": Row(14, 2048, 9490, 16, (None, 20.0), native=8),
    "7x7x1280": Row(7, 1280, 9490, 16, (3.0, 6.0)),
    "4x4x400": Row(4, 400, 9490, 25, (2.0, 3.5)),
}
COMPILED = ", compiled"


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    if args.memory:
        print(_memory(Problem(ROWS[args.rows[0]]), args.memory))
        return
    describe()
    for precision in precisions():
        print(f"matrix product peak, {precision}: {_peak(precision):.0f} GFLOP/s")
    print("\n| grid | form | seconds | tokens/s | ratio | goal | share of the peak | peak memory |")
    print("| --- " * 8 + "|")
    for name in args.rows or ROWS:
        _compare(name, args)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    return parser.parse_args()


class Problem:
    """A decoder and a batch, with training steps in every form."""

    def __init__(self, row: Row, device: Any = "cpu") -> None:
        torch.manual_seed(0)
        self.row, self.device = row, device
        options = {"dropout_output": 0.0} | ({"attention_grid": row.side} if row.native else {})
        self.decoder: Any = make("show_attend_tell", row.channels, row.vocabulary, options).to(device)
        side = row.native or row.side
        tokens = torch.randint(4, row.vocabulary, (row.pictures, CAPTIONS, LENGTH + 1))
        tokens[:, :, 0] = START
        self.batch = Batch.of(torch.randn(row.pictures, side, side, row.channels), tokens)

    def step(self, form: str) -> Callable[[], float]:
        """Return a step that returns the loss before it. Once one was compiled, later ones are too."""
        if form == "textbook":
            return self._textbook()
        precision: Any = form.partition(",")[0]
        training = TrainingConfig(learning_rate=RATE, warmup_steps=0, precision=precision)
        machine = MachineConfig(device=self.device, compile=form.endswith(COMPILED))
        groups, batches = [WeightGroup(RATE, self.decoder.parameters())], StubBatches(self.row.pictures)
        out, objective = Path(tempfile.mkdtemp()), CrossEntropy(training)
        loop = TrainingLoop(self.decoder, groups, training, machine, batches, out, objective)  # type: ignore[arg-type]

        def step() -> float:
            loop.sums = Sums()
            loop.learn(self.batch)
            return loop.sums.mean

        return step

    def _textbook(self) -> Callable[[], float]:
        """Return the textbook step: each row is a caption with a copy of its picture's grid."""
        model = Textbook(self.decoder)
        pooled = functional.adaptive_avg_pool2d(self.batch.pictures.permute(0, 3, 1, 2), self.row.side)
        grid = pooled.flatten(2).transpose(1, 2).repeat_interleave(CAPTIONS, dim=0).to(self.device)
        words, targets = (part.flatten(0, 1).to(self.device) for part in (self.batch.words, self.batch.targets))
        optimiser = torch.optim.Adam(model.parameters(), RATE)

        def step() -> float:
            logits = model(grid, words)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
            return float(loss.detach())

        return step

    def from_here(self, step: Callable[[], float]) -> tuple[float, dict[str, Tensor]]:
        """Return the loss and gradients of a step, and restore the weights."""
        weights = dict(self.decoder.named_parameters())
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        loss = step()
        gradients = {name: weight.grad.clone() for name, weight in weights.items()}
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(before[name])
        return loss, gradients

    def flops(self, form: str) -> float:
        """Return the FLOPs of the step's matrix products: forward, weight gradients, and input gradients if learned."""
        size, decoder = self.row, self.decoder
        positions = (size.side if form == "textbook" else size.native or size.side) ** 2
        hidden, attention_size = int(decoder.hidden_gates.in_features), int(decoder.attention.query.out_features)
        rows = size.pictures * CAPTIONS * LENGTH
        keyed = rows if form == "textbook" else size.pictures
        a_row = 3 * hidden * (attention_size + size.channels + 4 * hidden)  # query, gate, W_h
        a_row += 3 * 4 * hidden * (size.channels + decoder.embed.embedding_dim)  # W_z, W_x
        a_row += 3 * hidden * size.vocabulary + 2 * positions * size.channels  # words, context
        total: float = 2.0 * (rows * a_row + 2 * keyed * positions * size.channels * attention_size)
        return total


class StubBatches:
    """The part of `Batches` that the loop needs for a step."""

    def __init__(self, size: int) -> None:
        self.size, self.rows = size, CAPTIONS

    def __len__(self) -> int:
        return 1_000_000

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        return batch.to(device)


def _compare(name: str, args: Any) -> None:
    problem, other = (Problem(ROWS[name], args.device) for _ in range(2))
    plain: dict[str, Callable[[], float]] = {form: problem.step(form) for form in precisions()}
    steps = {"textbook": problem.step("textbook"), **plain}
    truth = problem.from_here(steps["textbook"])
    _check(problem, plain, truth)
    compiled = {f"{form}{COMPILED}": other.step(f"{form}{COMPILED}") for form in precisions()}
    _check(other, compiled, truth)
    steps |= compiled
    seconds = dict.fromkeys(steps, float("inf"))
    for _ in range(args.rounds):
        for form, step in steps.items():
            began = time.perf_counter()
            step()
            seconds[form] = min(seconds[form], time.perf_counter() - began)
    tokens = problem.row.pictures * CAPTIONS * LENGTH
    goals = dict(zip(("float32", "bfloat16"), problem.row.goals, strict=True))
    for form, taken in seconds.items():
        precision = form.partition(",")[0].replace("textbook", "float32")
        peak = _peak(precision)
        share = problem.flops(form) / taken / 1e9 / peak
        ratio, goal = f"{seconds['textbook'] / taken:.1f}", ("" if form == "textbook" else goals[precision] or "")
        cells = [name, form, f"{taken:.3f}", f"{tokens / taken:,.0f}", ratio, str(goal), f"{share:.0%}"]
        print("| " + " | ".join([*cells, _memory_of(name, form)]) + " |", flush=True)


def _check(problem: Problem, steps: dict[str, Callable[[], float]], truth: tuple[float, dict[str, Tensor]]) -> None:
    """Raise SystemExit if a form's loss or gradients differ from the textbook form's, `truth`, at the same weights."""
    loss, gradients = truth
    # The keys' bias moves all scores alike: its gradient is nothing but rounding.
    sizes = {name: float(value.norm()) for name, value in gradients.items() if name != "attention.key.bias"}
    for form, step in steps.items():
        own, textbook = problem.from_here(step)
        worst = max(float((textbook[name] - gradients[name]).norm()) / size for name, size in sizes.items())
        print(f"{form}: its loss differs by {abs(own - loss) / loss:.0e}, its gradients by {worst:.0e}", flush=True)
        most = (1e-6, 1e-4) if form.startswith("float32") else (1e-3, 5e-2)
        if abs(own - loss) / loss > most[0] or worst > most[1]:
            raise SystemExit(f"{form} does not compute the textbook form's loss and gradients")


def _peak(precision: str) -> float:
    """Return the GFLOP/s of a large matrix product, the best of a few runs."""
    size, dtype = 2048, getattr(torch, precision)
    left, right = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


def _memory(problem: Problem, form: str) -> float:
    """Return the peak memory in MiB that two steps need in addition to the model and the batch."""

    def two_steps() -> None:
        step = problem.step(form)
        step()
        step()

    return peak_memory(two_steps)


def _memory_of(name: str, form: str) -> str:
    command = [sys.executable, "-m", "bench.speed.training_step", name, "--memory", form]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"{float(output):,.0f} MiB"


if __name__ == "__main__":
    main()
