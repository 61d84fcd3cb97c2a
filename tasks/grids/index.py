"""Update the grid store with the pictures of one data set, and write and read an artifact's index of its grids.

Only pictures that the store of this backbone identity does not hold yet are decoded. The artifact consists of the index
for one manifest, `index.parquet` (digest, shard, row), of `failed.parquet` (see failures.py) and of `identity.json`.
"""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.common.wording import counted
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.grids.encoding import ExtractionResult, ShardsDone
from tasks.grids.failures import FAILED, FailedPhotograph, digest_of_failed, write_failures
from tasks.grids.identity import Identity
from tasks.grids.photograph_batches import View
from tasks.grids.reader import GridReader
from tasks.grids.shard_jobs import ShardExecutor, ShardJob, fill_store
from tasks.grids.store import GridStore, Row
from tasks.pipeline.ledger import LEDGER, Artifact, FileRecord, Outcome, digest_of
from tasks.pipeline.stage import PROGRESS, Hooks
from tasks.pipeline.workspace import Workspace

INDEX, IDENTITY = "index.parquet", "identity.json"


def bring_up_to_date(
    files: dict[str, Path],
    identity: Identity,
    grids: GridsConfig,
    machine: MachineConfig,
    tuned: Artifact | None,
    out: Path,
    hooks: Hooks,
    view: View | None = None,
) -> Outcome:
    """Add the pictures that the grid store of `identity` lacks to it, and write an artifact's files to `out`.

    files: name -> file of the photograph. tuned: the artifact of a fine-tuned backbone, if there is one. view: returns
    the part of a photograph to encode; None for the whole photograph. Raises AttendError where more than
    `grids.max_failed`, a share of all pictures, cannot be decoded.
    """
    workspace = Workspace(machine.folder)
    store = GridStore(workspace.grids, identity)
    with workspace.lock(f"grids-{identity.digest[:20]}", f"grids of {identity.backbone}"):
        store.open()
        notes = [
            f"{damage}; set aside, its pictures are extracted again" for damage in store.clean(workspace.suspects())
        ]
        workspace.trust(path for path in workspace.suspects() if path.parent == store.folder)
        rows, _ = store.rows()
        missing = sorted(digest for digest in files if digest not in rows)
        result = ExtractionResult()
        if missing:
            wanted = [(digest, files[digest]) for digest in missing]
            job = ShardJob(store.next_number(), wanted, identity, grids, machine, tuned, view)
            shards_done = functools.partial(_report_progress, out / PROGRESS, hooks)
            result = _fill(store, job, hooks.executor, shards_done)
        rows, _ = store.rows()
    failed = result.failed
    _check_failures(failed, len(files), grids.max_failed)
    indexed = {digest: rows[digest] for digest in sorted(files) if digest in rows}
    _write_index(out, indexed)
    write_failures(failed, out / FAILED)
    (out / IDENTITY).write_text(json.dumps(identity.as_dict, indent=1, sort_keys=True), encoding="utf-8")
    products = {
        "identity": identity.digest,
        "failed": digest_of_failed(item.digest for item in failed),
        "grids": digest_of([identity.digest, sorted(indexed)]),
    }
    counts: dict[str, int | float] = {
        "grids": len(indexed),
        "extracted": len(missing) - len(failed),
        "failed": len(failed),
        "shards": len({row.shard for row in indexed.values()}),
        **{f"seconds_{name}": round(value, 3) for name, value in result.seconds.items()},
    }
    if failed:
        shown = ", ".join(item.path.name for item in failed[:3]) + (", ..." if len(failed) > 3 else "")
        notes.append(f"{counted(len(failed), 'picture')} that cannot be read left out: {shown}: see {FAILED}")
    return Outcome(products, counts, notes, _shard_files(workspace, store, indexed))


