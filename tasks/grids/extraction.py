"""Extract grids: photographs -> batches of pixels -> grids -> shards of the store -> the index of one data set.

Only pictures that the store of this backbone identity does not hold yet are decoded, with one job per shard:

- Files are read one batch ahead, while the previous batch is encoded.
- On a CPU, decoding and the forward pass take turns, so that each has all cores; run at once, they would wait for each
  other. For a GPU, a thread decodes batches ahead into pinned memory. Decoding and resizing stay on the CPU there too,
  so that pixels are the same on every machine.
- A thread writes a shard while the next one is encoded.
- An executor runs the jobs elsewhere. Workers write a shard's files under temporary names in the store's folder; the
  process that holds the store's lock publishes them. So a shard that two workers wrote, because one was believed lost,
  is published once, and a shard written for a run that has ended is never published.

A shard's bytes depend on its job alone, not on the worker.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.backbones.encoder import Encoder
from models.encoded_pictures import Pixels, decode, resize
from models.out_of_memory import is_out_of_memory
from models.picture_formats import Interpolation
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.common.progress import Bar
from tasks.common.threads import run_ahead
from tasks.common.wording import counted
from tasks.config.devices import device_of, prepare_compiler, warn_if_emulated
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.grids.identity import Identity
from tasks.grids.index import IDENTITY, shard_files, write_index
from tasks.grids.photographs import (
    FAILED,
    FailedPhotograph,
    decoders,
    digest_of_failed,
    read_photograph,
    write_failures,
)
from tasks.grids.store import Draft, Grids, GridStore
from tasks.grids.weights import load_backbone, weights_file
from tasks.pipeline.ledger import Artifact, Outcome, digest_of
from tasks.pipeline.stage import PROGRESS
from tasks.pipeline.workspace import Workspace

_BATCHES_AHEAD = 2  # decoded ahead of a GPU
loaded_encoders: dict[str, Encoder] = {}


@dataclass(frozen=True, eq=False)
class ShardJob:
    """A job: one shard to extract.

    number: the shard's number. photographs: (digest, file) of each, in order. identity: the store's identity.
    machine: its workspace is a path or URL that all workers can reach. tuned: the artifact of a fine-tuned backbone, or
    None.
    """

    number: int
    photographs: Sequence[tuple[str, Path]]
    identity: Identity
    grids: GridsConfig
    machine: MachineConfig
    tuned: Artifact | None


@dataclass(frozen=True)
class ShardResult:
    """The result of a job.

    draft: the shard's files; None if no photograph could be decoded. failed: the photographs that could not be decoded.
    """

    draft: Draft | None
    failed: list[FailedPhotograph]

    @property
    def requested(self) -> int:
        """Return the number of the job's photographs."""
        return len(self.failed) + (0 if self.draft is None else len(self.draft.shard.digests))


Publish = Callable[[ShardResult], None]
Executor = Callable[[Sequence[ShardJob], Publish], None]


@dataclass(frozen=True)
class ExtractHooks:
    """The callbacks of extraction.

    shards_done: called with (done, total) pictures after each shard. executor: runs all jobs elsewhere, and publishes
    each shard when it is done; None to run them in this process.
    """

    shards_done: Callable[[int, int], None] = lambda _done, _total: None
    executor: Executor | None = None


