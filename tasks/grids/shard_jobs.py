"""Make shards of grids in this process or on a cluster: the job that a worker is sent, and the result it returns.

Workers write a shard's files under temporary names in the store's folder; the process that holds the store's lock
publishes them. So a shard that two workers made, because one was believed lost, is published once, and a shard made for
a run that has ended is never published. A shard's bytes depend on its job alone, not on the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models.backbones.encoder import Encoder
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.common.progress import Bar
from tasks.config.devices import device_of, prepare_compiler
from tasks.config.machine import MachineConfig
from tasks.config.precision import warn_if_emulated
from tasks.config.stages import GridsConfig
from tasks.grids.encoding import ExtractionResult, ShardsDone, extract_grids
from tasks.grids.identity import Identity
from tasks.grids.photograph_batches import View
from tasks.grids.store import Draft, Grids, GridStore
from tasks.grids.weights import load_backbone, weights_file
from tasks.pipeline.ledger import Artifact, digest_of
from tasks.pipeline.workspace import Workspace


@dataclass(frozen=True)
class ShardJob:
    """A job: one shard to be made.

    number: the shard's number. wanted: (name, file) of its photographs, in order. identity: the store's identity.
    machine: its workspace is a path or URL that all workers can reach. tuned: the artifact of a fine-tuned backbone, if
    there is one. view: returns the part of a photograph to encode; None for the whole photograph.
    """

    number: int
    wanted: Sequence[tuple[str, Path]]
    identity: Identity
    grids: GridsConfig
    machine: MachineConfig
    tuned: Artifact | None
    view: View | None


@dataclass(frozen=True)
class ShardResult:
    """The result of a `ShardJob`.

    asked: the number of its photographs. draft: the shard's files; None where no photograph could be decoded. result:
    the photographs that could not be decoded, and the seconds spent on each kind of work.
    """

    asked: int
    draft: Draft | None
    result: ExtractionResult


Publish = Callable[[ShardResult], None]
ShardExecutor = Callable[[Sequence[ShardJob], Publish], None]  # runs jobs elsewhere, and publishes each result
loaded_encoders: dict[str, Encoder] = {}


def make_shard(job: ShardJob) -> ShardResult:
    """Write one shard's files, unpublished. A worker's process reuses its backbone for the next shard."""
    key = digest_of([job.identity.as_dict, job.machine.device, job.machine.compile, job.machine.extract_batch])
    if key not in loaded_encoders:
        loaded_encoders.clear()  # one backbone in memory at a time
        loaded_encoders[key] = encoder_of(job.grids, job.machine, _local_tuned_backbone(job))
    store, drafts = GridStore(Workspace(job.machine.folder).grids, job.identity), []
    store.folder.mkdir(parents=True, exist_ok=True)

    def write_draft(slabs: Sequence[Grids], names: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Draft:
        draft = store.draft(slabs, names, sizes, job.number)
        if store.remote is not None:  # it was uploaded to the storage, where the publishing process uses it
            draft.hdf5.unlink()
        drafts.append(draft)
        return draft

    encoder = loaded_encoders[key]
    result = extract_grids(write_draft, encoder, job.grids, job.machine, job.wanted, view=job.view)
    return ShardResult(len(job.wanted), drafts[0] if drafts else None, result)


def _local_tuned_backbone(job: ShardJob) -> Artifact | None:
    """Return the tuned backbone's artifact in this machine's workspace; None where the backbone is not tuned.

    Where this workspace does not have the artifact, the job's is returned.
    Raises AttendError where the local weights file differs from the job's.
    """
    if job.tuned is not None:
        return Workspace(job.machine.folder).find("tune", job.tuned.ledger.key) or job.tuned
    weights = weights_file(job.grids.weights)
    if weights is not None and weights.exists() and digest_of_file(weights) != job.identity.weights:
        raise AttendError(
            f"grids.weights: {weights}: differs on this worker from the file the run started with: copy that one here"
        )
    return None


def fill_store(
    store: GridStore, job: ShardJob, executor: ShardExecutor | None, shards_done: ShardsDone
) -> ExtractionResult:
    """Add shards to a store, made in this process or by `executor`. The caller holds the store's lock.

    job: all photographs as one job, with the number of the first shard. shards_done: as in `extract_grids`.
    """
    if executor is None:
        encoder = encoder_of(job.grids, job.machine, job.tuned)
        return extract_grids(store.write, encoder, job.grids, job.machine, job.wanted, shards_done, job.view)
    rows, total, done = job.machine.shard_rows, ExtractionResult(), 0
    # Paths that are relative, or that begin with `~`, may mean other files on a worker.
    machine = job.machine.model_copy(update={"workspace": job.machine.address})
    weights = weights_file(job.grids.weights)
    grids = job.grids.model_copy(update={} if weights is None else {"weights": str(weights.absolute())})
    parts = [job.wanted[start : start + rows] for start in range(0, len(job.wanted), rows)]
    shard_jobs = [
        replace(
            job,
            number=job.number + index,
            wanted=[(name, file.absolute()) for name, file in part],
            grids=grids,
            machine=machine,
        )
        for index, part in enumerate(parts)
    ]
    with Bar(len(job.wanted), f"grids of {job.grids.backbone}", "pictures") as bar:

        def publish(result: ShardResult) -> None:
            nonlocal done
            if result.draft is not None:
                shard = store.publish(result.draft)
                bar.log(f"{shard.path.name}: {len(shard.digests)} grids")
            total.failed.extend(result.result.failed)
            for name, seconds in result.result.seconds.items():
                total.seconds[name] += seconds
            done += result.asked
            bar.advance(result.asked)
            shards_done(done, len(job.wanted))

        executor(shard_jobs, publish)
    return total


def encoder_of(grids: GridsConfig, machine: MachineConfig, tuned: Artifact | None) -> Encoder:
    """Return the encoder of the config's backbone, on this machine's device.

    Raises AttendError where the backbone cannot encode pictures of `grids.image_size`.
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
