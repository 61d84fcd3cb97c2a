"""Photographs -> shards of grids, each kind of work out of the others' way.

- Files are read a batch ahead, while the batch before is encoded.
- On a CPU decoding and the forward pass take turns, so that each has all cores; at once they would wait for each
  other. On a GPU a batch is encoded while the next one is decoded, and its grids come back through pinned memory.
  Decoding and resizing stay on the CPU there too: pixels are the same on every machine.
- A shard is written by a thread of its own while the next one is made.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from models.backbones.encoder import Encoder
from models.photographs import Fit, Interpolation, decode, resize, stack
from tasks.common.cores import available_cores
from tasks.common.errors import AttendError, PassingError
from tasks.common.progress import Bar, Stopwatch
from tasks.config.schema import GridsConfig, MachineConfig
from tasks.grids.failures import Failed
from tasks.grids.store import Draft, Grids, Shard

ShardsDone = Callable[[int, int], None]
View = Callable[[str, Tensor], Tensor]  # (name, photograph) -> what of it is encoded
Write = Callable[[Sequence[Grids], Sequence[str], Sequence[tuple[int, int]]], Shard | Draft]  # of a store


@dataclass(frozen=True)
class ExtractionResult:
    """What `extract_grids` did.

    failed: the photographs that could not be decoded. seconds: waited for each kind of work: `read` for files and their
    decoding, `compute` for the forward pass, `write` for shards.
    """

    failed: list[Failed] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"read": 0.0, "compute": 0.0, "write": 0.0})


@dataclass(frozen=True)
class _Photograph:
    """A decoded photograph: pixels uint8 (3, S, S), and (width, height) of the original."""

    digest: str
    pixels: Tensor
    size: tuple[int, int]


@dataclass(frozen=True)
class _Batch:
    """The sound photographs among those that a batch asked for, and whether the next one begins another shard."""

    sound: list[_Photograph]
    asked: int
    ends_shard: bool


def _nobody(done: int, total: int) -> None:
    """Take a report that nobody asked for."""


def extract_grids(
    write: Write,
    encoder: Encoder,
    grids: GridsConfig,
    machine: MachineConfig,
    wanted: Sequence[tuple[str, Path]],
    shards_done: ShardsDone = _nobody,
    view: View | None = None,
) -> ExtractionResult:
    """Write the grids of photographs (name, file), `machine.shard_rows` of them a shard, in order.

    A name is the content digest of the file, and more behind a `#` where a photograph comes more than once. view: which
    part of it a name means. shards_done: called with (done, total) after each shard. Whenever this ends, a shard is
    there wholly or not at all. Raises AttendError for a full disk, a file that is not there, or is not of its digest.
    """
    result = ExtractionResult()
    with (
        Bar(len(wanted), f"grids of {grids.backbone}", "pictures") as bar,
        decoders(machine) as pool,
        ThreadPoolExecutor(1) as thread,
    ):
        task = functools.partial(
            _decode, size=grids.image_size, fit=grids.fit, interpolation=encoder.declared.interpolation, view=view
        )
        writer = _Writer(write, thread, result, bar, lambda done: shards_done(done, len(wanted)))
        for batch, values in _encoded(_decoded(wanted, machine, task, pool, result), encoder, result):
            bar.advance(batch.asked)
            writer.add(batch, values)
        writer.wait()
    return result


def decoders(machine: MachineConfig) -> ThreadPoolExecutor:
    """Return the threads that decode photographs: of the processes that torchrun started, each has its share."""
    share = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return ThreadPoolExecutor(machine.decode_workers or machine.threads or max(share, 1))


def read_photograph(digest: str, path: Path) -> bytes:
    """A photograph's file; AttendError where it cannot be read (any more), or is not what was ingested."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PassingError(
            f"{path}: cannot be read on {platform.node()} ({error.strerror}): run again when it can, or remove it"
        ) from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise AttendError(f"{path}: was changed while the run was going on: run again")
    return data


def _decoded(
    wanted: Sequence[tuple[str, Path]],
    machine: MachineConfig,
    task: Callable[[str, Path, bytes], _Photograph | Failed],
    pool: ThreadPoolExecutor,
    result: ExtractionResult,
) -> Iterator[_Batch]:
    """The photographs in order, batch by batch: one is decoded, the files of the next are read."""
    batches = deque(_cut(wanted, machine.shard_rows, machine.extract_batch))
    files = [pool.submit(_read, *item) for item in batches[0][0]] if batches else []
    while batches:
        watch = Stopwatch()
        items, ends_shard = batches.popleft()
        found = list(pool.map(task, *zip(*items, strict=True), [file.result() for file in files]))
        files = [pool.submit(_read, *item) for item in batches[0][0]] if batches else []
        result.failed.extend(item for item in found if isinstance(item, Failed))
        result.seconds["read"] += watch.seconds()
        yield _Batch([item for item in found if not isinstance(item, Failed)], len(items), ends_shard)


