"""The precision that training computes in: bfloat16 where the device has it in hardware, else float32.

A processor without it emulates bfloat16, tens of times slower than float32. Names of processors and flags do not tell
what will be used: environment variables and libraries restrict the instruction set. So both are timed. A training that
was killed may go on on another processor: its history has, for each epoch, the share of the steps in bfloat16.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import torch

from tasks import processes
from tasks.config import Config, FitConfig
from tasks.devices import device_of
from tasks.progress import say
from tasks.staleness import Status

Precision = Literal["float32", "bfloat16"]
FitT = TypeVar("FitT", bound=FitConfig)
SHARE = "bfloat16_share"  # column of a training's history: the share of an epoch's steps that were in bfloat16
# Of float32's time bfloat16 takes half where it is native, at least twice as much where it is emulated.
_NATIVE = 1.0
_ROWS, _WIDTH, _ROUNDS = 128, 512, 7  # of the products timed: 0.4 ms in float32, 25 ms where bfloat16 is emulated


def with_precision(training: FitT, device: torch.device, section: str) -> FitT:
    """Return the config with `auto` replaced by what the device computes natively.

    section: the config's name for it. The leader of several processes decides for all of them. Where bfloat16 is asked
    for and emulated, it stays, and a line says what that costs.
    """
    if training.precision == "auto":
        return training.model_copy(update={"precision": processes.from_leader(native_precision(device))})
    if training.precision == "bfloat16":
        warn_if_emulated(device, section)
    return training


def native_precision(device: torch.device) -> Precision:
    """Return bfloat16 where the device computes it faster than float32, else float32."""
    return "bfloat16" if bfloat16_cost(device) < _NATIVE else "float32"


def computes_on(config: Config, statuses: Iterable[Status]) -> str | None:
    """Return what the first stage that trains and is not fresh computes on; None where none is to run.

    For the plan: `trains in float32 (auto: this processor only emulates bfloat16) on cpu, 2 threads`.
    """
    sections = {"train": config.training, "tune": config.tuning, "self_critical": config.self_critical}
    to_run = (sections.get(status.stage.kind) for status in statuses if not status.fresh)
    training = next((section for section in to_run if section is not None), None)
    if training is None:
        return None
    device = device_of(config.machine)
    precision, why = training.precision, "as set"
    if precision == "auto":
        precision = native_precision(device)
        does = "computes" if precision == "bfloat16" else "only emulates"
        why = f"auto: this {'GPU' if device.type == 'cuda' else 'processor'} {does} bfloat16"
    return f"trains in {precision} ({why}) on {device}, {torch.get_num_threads()} threads"


def warn_if_emulated(device: torch.device, section: str) -> None:
    """Say what bfloat16 costs, asked for in a section of the config, where the device only emulates it."""
    cost = bfloat16_cost(device)
    if cost >= _NATIVE:
        say(
            f"{section}.precision: bfloat16 is emulated here: its matrix products take {cost:.1f} times as long as "
            f"float32's; set {section}.precision=float32"
        )


@functools.cache
def bfloat16_cost(device: torch.device) -> float:
    """Return the time of a matrix product in bfloat16 as a share of its time in float32, the fastest of a few each.

    A GPU is known by its compute capability: 0.5 from 8.0 on, where bfloat16 came, else 2.
    """
    if device.type == "cuda":
        return 0.5 if torch.cuda.get_device_capability(device) >= (8, 0) else 2.0
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    weights = {dtype: torch.ones(_WIDTH, _WIDTH, dtype=dtype) for dtype in best}
    inputs = {dtype: torch.ones(_ROWS, _WIDTH, dtype=dtype) for dtype in best}
    with torch.inference_mode():
        for _ in range(_ROUNDS):  # in turns, so that other programs disturb both alike
            for dtype, weight in weights.items():
                began = time.perf_counter()
                inputs[dtype] @ weight
                best[dtype] = min(best[dtype], time.perf_counter() - began)
    return best[torch.bfloat16] / best[torch.float32]


def precision_by_epoch(history: Sequence[Mapping[str, float]]) -> str:
    """Return which precision each epoch of a history was computed in: `float32 (epochs 1 to 3), bfloat16 (epoch 4)`.

    One that all epochs share is named alone; an epoch that two processors had parts of is named with both.
    """
    shares = [row[SHARE] for row in history]
    names = ["bfloat16" if share == 1 else "float32" if share == 0 else "float32 and bfloat16" for share in shares]
    if len(set(names)) == 1:
        return names[0]
    parts, last = [], 0
    for name, run in itertools.groupby(names):
        first, last = last + 1, last + len(list(run))
        parts.append(f"{name} (epoch{f's {first} to' if last > first else ''} {last})")
    return ", ".join(parts)
