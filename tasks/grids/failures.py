"""The photographs that have no grid: the table of them in an artifact, and the digest of those a stage depends on."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.manifest import MANIFEST
from tasks.pipeline.ledger import Artifact, digest_of

FAILED = "failed.parquet"
_SCHEMA = pa.schema([("digest", pa.string()), ("path", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True)
class FailedPhotograph:
    """A photograph that has no grid, and the reason."""

    digest: str
    path: Path
    reason: str


def write_failures(failed: Iterable[FailedPhotograph], path: Path) -> None:
    """Write failed.parquet, one row (digest, path, reason) per photograph."""
    rows = [{"digest": item.digest, "path": str(item.path), "reason": item.reason} for item in failed]
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)


def digest_of_failed(digests: Iterable[str]) -> str:
    """Return one digest of the set of photographs that have no grid, given by their digests."""
    return digest_of(sorted(digests))


def digest_of_failed_in_splits(extracted: Artifact, manifest: Artifact, splits: Collection[str]) -> str:
    """Return `digest_of_failed` of the photographs of these splits alone.

    A stage that reads only these splits does not depend on the photographs of others.
    """
    failed = pq.read_table(extracted.path / FAILED, columns=["digest"])["digest"].to_pylist()
    pictures = pq.read_table(manifest.path / MANIFEST, columns=["digest"], filters=[("split", "in", list(splits))])
    return digest_of_failed(set(failed) & set(pictures["digest"].to_pylist()))
