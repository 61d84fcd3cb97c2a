"""The processes that torchrun starts to train and caption together: one leader and its followers.

The leader (rank 0) runs the pipeline. When it reaches a distributed stage, every process runs that stage's function on
its share of each batch; the followers write to a temporary folder that is deleted. A single process is a leader
without followers, and nothing here has any effect.
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

from tasks.common.errors import AttendError
from tasks.common.log import silence
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Stage, Work
from tasks.pipeline.workspace import Workspace

Item = TypeVar("Item")
_TIMEOUT = timedelta(days=7)  # followers wait while the leader alone extracts
_THREAD_EXIT_SECONDS = 0.5  # a thousand times the time that a thread needs


def rank() -> int:
    """Return the rank of this process: 0 for the leader."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def size() -> int:
    """Return the number of processes that work together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def share_of(items: Sequence[Item]) -> Sequence[Item]:
    """Return this process's share of the items: every `size`-th, beginning at its rank."""
    return items[rank() :: size()]


def all_gather(items: Sequence[Item], total: int) -> list[Item]:
    """Return all `total` items in order, collected from the shares of all processes, in every process."""
    if size() == 1:
        return list(items)
    shares: list[Any] = [None] * size()
    distributed.all_gather_object(shares, list(items))
    return [shares[index % size()][index // size()] for index in range(total)]


def all_reduce_sum(values: Sequence[float]) -> list[float]:
    """Return each number summed over all processes, in float64."""
    if size() == 1:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(total)
    return list(total.tolist())


def broadcast_from_leader(value: Item) -> Item:
    """Return the leader's value in every process; the values that the followers pass are ignored."""
    if size() == 1:
        return value
    container: list[Any] = [value if rank() == 0 else None]
    distributed.broadcast_object_list(container, src=0)
    received: Item = container[0]
    return received


@contextmanager
def process_group(device: str) -> Iterator[bool]:
    """Connect the processes started by torchrun for the length of the block; yield whether this one is the leader.

    device: as in the config; each process uses a GPU of its own unless it is `cpu`. Raises AttendError if the machine
    has fewer GPUs than processes, or if the processes cannot connect to each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        gpu_count, gpu = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
        if gpu >= gpu_count:
            raise AttendError(f"torchrun: --nproc-per-node is more than the {gpu_count} GPUs of this machine")
        torch.cuda.set_device(gpu)
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise AttendError(f"torchrun: the processes cannot connect to each other: {reason}: start them again") from None
    try:
        if rank():
            silence()
        yield rank() == 0
    finally:
        distributed.destroy_process_group()
        # After DDP was used, the group's threads live until the process ends. One of them may still be releasing the
        # last message, for which it needs the interpreter: without it, the process would abort after its work.
        time.sleep(_THREAD_EXIT_SECONDS)


def lead(stage: Stage, work: Work, hooks: Any) -> Outcome:
    """Run a stage in all processes at once and return the leader's outcome. Only the leader calls the hooks."""
    broadcast_from_leader((stage, work))
    return stage.run(work, hooks)


def dismiss_followers() -> None:
    """Let the followers end: the leader has no more stages for them."""
    broadcast_from_leader(None)


def follow() -> None:
    """Run each stage that the leader begins, until the leader dismisses its followers.

    If the leader ends without dismissing them, exit with status 1 and no message: the leader has reported the error.
    """
    ignored: Any = None
    try:
        while (received := broadcast_from_leader(ignored)) is not None:
            stage, work = received
            workspace = Workspace(stage.machine.folder)  # with object storage, each machine has its own cache folder
            local = {
                upstream: workspace.find(upstream.kind, artifact.ledger.key) or artifact
                for upstream, artifact in work.artifacts.items()
            }
            with tempfile.TemporaryDirectory(prefix="attend-") as folder:
                stage.run(replace(work, artifacts=local, out=Path(folder)))
    except RuntimeError as error:
        if not (isinstance(error, distributed.DistError) or "gloo" in str(error)):
            raise
        sys.exit(1)