def bring_up_to_date(
    files: dict[str, Path],
    identity: Identity,
    grids: GridsConfig,
    machine: MachineConfig,
    tuned: Artifact | None,
    out: Path,
    hooks: ExtractHooks,
) -> Outcome:
    """Add missing pictures to the grid store of `identity`, and write an artifact's files to `out`.

    files: digest -> file of the photograph. tuned: as in `ShardJob`. However this function ends, each shard is either
    complete or absent. Raises AttendError if more than `grids.max_failed`, a share of all pictures, cannot be decoded,
    and what `make_shards` raises.
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
        jobs = jobs_of([(digest, files[digest]) for digest in missing], store, grids, machine, tuned)
        failed = _fill(store, jobs, hooks, out / PROGRESS) if jobs else []
        rows, _ = store.rows()
    if len(failed) > grids.max_failed * len(files):
        examples = "; ".join(f"{item.path}: {item.reason}" for item in failed[:5])
        more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
        raise AttendError(
            f"{len(failed)} of {len(files)} pictures cannot be read, over grids.max_failed={grids.max_failed}: "
            f"{examples}{more}"
        )
    indexed = {digest: rows[digest] for digest in sorted(files) if digest in rows}
    write_index(out, indexed)
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
    }
    if failed:
        shown = ", ".join(item.path.name for item in failed[:3]) + (", ..." if len(failed) > 3 else "")
        notes.append(f"{counted(len(failed), 'picture')} that cannot be read left out: {shown}: see {FAILED}")
    return Outcome(products, counts, notes, shard_files(workspace, store, indexed))


def jobs_of(
    photographs: Sequence[tuple[str, Path]],
    store: GridStore,
    grids: GridsConfig,
    machine: MachineConfig,
    tuned: Artifact | None = None,
) -> list[ShardJob]:
    """Return the jobs that add photographs, given as (digest, file), to a store: `machine.shard_rows` in each."""
    size = machine.shard_rows
    parts = (photographs[start : start + size] for start in range(0, len(photographs), size))
    first = store.next_number()
    return [ShardJob(number, part, store.identity, grids, machine, tuned) for number, part in enumerate(parts, first)]


def _fill(store: GridStore, jobs: Sequence[ShardJob], hooks: ExtractHooks, progress: Path) -> list[FailedPhotograph]:
    """Add the shards of all jobs to the store; return the photographs that could not be decoded.

    The caller holds the store's lock. progress: a file for the progress, in words.
    """
    failed: list[FailedPhotograph] = []
    grids, machine, tuned = jobs[0].grids, jobs[0].machine, jobs[0].tuned
    done, total = 0, sum(len(job.photographs) for job in jobs)
    with Bar(total, f"grids of {grids.backbone}", "pictures") as bar:

        def publish(result: ShardResult) -> None:
            nonlocal done
            if result.draft is not None:
                shard = store.publish(result.draft)
                bar.log(f"{shard.path.name}: {len(shard.digests)} grids")
            failed.extend(result.failed)
            done += result.requested
            progress.write_text(f"{done:,} of {total:,} pictures extracted", encoding="utf-8")
            hooks.shards_done(done, total)

        def publish_and_count(result: ShardResult) -> None:
            publish(result)
            bar.advance(result.requested)

        if jobs[0].photographs[0][1].suffix == ".npy":
            for job in jobs:
                publish_and_count(_shard_of_given(job, store))
        elif hooks.executor is not None:
            hooks.executor(_for_workers(jobs), publish_and_count)
        else:
            make_shards(jobs, store, encoder_of(grids, machine, tuned), publish, bar.advance)
    return failed


def _shard_of_given(job: ShardJob, store: GridStore) -> ShardResult:
    """Write a shard of grids that a data set has in place of photographs: .npy files of (h, w, C) float16."""
    grids = [np.load(io.BytesIO(read_photograph(*item)), allow_pickle=False)[None] for item in job.photographs]
    names = [name for name, _ in job.photographs]
    return ShardResult(store.draft(grids, names, [(0, 0)] * len(names), job.number), [])


def make_shards(
    jobs: Sequence[ShardJob],
    store: GridStore,
    encoder: Encoder,
    publish: Publish,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Run jobs in this process; a thread writes each shard while the next one is encoded.

    publish: called with each shard once its files are written. advance: called with the number of photographs in each
    encoded batch. Raises AttendError if the disk is full, memory runs out, a file is missing or does not match its
    digest, or the backbone gives values that are not finite.
    """
    pending: Future[ShardResult] | None = None
    with decoders(jobs[0].machine) as pool, ThreadPoolExecutor(1) as thread:

        def publish_pending() -> None:
            nonlocal pending
            if pending is not None:
                result = pending.result()  # if interrupted here, it is published in `finally`
                pending = None
                publish(result)

        batches = _decode(jobs, encoder, pool)
        if encoder.device.type != "cpu":
            batches = run_ahead(batches, _BATCHES_AHEAD)
        try:
            for job, of_shard in itertools.groupby(batches, key=lambda batch: batch.job):
                slabs, photographs, failed = [], [], []
                for batch in of_shard:
                    if batch.photographs:
                        slabs.append(_encode(batch, encoder))
                    photographs += batch.photographs
                    failed += batch.failed
                    advance(len(batch.photographs) + len(batch.failed))
                    if pending is not None and pending.done():  # publish a shard as soon as it is written
                        publish_pending()
                publish_pending()
                pending = thread.submit(_write, store, job, slabs, photographs, failed)
        finally:
            publish_pending()


