"""The grids of one data set: bringing the grid store up to date with it, and the index of an artifact.

Only pictures that the store of this backbone identity does not hold yet are decoded. The artifact is an index for one
manifest, `index.parquet` (digest, shard, row), and `failed.parquet` (see failures.py).
"""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.config.schema import GridsConfig, MachineConfig
from tasks.grids.encoding import ExtractionResult, View
from tasks.grids.failures import FAILED, Failed, digest_of_failed, write_failures
from tasks.grids.identity import Identity
from tasks.grids.reader import GridReader
from tasks.grids.shard_jobs import ShardJob, fill_store
from tasks.grids.store import GridStore, Row
from tasks.grids.weights import IMPORTED
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
    """Add to the grid store of `identity` what it lacks of these pictures, and write an artifact's files to `out`.

    files: name -> photograph. tuned: the artifact of a fine-tuned backbone. view: the part of a photograph that is
    encoded; all of it where not given. Raises AttendError where more than `grids.max_failed` of the pictures cannot be
    decoded.
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
        if missing and grids.backbone == IMPORTED:
            result = ExtractionResult(
                [Failed(digest, files[digest], "is not among the imported grids") for digest in missing]
            )
        elif missing:
            wanted = [(digest, files[digest]) for digest in missing]
            whole = ShardJob(store.next_number(), wanted, identity, grids, machine, tuned, view)
            report = functools.partial(_report, out / PROGRESS, hooks)
            result = fill_store(store, whole, hooks.executor, report)
        rows, _ = store.rows()
    failed = result.failed
    _check_failures(failed, len(files), grids.max_failed)
    used = {digest: rows[digest] for digest in sorted(files) if digest in rows}
    _write_index(out, used)
    write_failures(failed, out / FAILED)
    (out / IDENTITY).write_text(json.dumps(identity.told, indent=1, sort_keys=True), encoding="utf-8")
    shared = _shared(workspace, store, used)
    products = {
        "identity": identity.digest,
        "failed": digest_of_failed(item.digest for item in failed),
        "grids": digest_of([identity.digest, sorted(used)]),
    }
    counts: dict[str, int | float] = {
        "grids": len(used),
        "extracted": len(missing) - len(failed),
        "failed": len(failed),
        "shards": len(shared),
        **{f"seconds_{name}": round(value, 3) for name, value in result.seconds.items()},
    }
    if failed:
        notes.append(f"{len(failed)} pictures cannot be read and are left out: see failed.parquet")
    return Outcome(products, counts, notes, shared)


def _report(progress: Path, hooks: Hooks, done: int, total: int) -> None:
    progress.write_text(f"{done:,} of {total:,} pictures extracted", encoding="utf-8")
    hooks.shards_done(done, total)


def _check_failures(failed: list[Failed], total: int, allowed: float) -> None:
    if len(failed) > allowed * total:
        shown = "; ".join(f"{item.path}: {item.reason}" for item in failed[:5])
        more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
        raise AttendError(
            f"{len(failed)} of {total} pictures cannot be read, over grids.max_failed={allowed}: {shown}{more}"
        )


def reindex(workspace: Workspace, artifact: Artifact, store: GridStore, rows: dict[str, Row]) -> None:
    """Publish an artifact of `extract` or `views` anew: its grids lie where `rows` says, its products are the same."""
    ledger = artifact.ledger
    partial = workspace.partial(ledger.stage, ledger.key)
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(artifact.path, partial, ignore=shutil.ignore_patterns(LEDGER))
    used = {digest: rows[digest] for digest in pq.read_table(partial / INDEX).column("digest").to_pylist()}
    _write_index(partial, used)
    shared = _shared(workspace, store, used)
    outcome = Outcome(ledger.products, {**ledger.counts, "shards": len(shared)}, ledger.notes, shared)
    workspace.publish(ledger.stage, ledger.key, ledger.parts, outcome, ledger.seconds, ledger.made_from)


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


def _shared(workspace: Workspace, store: GridStore, rows: dict[str, Row]) -> dict[str, FileRecord]:
    """The shards that these rows lie in, as an artifact's ledger names them."""
    numbers = {row.shard for row in rows.values()}
    return {
        str(shard.path.relative_to(workspace.root)): shard.record for shard in store.shards() if shard.number in numbers
    }


def read_identity(extracted: Artifact) -> Identity:
    """What made the grids of an artifact of `extract` or `views`."""
    return Identity(**json.loads((extracted.path / IDENTITY).read_text(encoding="utf-8")))


def open_grids(extracted: Artifact, machine: MachineConfig) -> GridReader:
    """The grids of an artifact of `extract` or `views`, ready to be read by content digest."""
    store = GridStore(Workspace(machine.folder).grids, read_identity(extracted))
    if store.remote is not None:
        store.open()
    index = pq.read_table(extracted.path / INDEX).to_pylist()
    return GridReader(store, {item["digest"]: Row(item["shard"], item["row"]) for item in index})
