"""The processes that train and caption together, where torchrun started several: one leads, the others follow.

The leader (rank 0) runs the pipeline. Where it comes to a stage that is shared out, each process runs that stage's
function on its part of every batch; what the followers write goes to a folder that is thrown away. Alone, a process is
the leader of nobody, and nothing here does anything.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed

from tasks.common import progress
from tasks.common.errors import AttendError
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Hooks, Stage, Work
from tasks.pipeline.workspace import Workspace

Thing = TypeVar("Thing")
_PATIENCE = timedelta(days=7)  # followers wait while the leader alone extracts
_SETTLING = 0.5  # seconds; a thousand times what a thread needs


def rank() -> int:
    """Of this process: 0 for the leader."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def size() -> int:
    """How many processes work together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def part(things: Sequence[Thing]) -> Sequence[Thing]:
    """The share of this process: every `size`-th."""
    return things[rank() :: size()]


def gathered(things: Sequence[Thing], total: int) -> list[Thing]:
    """All shares of `total` things put together again, in order, in every process."""
    if size() == 1:
        return list(things)
    parts: list[Any] = [None] * size()
    distributed.all_gather_object(parts, list(things))
    return [parts[at % size()][at // size()] for at in range(total)]


def summed(values: Sequence[float]) -> list[float]:
    """Each number summed over all processes, float64."""
    if size() == 1:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(total)
    return list(total.tolist())


def from_leader(thing: Thing) -> Thing:
    """What the leader has, in every process; what the others give does not matter."""
    if size() == 1:
        return thing
    box: list[Any] = [thing if rank() == 0 else None]
    distributed.broadcast_object_list(box, src=0)
    given: Thing = box[0]
    return given


@contextmanager
def together(device: str) -> Iterator[bool]:
    """While the block takes, the processes that torchrun started know each other; told whether this one leads.

    device: as in the config; each has a GPU of its own unless that is `cpu`. AttendError where they do not find each
    other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        number, own = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
        if own >= number:
            raise AttendError(f"torchrun: --nproc-per-node is more than the {number} GPUs of this machine")
        torch.cuda.set_device(own)
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        told = str(error).splitlines()[0]
        raise AttendError(f"the processes of torchrun do not find each other: {told}: start it again") from None
    try:
        if rank():
            progress.silence()
        yield rank() == 0
    finally:
        distributed.destroy_process_group()
        # Where DDP was used the group's threads live on until the process ends. One may still be letting go of the
        # last message, for which it needs the interpreter: were that gone, the process would abort, its work done.
        time.sleep(_SETTLING)


def lead(stage: Stage, work: Work, hooks: Hooks) -> Outcome:
    """Run a stage in all processes at once; return the leader's outcome. Hooks are called by the leader alone."""
    from_leader((stage, work))
    return stage.run(work, hooks)


def dismiss() -> None:
    """The leader has nothing more to do."""
    from_leader(None)


def follow() -> None:
    """Do what the leader begins, until it dismisses its followers; where it ended without a word, it told why."""
    try:
        _follow()
    except RuntimeError as error:
        if not (isinstance(error, distributed.DistError) or "gloo" in str(error)):
            raise
        sys.exit(1)


def _follow() -> None:
    nothing: Any = None
    while (begun := from_leader(nothing)) is not None:
        stage, work = begun
        workspace = Workspace(stage.machine.folder)  # of object storage, each machine has a cache of its own
        there = {item: workspace.find(item.kind, made.ledger.key) or made for item, made in work.artifacts.items()}
        work = replace(work, artifacts=there)
        with tempfile.TemporaryDirectory(prefix="attend-") as folder:
            stage.run(replace(work, out=Path(folder)), Hooks())