def _fill(store: GridStore, job: ShardJob, executor: ShardExecutor | None, shards_done: ShardsDone) -> ExtractionResult:
    """Add the grids of a job's pictures to the store: as the data set gives them, or extracted from photographs.

    Arguments and result: as of `fill_store`.
    """
    if any(path.suffix == ".npy" for _, path in job.wanted):  # grids, (h, w, C) float16, in place of photographs
        for start in range(0, len(job.wanted), job.machine.shard_rows):
            part = job.wanted[start : start + job.machine.shard_rows]
            grids = [np.load(path, allow_pickle=False)[None] for _, path in part]
            store.write(grids, [digest for digest, _ in part], [(0, 0)] * len(part))
        return ExtractionResult()
    return fill_store(store, job, executor, shards_done)


def _report_progress(progress: Path, hooks: Hooks, done: int, total: int) -> None:
    progress.write_text(f"{done:,} of {total:,} pictures extracted", encoding="utf-8")
    hooks.shards_done(done, total)


def _check_failures(failed: list[FailedPhotograph], total: int, allowed: float) -> None:
    """Raise AttendError where more than the share `allowed` of `total` pictures failed."""
    if len(failed) > allowed * total:
        examples = "; ".join(f"{item.path}: {item.reason}" for item in failed[:5])
        more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
        raise AttendError(
            f"{len(failed)} of {total} pictures cannot be read, over grids.max_failed={allowed}: {examples}{more}"
        )


def reindex(workspace: Workspace, artifact: Artifact, store: GridStore, rows: dict[str, Row]) -> None:
    """Publish an artifact of `extract` or `views` again, with the same products.

    rows: digest -> row, where its grids are now.
    """
    ledger = artifact.ledger
    partial = workspace.partial(ledger.stage, ledger.key)
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(artifact.path, partial, ignore=shutil.ignore_patterns(LEDGER))
    indexed = {digest: rows[digest] for digest in indexed_digests(artifact)}
    _write_index(partial, indexed)
    counts = {**ledger.counts, "shards": len({row.shard for row in indexed.values()})}
    outcome = Outcome(ledger.products, counts, ledger.notes, _shard_files(workspace, store, indexed))
    workspace.publish(ledger.stage, ledger.key, ledger.parts, outcome, ledger.seconds, ledger.made_from, ledger.unknown)


def indexed_digests(extracted: Artifact) -> list[str]:
    """Return the names of all grids that an artifact of `extract` or `views` indexes."""
    names: list[str] = pq.read_table(extracted.path / INDEX, columns=["digest"])["digest"].to_pylist()
    return names


def _write_index(out: Path, rows: dict[str, Row]) -> None:
    index = {
        "digest": list(rows),
        "shard": pa.array([row.shard for row in rows.values()], pa.int32()),
        "row": pa.array([row.row for row in rows.values()], pa.int32()),
    }
    pq.write_table(pa.table(index), out / INDEX)


def _shard_files(workspace: Workspace, store: GridStore, rows: dict[str, Row]) -> dict[str, FileRecord]:
    """Return path in the workspace -> size and digest of the files of the shards that hold these rows."""
    numbers = {row.shard for row in rows.values()}
    records: dict[str, FileRecord] = {}
    for shard in store.shards():
        if shard.number in numbers:
            records[str(shard.path.relative_to(workspace.root))] = shard.record
            records[str(shard.index.relative_to(workspace.root))] = FileRecord.of(shard.index)
    return records


def read_identity(extracted: Artifact) -> Identity:
    """Return the identity of the grids of an artifact of `extract` or `views`."""
    return Identity.read(extracted.path / IDENTITY)


def open_grids(extracted: Artifact, machine: MachineConfig) -> GridReader:
    """Return a reader, by name, of the grids of an artifact of `extract` or `views`."""
    store = GridStore(Workspace(machine.folder).grids, read_identity(extracted))
    if store.remote is not None:
        store.open()
    index = pq.read_table(extracted.path / INDEX).to_pylist()
    return GridReader(store, {item["digest"]: Row(item["shard"], item["row"]) for item in index})
