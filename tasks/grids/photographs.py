"""Read the photographs of a data set, in threads, and list those that have no grid."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.cores import available_cores
from tasks.common.errors import AttendError, TransientError
from tasks.common.retries import is_transient
from tasks.config.machine import MachineConfig
from tasks.data.manifest import MANIFEST
from tasks.pipeline.ledger import Artifact, digest_of

FAILED = "failed.parquet"  # in the artifact of `extract`


@dataclass(frozen=True)
class FailedPhotograph:
    """A photograph that has no grid, and the reason."""

    digest: str
    path: Path
    reason: str


def decoders(machine: MachineConfig) -> ThreadPoolExecutor:
    """Return the threads that read and decode photographs; the processes of one torchrun share the cores evenly."""
    share = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return ThreadPoolExecutor(machine.threads or max(share, 1))


def read_photograph(digest: str, path: Path) -> bytes:
    """Return the content of a photograph's file.

    Raises AttendError if the file cannot be read (TransientError if that may pass), or if its SHA-256 is not `digest`
    because it was changed after it was ingested.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        kind = TransientError if is_transient(error) else AttendError
        raise kind(
            f"{path}: cannot be read on {platform.node()} ({error.strerror}): run again when it can, or remove it"
        ) from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise AttendError(f"{path}: was changed while the run was going on: run again")
    return data


def write_failures(failed: Iterable[FailedPhotograph], path: Path) -> None:
    """Write failed.parquet, one row (digest, path, reason) per photograph."""
    rows = [{"digest": item.digest, "path": str(item.path), "reason": item.reason} for item in failed]
    schema = pa.schema([("digest", pa.string()), ("path", pa.string()), ("reason", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def digest_of_failed(digests: Iterable[str]) -> str:
    """Return one digest of the set of photographs without a grid, given by their digests."""
    return digest_of(sorted(digests))


def digest_of_failed_in_splits(extracted: Artifact, manifest: Artifact, splits: Collection[str]) -> str:
    """Return `digest_of_failed` of the photographs in these splits."""
    failed = pq.read_table(extracted.path / FAILED, columns=["digest"])["digest"].to_pylist()
    pictures = pq.read_table(manifest.path / MANIFEST, columns=["digest"], filters=[("split", "in", list(splits))])
    return digest_of_failed(set(failed) & set(pictures["digest"].to_pylist()))
