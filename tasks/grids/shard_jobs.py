"""A shard of grids as work that can be done anywhere: what a worker of a cluster is handed, and what it hands back.

Workers make a shard's files beside the store's; the one who holds the store's lock publishes them. So a shard that two
workers made, because one was thought lost, is there once, and what a worker makes for a run that is no more is not
there at all. A shard's bytes are a function of what is handed over, whoever makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models.backbones.encoder import Encoder
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.common.progress import Bar
from tasks.config.devices import check_compiler, device_of
from tasks.config.precision import warn_if_emulated
from tasks.config.schema import GridsConfig, MachineConfig
from tasks.grids.encoding import ExtractionResult, ShardsDone, View, extract_grids
from tasks.grids.identity import Identity
from tasks.grids.store import Draft, Grids, GridStore
from tasks.grids.weights import load_backbone, weights_file
from tasks.pipeline.ledger import Artifact, digest_of
from tasks.pipeline.workspace import Workspace


@dataclass(frozen=True)
class ShardJob:
    """One shard to be made.

    number: of the shard. wanted: names and files of its photographs, in order. identity: of the store. tuned: the
    artifact of a fine-tuned backbone. machine: its workspace is a path that all workers see.
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
    """What came of a shard's work.

    asked: its photographs. draft: None where none was sound. result: what could not be read, and was waited for.
    """

    asked: int
    draft: Draft | None
    result: ExtractionResult


Publish = Callable[[ShardResult], None]
ShardExecutor = Callable[[Sequence[ShardJob], Publish], None]  # has them made, and published as they come
_encoders: dict[str, Encoder] = {}


def make_shard(job: ShardJob) -> ShardResult:
    """Make one shard's files. A worker keeps its backbone from one to the next."""
    key = digest_of([job.identity.told, job.machine.device, job.machine.compile, job.machine.extract_batch])
    if key not in _encoders:
        _encoders.clear()  # one backbone in memory at a time
        _encoders[key] = encoder_of(job.grids, job.machine, _here(job))
    store, drafts = GridStore(Workspace(job.machine.folder).grids, job.identity), []
    store.folder.mkdir(parents=True, exist_ok=True)

    def draft(slabs: Sequence[Grids], names: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Draft:
        made = store.draft(slabs, names, sizes, job.number)
        if store.remote is not None:  # it is in the storage, for whoever publishes it
            made.hdf5.unlink()
        drafts.append(made)
        return made

    encoder = _encoders[key]
    result = extract_grids(draft, encoder, job.grids, job.machine, job.wanted, view=job.view)
    return ShardResult(len(job.wanted), drafts[0] if drafts else None, result)


def _here(job: ShardJob) -> Artifact | None:
    """The tuned backbone as this machine has it; AttendError where the weights here are not those that were meant."""
    if job.tuned is not None:
        return Workspace(job.machine.folder).find("tune", job.tuned.ledger.key) or job.tuned
    weights = weights_file(job.grids.weights)
    if weights is not None and weights.exists() and digest_of_file(weights) != job.identity.weights:
        raise AttendError(f"grids.weights: {weights}: is another file on this worker than where the run was started")
    return None


def fill_store(
    store: GridStore, whole: ShardJob, executor: ShardExecutor | None, shards_done: ShardsDone
) -> ExtractionResult:
    """Add shards to a store, made here, or by whoever `executor` finds. The caller holds the store's lock.

    whole: all of them as one, with the number of the first. shards_done: as in `extract_grids`.
    """
    if executor is None:
        encoder = encoder_of(whole.grids, whole.machine, whole.tuned)
        return extract_grids(store.write, encoder, whole.grids, whole.machine, whole.wanted, shards_done, whole.view)
    rows, result, done = whole.machine.shard_rows, ExtractionResult(), 0
    machine = whole.machine.model_copy(update={"workspace": whole.machine.address})
    weights = weights_file(whole.grids.weights)
    grids = whole.grids.model_copy(update={} if weights is None else {"weights": str(weights.absolute())})
    cut = [whole.wanted[at : at + rows] for at in range(0, len(whole.wanted), rows)]
    jobs = [
        replace(
            whole,
            number=whole.number + place,
            wanted=[(name, file.absolute()) for name, file in part],
            grids=grids,
            machine=machine,
        )
        for place, part in enumerate(cut)
    ]
    with Bar(len(whole.wanted), f"grids of {whole.grids.backbone}", "pictures") as bar:

        def publish(made: ShardResult) -> None:
            nonlocal done
            if made.draft is not None:
                shard = store.publish(made.draft)
                bar.log(f"{shard.path.name}: {len(shard.digests)} grids")
            result.failed.extend(made.result.failed)
            for name, seconds in made.result.seconds.items():
                result.seconds[name] += seconds
            done += made.asked
            bar.advance(made.asked)
            shards_done(done, len(whole.wanted))

        executor(jobs, publish)
    return result


def encoder_of(grids: GridsConfig, machine: MachineConfig, tuned: Artifact | None) -> Encoder:
    """The backbone, ready on this machine; AttendError where it cannot take pictures of that size."""
    if machine.compile:
        check_compiler()
    backbone, device = load_backbone(grids, tuned), device_of(machine)
    if grids.precision == "bfloat16":
        warn_if_emulated(device, "grids")
    encoder = Encoder(backbone, grids.precision, device, machine.extract_batch if machine.compile else None)
    try:
        encoder.check(grids.image_size)
    except ValueError as error:
        raise AttendError(f"grids.image_size: {grids.backbone} {error}") from None
    return encoder
