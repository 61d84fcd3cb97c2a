"""Training steps of each grid size: the textbook form, ours, and ours compiled and replayed from graphs.

    python -m bench.gpu.steps [--device cpu]

The bench ends where a form's loss at the same weights is not the textbook form's. `of the peak` is the share of a large
matrix product's rate, by the operations that the form's own products take.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn import functional

from bench.gpu.machine import begin, head, peak, row, seconds_of
from bench.speed.textbook import Textbook
from bench.speed.training_step import CAPTIONS, LENGTH, RATE, ROWS, Problem, StubBatches
from tasks.config.machine import MachineConfig
from tasks.config.training import TrainingConfig
from tasks.training.loop import TrainingLoop, WeightGroup
from tasks.training.objectives import CrossEntropy

FORMS = ("textbook", "float32", "bfloat16", "bfloat16, compiled and replayed")
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


def main() -> None:
    device = begin(__doc__)
    names = list(ROWS) if device.type == "cuda" else ["4x4x400"]
    # As a processor, a rehearsal compiles nothing.
    forms = FORMS if device.type == "cuda" else FORMS[:3]
    peaks = {precision: peak(precision, device) for precision in ("float32", "bfloat16")}
    print(", ".join(f"matrix product in {name}: {rate:.1f} TFLOP/s" for name, rate in peaks.items()))
    head(("grid", "form", "ms", "tokens/s", "ratio", "of the peak", "MiB at most"))
    for name in names:
        first: dict[str, float] = {}
        seconds: dict[str, float] = {}
        for form in forms:
            problem = Problem(ROWS[name])
            with TemporaryDirectory() as folder:
                step = textbook_step(problem, device) if form == "textbook" else own_step(problem, form, device, folder)
                first[form] = step()
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                seconds[form] = seconds_of(step, device, times=10 if device.type == "cuda" else 2)
            precision = "bfloat16" if form.startswith("bfloat16") else "float32"
            if abs(first[form] - first["textbook"]) > TOLERANCE[precision] * first["textbook"]:
                raise SystemExit(f"{name}, {form}: its loss is {first[form]}, the textbook form's {first['textbook']}")
            tokens = problem.row.pictures * CAPTIONS * LENGTH
            share = problem.flops(form) / seconds[form] / 1e12 / peaks[precision]
            most = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0
            row(
                name,
                form,
                f"{1000 * seconds[form]:.2f}",
                f"{tokens / seconds[form]:,.0f}",
                f"{seconds['textbook'] / seconds[form]:.1f}",
                f"{share:.0%}",
                f"{most:,.0f}",
            )


def own_step(problem: Problem, form: str, device: torch.device, folder: str) -> Callable[[], float]:
    """Return a step of the training loop; its value is the mean loss of the steps so far, read at its first call."""
    precision: Any = form.partition(",")[0]
    training = TrainingConfig(learning_rate=RATE, warmup_steps=0, precision=precision)
    machine = MachineConfig(device=device.type, compile="compiled" in form)
    groups, batches = [WeightGroup(RATE, problem.decoder.parameters())], StubBatches(problem.row.pictures)
    loop = TrainingLoop(problem.decoder, groups, training, machine, batches, Path(folder), CrossEntropy(training))  # type: ignore[arg-type]
    uploaded = loop.upload(problem.batch)

    def step() -> float:
        loop.learn(uploaded)
        return loop.tally.read().mean if loop.step == 1 else 0.0

    return step


def textbook_step(problem: Problem, device: torch.device) -> Callable[[], float]:
    """Return a step of the textbook form, whose rows are captions, each with a copy of its picture's grid."""
    decoder = problem.decoder.to(device)
    model = Textbook(decoder)
    batch = problem.batch
    pooled = functional.adaptive_avg_pool2d(batch.pictures.permute(0, 3, 1, 2), problem.row.side)
    grid = pooled.flatten(2).transpose(1, 2).repeat_interleave(CAPTIONS, dim=0).to(device)
    words, targets = batch.words.flatten(0, 1).to(device), batch.targets.flatten(0, 1).to(device)
    optimiser = torch.optim.Adam(model.parameters(), RATE)

    def step() -> float:
        loss = functional.cross_entropy(model(grid, words).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main()