class _Photograph(NamedTuple):
    """A decoded photograph: its name, and the size (width, height) of the original."""

    name: str
    size: tuple[int, int]


class _Batch(NamedTuple):
    """A batch of a job's photographs, and the pixels, uint8 (n, 3, S, S), of the decoded ones."""

    job: ShardJob
    photographs: list[_Photograph]
    failed: list[FailedPhotograph]
    pixels: Tensor


def _decode(jobs: Sequence[ShardJob], encoder: Encoder, pool: ThreadPoolExecutor) -> Iterator[_Batch]:
    """Yield the photographs of all jobs in batches, in order; no batch has photographs of two jobs."""
    size = jobs[0].machine.extract_batch
    parts = [(job, job.photographs[at : at + size]) for job in jobs for at in range(0, len(job.photographs), size)]
    files = [pool.submit(read_photograph, *item) for item in parts[0][1]]
    for number, (job, part) in enumerate(parts, 1):
        contents = [file.result() for file in files]
        side = job.grids.image_size
        # Channels last, and filled by the decoding threads. Pinned memory is copied to a GPU faster.
        lines = torch.empty(len(part), side, side, 3, dtype=torch.uint8, pin_memory=encoder.device.type == "cuda")
        decode_one = functools.partial(_decode_one, job, encoder.declared.interpolation)
        outcomes = list(pool.map(decode_one, part, contents, lines.numpy()))
        files = [pool.submit(read_photograph, *item) for item in parts[number][1]] if number < len(parts) else []
        failed = [outcome for outcome in outcomes if isinstance(outcome, FailedPhotograph)]
        good = [outcome for outcome in outcomes if isinstance(outcome, _Photograph)]
        if failed:
            lines = lines[[index for index, outcome in enumerate(outcomes) if isinstance(outcome, _Photograph)]]
        yield _Batch(job, good, failed, lines.permute(0, 3, 1, 2))


def _decode_one(
    job: ShardJob, interpolation: Interpolation, item: tuple[str, Path], data: bytes, out: Pixels
) -> _Photograph | FailedPhotograph:
    """Decode a photograph, and write its pixels to out (S, S, 3)."""
    name, path = item
    try:
        original = decode(data)
        out[:] = resize(original, job.grids.image_size, job.grids.fit, interpolation)
        return _Photograph(name, (original.shape[1], original.shape[0]))
    except ValueError as error:
        return FailedPhotograph(name, path, str(error))
    except Exception as error:
        if is_out_of_memory(error):  # not the photograph's fault: the next run tries it again
            raise AttendError(
                f"{path}: out of memory while it was decoded: free some, or lower machine.threads and "
                "machine.extract_batch, and run again; finished shards are kept"
            ) from None
        raise