def _cut(
    wanted: Sequence[tuple[str, Path]], shard_rows: int, size: int
) -> Iterator[tuple[Sequence[tuple[str, Path]], bool]]:
    """Batches, none across the end of a shard, and whether they end one."""
    for first in range(0, len(wanted), shard_rows):
        part = wanted[first : first + shard_rows]
        for at in range(0, len(part), size):
            yield part[at : at + size], at + size >= len(part)


def _read(name: str, path: Path) -> bytes:
    return read_photograph(name.partition("#")[0], path)


def _decode(
    name: str, path: Path, data: bytes, size: int, fit: Fit, interpolation: Interpolation, view: View | None
) -> _Photograph | Failed:
    try:
        pixels = decode(data)
        shown = pixels if view is None else view(name, pixels)
        return _Photograph(name, resize(shown, size, fit, interpolation), (pixels.shape[2], pixels.shape[1]))
    except ValueError as error:
        return Failed(name, path, str(error))


def _encoded(
    batches: Iterator[_Batch], encoder: Encoder, result: ExtractionResult
) -> Iterator[tuple[_Batch, Grids | None]]:
    """Each batch with its grids (n, h, w, C), None where no photograph was sound."""
    under_way: deque[tuple[_Batch, _Returning | None]] = deque()
    for batch in batches:
        watch = Stopwatch()
        pixels = [photograph.pixels for photograph in batch.sound]
        under_way.append((batch, _Returning(encoder, stack(pixels)) if pixels else None))
        result.seconds["compute"] += watch.seconds()
        if len(under_way) > 1:
            yield _returned(*under_way.popleft(), result)
    while under_way:
        yield _returned(*under_way.popleft(), result)


def _returned(batch: _Batch, grids: _Returning | None, result: ExtractionResult) -> tuple[_Batch, Grids | None]:
    watch = Stopwatch()
    values = None if grids is None else grids.wait()
    result.seconds["compute"] += watch.seconds()
    return batch, values


class _Returning:
    """Grids on their way back from the encoder's device; on a CPU they are there at once."""

    def __init__(self, encoder: Encoder, pixels: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if encoder.device.type != "cuda":
            self._grids = encoder(pixels)
            return
        # Pinned memory is what lets a copy run beside the host; torch keeps and re-uses it.
        made = encoder(pixels.pin_memory())
        self._grids = torch.empty(made.shape, dtype=made.dtype, pin_memory=True)
        self._grids.copy_(made, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> Grids:
        if self._event is not None:
            self._event.synchronize()
        values: Grids = self._grids.numpy()
        return values


class _Writer:
    """Gathers batches into shards, and publishes one while the next is gathered: two are in memory at the most."""

    def __init__(
        self,
        write: Write,
        thread: ThreadPoolExecutor,
        result: ExtractionResult,
        bar: Bar,
        written: Callable[[int], None],
    ) -> None:
        self._write, self._thread, self._result, self._bar, self._written = write, thread, result, bar, written
        self._slabs: list[Grids] = []
        self._photographs: list[tuple[str, tuple[int, int]]] = []
        self._done = 0
        self._under_way: tuple[int, Future[Shard | Draft], dict[str, float]] | None = None
        self._before = dict(result.seconds)

    def add(self, batch: _Batch, values: Grids | None) -> None:
        if self._under_way is not None and self._under_way[1].done():
            self.wait()  # to tell of it at once
        self._done += batch.asked
        if values is not None:
            self._slabs.append(values)
            self._photographs += [(photograph.digest, photograph.size) for photograph in batch.sound]
        if batch.ends_shard:
            self.wait()
            if self._slabs:
                digests, sizes = zip(*self._photographs, strict=True)
                shard = self._thread.submit(self._write, self._slabs, digests, sizes)
                self._under_way = self._done, shard, self._spent()
            else:
                self._written(self._done)
            self._slabs, self._photographs = [], []

    def _spent(self) -> dict[str, float]:
        """Seconds since the shard before."""
        now = dict(self._result.seconds)
        spent = {name: value - self._before[name] for name, value in now.items()}
        self._before = now
        return spent

    def wait(self) -> None:
        """Until no shard is under way."""
        if self._under_way is None:
            return
        watch = Stopwatch()
        done, future, spent = self._under_way
        shard = future.result()
        self._under_way = None
        spent["write"] = watch.seconds()
        self._result.seconds["write"] += spent["write"]
        waited = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items())
        self._bar.log(f"{shard.path.name}: {len(shard.digests)} grids; waited: {waited}")
        self._written(done)
