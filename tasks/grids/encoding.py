"""Encode photographs into shards of grids; reading, decoding, encoding and writing overlap where that saves time.

- Files are read one batch ahead, while the previous batch is encoded.
- On a CPU, decoding and the forward pass take turns, so that each has all cores; run at once, they would wait for each
  other. On a GPU, a batch is encoded while the next one is decoded, and its grids are copied back through pinned
  memory. Decoding and resizing stay on the CPU there too, so that pixels are the same on every machine.
- A separate thread writes a shard while the next one is encoded.
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

import numpy as np
import torch
from torch import Tensor

from models.backbones.encoder import Encoder
from models.memory import is_out_of_memory
from models.photographs import Fit, Interpolation, decode, resize, stack
from tasks.common.cores import available_cores
from tasks.common.errors import AttendError, TransientError
from tasks.common.progress import Bar, Stopwatch
from tasks.common.retries import may_pass
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.grids.failures import FailedPhotograph
from tasks.grids.store import Draft, Grids, Shard

ShardsDone = Callable[[int, int], None]  # called with (photographs done, photographs in all)
View = Callable[[str, Tensor], Tensor]  # (name, photograph) -> the part of the photograph that is encoded
# (grids, digests, (width, height) of the originals) -> the shard or draft written: GridStore.write, or one like it
Write = Callable[[Sequence[Grids], Sequence[str], Sequence[tuple[int, int]]], Shard | Draft]


@dataclass(frozen=True)
class ExtractionResult:
    """The outcome of `extract_grids`.

    failed: the photographs that could not be decoded. seconds: time spent waiting for each kind of work: `read` for
    reading and decoding files, `compute` for the forward pass, `write` for writing shards.
    """

    failed: list[FailedPhotograph] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"read": 0.0, "compute": 0.0, "write": 0.0})


@dataclass(frozen=True)
class _Photograph:
    """A decoded photograph: pixels uint8 (3, S, S), and size (width, height) of the original."""

    digest: str
    pixels: Tensor
    size: tuple[int, int]


class NotFiniteError(Exception):
    """The backbone gave values that are not finite. names: of the photographs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names


@dataclass(frozen=True)
class _Batch:
    """A batch of decoded photographs.

    photographs: those that could be decoded. requested: the number of photographs in the batch, including those that
    could not. ends_shard: whether the next batch begins another shard.
    """

    photographs: list[_Photograph]
    requested: int
    ends_shard: bool


def _ignore_progress(done: int, total: int) -> None:
    """Ignore a progress report."""


def extract_grids(
    write: Write,
    encoder: Encoder,
    grids: GridsConfig,
    machine: MachineConfig,
    wanted: Sequence[tuple[str, Path]],
    shards_done: ShardsDone = _ignore_progress,
    view: View | None = None,
) -> ExtractionResult:
    """Encode the photographs `wanted`, given as (name, file), and write `machine.shard_rows` grids per shard, in order.

    A name is the SHA-256 of the file, followed by `#` and a suffix where a photograph is encoded more than once. view:
    returns the part of a photograph that a name stands for. shards_done: called with (done, total) after each shard.
    However this function ends, each shard is either complete or absent. Raises AttendError where the disk is full,
    where memory runs out, where a file is missing or its content does not match its digest, and where the backbone
    gives values that are not finite.
    """
    result = ExtractionResult()
    with (
        Bar(len(wanted), f"grids of {grids.backbone}", "pictures") as bar,
        decoders(machine) as pool,
        ThreadPoolExecutor(1) as thread,
    ):
        decode_one = functools.partial(
            _decode, size=grids.image_size, fit=grids.fit, interpolation=encoder.declared.interpolation, view=view
        )
        writer = _ShardWriter(write, thread, result, bar, lambda done: shards_done(done, len(wanted)))
        batches = _decode_batches(wanted, machine, decode_one, pool, result)
        try:
            for batch, values in _encode_batches(batches, encoder, result):
                bar.advance(batch.requested)
                writer.add(batch, values)
        except NotFiniteError as error:
            paths = dict(wanted)
            files = ", ".join(str(paths[name]) for name in error.names[:3])
            raise AttendError(
                f"grids.weights: {grids.weights}: gives values that are not finite for {len(error.names)} photographs "
                f"of a batch: {files}: the weights are damaged or do not fit {grids.backbone}; use others"
            ) from None
        writer.wait()
    return result