def _encode(batch: _Batch, encoder: Encoder) -> Grids:
    """Return the grids of a batch, float16 (n, h, w, C). Raises AttendError if a value is not finite."""
    on_device = encoder(batch.pixels)
    # Comparing exponents as integers is five times as fast as `isfinite`.
    infinite = ((on_device.view(torch.int16) & 0x7C00) == 0x7C00).flatten(1).any(dim=1).tolist()
    if any(infinite):
        paths = dict(batch.job.photographs)
        bad = [str(paths[item.name]) for item, is_bad in zip(batch.photographs, infinite, strict=True) if is_bad]
        raise AttendError(
            f"grids.weights: {batch.job.grids.weights}: gives values that are not finite for {len(bad)} photographs of "
            f"a batch: {', '.join(bad[:3])}: the weights are damaged or do not fit {batch.job.grids.backbone}; use "
            "others"
        )
    return on_device.cpu().numpy()


def _write(
    store: GridStore,
    job: ShardJob,
    slabs: Sequence[Grids],
    photographs: Sequence[_Photograph],
    failed: list[FailedPhotograph],
) -> ShardResult:
    """Write the files of a shard, unpublished."""
    names, sizes = [item.name for item in photographs], [item.size for item in photographs]
    return ShardResult(store.draft(slabs, names, sizes, job.number) if slabs else None, failed)


def _for_workers(jobs: Sequence[ShardJob]) -> list[ShardJob]:
    """Return jobs whose paths mean the same files on a worker: absolute, and without `~`."""
    grids, machine = jobs[0].grids, jobs[0].machine
    weights = weights_file(grids.weights)
    grids = grids.model_copy(update={} if weights is None else {"weights": str(weights.absolute())})
    machine = machine.model_copy(update={"workspace": machine.address})
    items = [[(name, file.absolute()) for name, file in job.photographs] for job in jobs]
    return [replace(job, photographs=own, grids=grids, machine=machine) for job, own in zip(jobs, items, strict=True)]


def make_shard(job: ShardJob) -> ShardResult:
    """Write one shard's files on a worker, unpublished. Its process reuses the backbone for the next shard."""
    key = digest_of([job.identity.as_dict, job.machine.device, job.machine.compile, job.machine.extract_batch])
    if key not in loaded_encoders:
        loaded_encoders.clear()  # one backbone in memory at a time
        loaded_encoders[key] = encoder_of(job.grids, job.machine, _local_tuned_backbone(job))
    store = GridStore(Workspace(job.machine.folder).grids, job.identity)
    store.folder.mkdir(parents=True, exist_ok=True)
    results: list[ShardResult] = []
    make_shards([job], store, loaded_encoders[key], results.append)
    if store.remote is not None and results[0].draft is not None:  # uploaded, and published from the storage
        results[0].draft.hdf5.unlink()
    return results[0]


def _local_tuned_backbone(job: ShardJob) -> Artifact | None:
    """Return the tuned backbone's artifact in this machine's workspace, or the job's; None if it is not tuned.

    Raises AttendError if the local weights file differs from the job's.
    """
    if job.tuned is not None:
        return Workspace(job.machine.folder).find("tune", job.tuned.ledger.key) or job.tuned
    weights = weights_file(job.grids.weights)
    if weights is not None and weights.exists() and digest_of_file(weights) != job.identity.weights:
        raise AttendError(
            f"grids.weights: {weights}: differs on this worker from the file the run started with: copy that one here"
        )
    return None


def encoder_of(grids: GridsConfig, machine: MachineConfig, tuned: Artifact | None) -> Encoder:
    """Return the encoder of the config's backbone, on this machine's device.

    Raises AttendError if the backbone cannot encode pictures of `grids.image_size`.
    """
    if machine.compile:
        prepare_compiler()
    backbone, device = load_backbone(grids, tuned), device_of(machine)
    if grids.precision == "bfloat16":
        warn_if_emulated(device, "grids")
    compile_for = machine.extract_batch if machine.compile else None
    encoder = Encoder(backbone, grids.precision, device, compile_for)
    try:
        encoder.check(grids.image_size)
    except ValueError as error:
        raise AttendError(f"grids.image_size: {grids.backbone} {error}") from None
    return encoder
