"""Encode photographs into shards of grids; reading, decoding, encoding and writing overlap where that saves time.

- Files are read one batch ahead, while the previous batch is encoded.
- On a CPU, decoding and the forward pass take turns, so that each has all cores; run at once, they would wait for each
  other. For a GPU, a thread decodes batches ahead into pinned memory.
- Decoding and resizing stay on the CPU there too, so that pixels are the same on every machine.
- A separate thread writes a shard while the next one is encoded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from models.backbones.encoder import Encoder
from tasks.common.cores import available_cores
from tasks.common.errors import AttendError
from tasks.common.progress import Bar, Stopwatch
from tasks.common.threads import run_ahead
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.grids.failures import FailedPhotograph
from tasks.grids.photograph_batches import BatchDecoder, Photograph, Shape, View
from tasks.grids.store import Draft, Grids, Shard

_BATCHES_AHEAD = 2  # of those that a GPU encodes
ShardsDone = Callable[[int, int], None]  # called with (photographs done, photographs in all)
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


class NotFiniteError(Exception):
    """The backbone gave values that are not finite. names: of the photographs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names


@dataclass(frozen=True)
class _Batch:
    """A batch of decoded photographs.

    photographs: those that could be decoded. pixels: theirs, uint8 (n, 3, S, S). requested: the number of photographs
    in the batch, including those that could not. ends_shard: whether the next batch begins another shard.
    """

    photographs: list[Photograph]
    pixels: Tensor
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
        shape = Shape(grids.image_size, grids.fit, encoder.declared.interpolation)
        decoder = BatchDecoder(shape, view, pool, pinned=encoder.device.type == "cuda")
        writer = _ShardWriter(write, thread, result, bar, lambda done: shards_done(done, len(wanted)))
        batches = _decode_batches(wanted, machine, decoder, result)
        if decodes_ahead(encoder.device):
            batches = run_ahead(batches, _BATCHES_AHEAD)
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


def decodes_ahead(device: torch.device) -> bool:
    """Return whether batches are decoded while earlier ones are encoded on the device."""
    return device.type != "cpu"


def decoders(machine: MachineConfig) -> ThreadPoolExecutor:
    """Return the threads that decode photographs."""
    return ThreadPoolExecutor(decoder_count(machine))


def decoder_count(machine: MachineConfig) -> int:
    """Return the number of threads that decode photographs; the processes of one torchrun share the cores evenly."""
    share = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return machine.decode_workers or machine.threads or max(share, 1)


def _decode_batches(
    wanted: Sequence[tuple[str, Path]], machine: MachineConfig, decoder: BatchDecoder, result: ExtractionResult
) -> Iterator[_Batch]:
    """Yield the decoded photographs batch by batch, in order; the files of the next batch are read meanwhile."""
    batches = deque(_split_into_batches(wanted, machine.shard_rows, machine.extract_batch))
    files = decoder.read(batches[0][0]) if batches else []
    while batches:
        items, ends_shard = batches.popleft()
        outcomes, pixels = decoder.decode(items, [file.result() for file in files])
        files = decoder.read(batches[0][0]) if batches else []
        result.failed.extend(outcome for outcome in outcomes if isinstance(outcome, FailedPhotograph))
        photographs = [outcome for outcome in outcomes if not isinstance(outcome, FailedPhotograph)]
        yield _Batch(photographs, pixels, len(items), ends_shard)


def _split_into_batches(
    wanted: Sequence[tuple[str, Path]], shard_rows: int, size: int
) -> Iterator[tuple[Sequence[tuple[str, Path]], bool]]:
    """Yield (batch, whether it is the last one of its shard); no batch spans two shards."""
    for first in range(0, len(wanted), shard_rows):
        shard = wanted[first : first + shard_rows]
        for start in range(0, len(shard), size):
            yield shard[start : start + size], start + size >= len(shard)


def _encode_batches(
    batches: Iterator[_Batch], encoder: Encoder, result: ExtractionResult
) -> Iterator[tuple[_Batch, Grids | None]]:
    """Yield each batch with its grids, float16 (n, h, w, C), or None where no photograph could be decoded.

    Raises NotFiniteError where a value is not finite.
    """
    while True:
        watch = Stopwatch()
        batch = next(batches, None)
        result.seconds["read"] += watch.seconds()
        if batch is None:
            return
        watch = Stopwatch()
        grids = None
        if batch.photographs:
            on_device = encoder(batch.pixels)
            # By their exponent, in integers: five times as fast as `isfinite`.
            infinite = ((on_device.view(torch.int16) & 0x7C00) == 0x7C00).flatten(1).any(dim=1).tolist()
            if any(infinite):
                raise NotFiniteError(
                    [item.digest for item, bad in zip(batch.photographs, infinite, strict=True) if bad]
                )
            grids = on_device.cpu().numpy()
        result.seconds["compute"] += watch.seconds()
        yield batch, grids


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
