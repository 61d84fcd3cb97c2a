"""The photographs that have no grid: what an extraction tells of them, and which of them a stage depends on."""

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
class Failed:
    """A photograph that has no grid, and why."""

    digest: str
    path: Path
    reason: str


def write_failures(failed: Iterable[Failed], path: Path) -> None:
    """failed.parquet, a row a photograph."""
    rows = [{"digest": item.digest, "path": str(item.path), "reason": item.reason} for item in failed]
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)


def digest_of_failed(digests: Iterable[str]) -> str:
    """One digest of which photographs have no grid."""
    return digest_of(sorted(digests))


def failed_among(extracted: Artifact, manifest: Artifact, splits: Collection[str]) -> str:
    """`digest_of_failed` of the photographs of these splits alone: others are nothing to a stage that reads these."""
    failed = pq.read_table(extracted.path / FAILED, columns=["digest"])["digest"].to_pylist()
    table = pq.read_table(manifest.path / MANIFEST, columns=["digest"], filters=[("split", "in", list(splits))])
    return digest_of_failed(set(failed) & set(table["digest"].to_pylist()))
