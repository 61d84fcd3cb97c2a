"""The artifact of `extract`: the index of one data set's grids in the store.

It consists of `index.parquet` (digest, shard, row), `failed.parquet` (see photographs.py) and `identity.json`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config.machine import MachineConfig
from tasks.grids.identity import Identity
from tasks.grids.reader import GridReader
from tasks.grids.store import GridRow, GridStore
from tasks.pipeline.ledger import LEDGER, Artifact, FileRecord, Outcome
from tasks.pipeline.workspace import Workspace

INDEX, IDENTITY = "index.parquet", "identity.json"


def reindex(workspace: Workspace, artifact: Artifact, store: GridStore, rows: dict[str, GridRow]) -> None:
    """Publish an artifact of `extract` again, with the same products.

    rows: digest -> new row of its grid.
    """
    ledger = artifact.ledger
    partial = workspace.partial(ledger.stage, ledger.key)
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(artifact.path, partial, ignore=shutil.ignore_patterns(LEDGER))
    indexed = {digest: rows[digest] for digest in indexed_digests(artifact)}
    write_index(partial, indexed)
    counts = {**ledger.counts, "shards": len({row.shard for row in indexed.values()})}
    outcome = Outcome(ledger.products, counts, ledger.notes, shard_files(workspace, store, indexed))
    workspace.publish(ledger.stage, ledger.key, ledger.parts, outcome, ledger.seconds, ledger.made_from)


def indexed_digests(extracted: Artifact) -> list[str]:
    """Return the digests of all grids that an artifact of `extract` indexes."""
    names: list[str] = pq.read_table(extracted.path / INDEX, columns=["digest"])["digest"].to_pylist()
    return names


def write_index(out: Path, rows: dict[str, GridRow]) -> None:
    """Write `index.parquet` to the folder `out`. rows: digest -> row of its grid."""
    index = {
        "digest": list(rows),
        "shard": pa.array([row.shard for row in rows.values()], pa.int32()),
        "row": pa.array([row.row for row in rows.values()], pa.int32()),
    }
    pq.write_table(pa.table(index), out / INDEX)


def shard_files(workspace: Workspace, store: GridStore, rows: dict[str, GridRow]) -> dict[str, FileRecord]:
    """Return path in the workspace -> size and digest, for the files of the shards that hold these rows."""
    numbers = {row.shard for row in rows.values()}
    records: dict[str, FileRecord] = {}
    for shard in store.shards():
        if shard.number in numbers:
            records[str(shard.path.relative_to(workspace.root))] = shard.record
            records[str(shard.index.relative_to(workspace.root))] = FileRecord.of(shard.index)
    return records


def read_identity(extracted: Artifact) -> Identity:
    """Return the identity of the grids of an artifact of `extract`."""
    return Identity.read(extracted.path / IDENTITY)


def open_grids(extracted: Artifact, machine: MachineConfig) -> GridReader:
    """Return a reader, by digest, of the grids of an artifact of `extract`."""
    store = GridStore(Workspace(machine.folder).grids, read_identity(extracted))
    if store.remote is not None:
        store.open()
    index = pq.read_table(extracted.path / INDEX).to_pylist()
    return GridReader(store, {item["digest"]: GridRow(item["shard"], item["row"]) for item in index})