def decoders(machine: MachineConfig) -> ThreadPoolExecutor:
    """Return the threads that decode photographs."""
    return ThreadPoolExecutor(decoder_count(machine))


def decoder_count(machine: MachineConfig) -> int:
    """Return the number of threads that decode photographs; the processes of one torchrun share the cores evenly."""
    share = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return machine.decode_workers or machine.threads or max(share, 1)


def read_photograph(digest: str, path: Path) -> bytes:
    """Return the content of a photograph's file.

    Raises AttendError where the file cannot be read (any more), a TransientError where that may pass, and where its
    SHA-256 is not `digest`, because it was changed after it was ingested.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        kind = TransientError if may_pass(error) else AttendError
        raise kind(
            f"{path}: cannot be read on {platform.node()} ({error.strerror}): run again when it can, or remove it"
        ) from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise AttendError(f"{path}: was changed while the run was going on: run again")
    return data


def _decode_batches(
    wanted: Sequence[tuple[str, Path]],
    machine: MachineConfig,
    decode_one: Callable[[str, Path, bytes], _Photograph | FailedPhotograph],
    pool: ThreadPoolExecutor,
    result: ExtractionResult,
) -> Iterator[_Batch]:
    """Yield the decoded photographs batch by batch, in order; the files of the next batch are read meanwhile."""
    batches = deque(_split_into_batches(wanted, machine.shard_rows, machine.extract_batch))
    files = [pool.submit(_read, *item) for item in batches[0][0]] if batches else []
    while batches:
        watch = Stopwatch()
        items, ends_shard = batches.popleft()
        outcomes = list(pool.map(decode_one, *zip(*items, strict=True), [file.result() for file in files]))
        files = [pool.submit(_read, *item) for item in batches[0][0]] if batches else []
        result.failed.extend(outcome for outcome in outcomes if isinstance(outcome, FailedPhotograph))
        result.seconds["read"] += watch.seconds()
        yield _Batch(
            [outcome for outcome in outcomes if not isinstance(outcome, FailedPhotograph)], len(items), ends_shard
        )


def _split_into_batches(
    wanted: Sequence[tuple[str, Path]], shard_rows: int, size: int
) -> Iterator[tuple[Sequence[tuple[str, Path]], bool]]:
    """Yield (batch, whether it is the last one of its shard); no batch spans two shards."""
    for first in range(0, len(wanted), shard_rows):
        shard = wanted[first : first + shard_rows]
        for start in range(0, len(shard), size):
            yield shard[start : start + size], start + size >= len(shard)


def _read(name: str, path: Path) -> bytes:
    return read_photograph(name.partition("#")[0], path)


def _decode(
    name: str, path: Path, data: bytes, size: int, fit: Fit, interpolation: Interpolation, view: View | None
) -> _Photograph | FailedPhotograph:
    try:
        original = decode(data)
        part = original if view is None else view(name, original)
        return _Photograph(name, resize(part, size, fit, interpolation), (original.shape[2], original.shape[1]))
    except ValueError as error:
        return FailedPhotograph(name, path, str(error))
    except Exception as error:
        if is_out_of_memory(error):  # no fault of the photograph: it is tried again in the next run
            raise AttendError(
                f"{path}: out of memory while it was decoded: free some, or lower machine.decode_workers and "
                "machine.extract_batch, and run again; finished shards are kept"
            ) from None
        raise


def _encode_batches(
    batches: Iterator[_Batch], encoder: Encoder, result: ExtractionResult
) -> Iterator[tuple[_Batch, Grids | None]]:
    """Yield each batch with its grids, float16 (n, h, w, C), or None where no photograph could be decoded."""
    pending: deque[tuple[_Batch, _PendingGrids | None]] = deque()
    for batch in batches:
        watch = Stopwatch()
        pixels = [photograph.pixels for photograph in batch.photographs]
        pending.append((batch, _PendingGrids(encoder, stack(pixels)) if pixels else None))
        result.seconds["compute"] += watch.seconds()
        if len(pending) > 1:
            yield _wait_for_grids(*pending.popleft(), result)
    while pending:
        yield _wait_for_grids(*pending.popleft(), result)


def _wait_for_grids(
    batch: _Batch, grids: _PendingGrids | None, result: ExtractionResult
) -> tuple[_Batch, Grids | None]:
    """Return a batch and its grids; raise AttendError where a value is not finite."""
    watch = Stopwatch()
    values = None if grids is None else grids.wait()
    if values is not None and not _is_finite(values):
        names = [item.digest for item, grid in zip(batch.photographs, values, strict=True) if not _is_finite(grid)]
        raise NotFiniteError(names)
    result.seconds["compute"] += watch.seconds()
    return batch, values


def _is_finite(grids: Grids) -> bool:
    """Return whether no value is infinite or NaN, by their exponent: five times as fast as `numpy.isfinite`."""
    return not bool(((grids.view(np.uint16) & 0x7C00) == 0x7C00).any())


class _PendingGrids:
    """Grids being computed and copied from the encoder's device; on a CPU they are ready at once."""

    def __init__(self, encoder: Encoder, pixels: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if encoder.device.type != "cuda":
            self._grids = encoder(pixels)
            return
        # Only copies from and to pinned memory run beside the host's work; torch caches and reuses this memory.
        on_device = encoder(pixels.pin_memory())
        self._grids = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
        self._grids.copy_(on_device, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> Grids:
        if self._event is not None:
            self._event.synchronize()
        values: Grids = self._grids.numpy()
        return values


class _ShardWriter:
    """A writer that gathers batches into shards, and writes one while the next is gathered: at most two in memory."""

    def __init__(
        self,
        write: Write,
        thread: ThreadPoolExecutor,
        result: ExtractionResult,
        bar: Bar,
        report_done: Callable[[int], None],
    ) -> None:
        self._write, self._thread, self._result, self._bar, self._report_done = write, thread, result, bar, report_done
        self._slabs: list[Grids] = []
        self._photographs: list[tuple[str, tuple[int, int]]] = []
        self._done = 0
        self._pending: tuple[int, Future[Shard | Draft], dict[str, float]] | None = None
        self._seconds_at_last_shard = dict(result.seconds)

    def add(self, batch: _Batch, values: Grids | None) -> None:
        """Add a batch and its grids (n, h, w, C) to the current shard; start writing the shard where the batch ends it.

        values: None where no photograph of the batch could be decoded.
        """
        if self._pending is not None and self._pending[1].done():
            self.wait()  # so that a shard is reported as soon as it is written
        self._done += batch.requested
        if values is not None:
            self._slabs.append(values)
            self._photographs += [(photograph.digest, photograph.size) for photograph in batch.photographs]
        if batch.ends_shard:
            self.wait()
            if self._slabs:
                digests, sizes = zip(*self._photographs, strict=True)
                shard = self._thread.submit(self._write, self._slabs, digests, sizes)
                self._pending = self._done, shard, self._seconds_since_last_shard()
            else:
                self._report_done(self._done)
            self._slabs, self._photographs = [], []

    def _seconds_since_last_shard(self) -> dict[str, float]:
        """Return the seconds that each kind of work took since this was last called."""
        now = dict(self._result.seconds)
        spent = {name: value - self._seconds_at_last_shard[name] for name, value in now.items()}
        self._seconds_at_last_shard = now
        return spent

    def wait(self) -> None:
        """Wait until the shard that is being written, if there is one, is complete, and report it."""
        if self._pending is None:
            return
        watch = Stopwatch()
        done, future, spent = self._pending
        shard = future.result()
        self._pending = None
        spent["write"] = watch.seconds()
        self._result.seconds["write"] += spent["write"]
        waited = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items())
        self._bar.log(f"{shard.path.name}: {len(shard.digests)} grids; waited: {waited}")
        self._report_done(done)
