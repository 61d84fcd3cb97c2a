"""Read the photographs of a data set, in threads."""

from __future__ import annotations

import hashlib
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.common.cores import available_cores
from tasks.common.errors import AttendError, TransientError
from tasks.common.retries import may_pass
from tasks.config.machine import MachineConfig


def decoders(machine: MachineConfig) -> ThreadPoolExecutor:
    """Return the threads that read and decode photographs."""
    return ThreadPoolExecutor(decoder_count(machine))


def decoder_count(machine: MachineConfig) -> int:
    """Return the number of threads that decode photographs; the processes of one torchrun share the cores evenly."""
    share = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return machine.threads or max(share, 1)


def read_photograph(digest: str, path: Path) -> bytes:
    """Return the content of a photograph's file.

    Raises AttendError where the file cannot be read (any more), a TransientError where that may pass, and where its
    SHA-256 is not `digest`, because it was changed after it was ingested.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        kind = TransientError if may_pass(error) else AttendError
        raise kind(
            f"{path}: cannot be read on {platform.node()} ({error.strerror}): run again when it can, or remove it"
        ) from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise AttendError(f"{path}: was changed while the run was going on: run again")
    return data
