"""The precision of a training: the configured one, or the one that the device computes natively.

A killed training may resume on another processor, with another precision. Its history therefore records, for each
epoch, the share of the steps computed in bfloat16.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch

from tasks.config.devices import device_of, native_precision, warn_if_emulated
from tasks.config.schema import Config
from tasks.config.training import FitConfig
from tasks.pipeline import distributed as processes
from tasks.pipeline.plan import Status

FitT = TypeVar("FitT", bound=FitConfig)
SHARE = "bfloat16_share"  # column of a training's history: the share of an epoch's steps computed in bfloat16


def with_precision(training: FitT, device: torch.device) -> FitT:
    """Return the config with `auto` replaced by the precision that the device computes natively.

    If several processes train, the leader decides for all. If bfloat16 is configured but the device only emulates it,
    the config stays the same, and a warning states the cost.
    """
    if training.precision == "auto":
        return training.model_copy(update={"precision": processes.broadcast_from_leader(native_precision(device))})
    if training.precision == "bfloat16":
        warn_if_emulated(device, "training")
    return training


def computes_on(config: Config, statuses: Iterable[Status]) -> str | None:
    """Return the precision and device of the first stage that will train; None if every such stage is fresh.

    It is a line for the plan: `trains in float32 (auto: this processor only emulates bfloat16) on cpu, 2 threads`.
    """
    sections = {"train": config.training, "tune": config.tuning, "self_critical": config.self_critical}
    to_run = (sections.get(status.stage.kind) for status in statuses if not status.fresh)
    training = next((section for section in to_run if section is not None), None)
    if training is None:
        return None
    device = device_of(config.machine)
    precision, reason = training.precision, "as set"
    if precision == "auto":
        precision = native_precision(device)
        support = "computes" if precision == "bfloat16" else "only emulates"
        reason = f"auto: this {'GPU' if device.type == 'cuda' else 'processor'} {support} bfloat16"
    return f"trains in {precision} ({reason}) on {device}, {torch.get_num_threads()} threads"


def precision_by_epoch(history: Sequence[Mapping[str, float]]) -> str:
    """Return which precision each epoch of a history was computed in: `float32 (epochs 1 to 3), bfloat16 (epoch 4)`.

    If all epochs share a precision, only its name is returned. An epoch with steps in both is `float32 and bfloat16`.
    Epoch 0 has no steps.
    """
    shares = [row[SHARE] for row in history if row["epoch"]]
    names = ["bfloat16" if share == 1 else "float32" if share == 0 else "float32 and bfloat16" for share in shares]
    if len(set(names)) == 1:
        return names[0]
    parts, last = [], 0
    for name, run in itertools.groupby(names):
        first, last = last + 1, last + len(list(run))
        parts.append(f"{name} (epoch{f's {first} to' if last > first else ''} {last})")
    return ", ".join(parts)
