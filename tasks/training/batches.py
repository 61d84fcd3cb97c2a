"""Pictures (cached grids, or photographs) + token ids -> batches; a picture has one row, shared by its captions.

The order of an epoch is a function of the seed and the epoch's number alone, so a resumed run sees the same batches.
"""

from __future__ import annotations

import math
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.vocabulary import NULL
from tasks.common.errors import AttendError
from tasks.common.threads import run_ahead
from tasks.config.machine import MachineConfig
from tasks.data.caption_files import CaptionedPicture
from tasks.grids.reader import GridReader
from tasks.pipeline import distributed as processes

CPU = torch.device("cpu")
_POOL_BLOCKS = 16  # blocks whose pictures are shuffled together
# Per picture and epoch: a file that a data set contains thousands of times has thousands of captions.
_MAX_CAPTIONS = 64
# torch warns that mapped grids are read-only; nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


@dataclass(frozen=True)
class Batch:
    """A batch of N pictures, each with up to R captions.

    pictures: grids (N, h, w, C), or photographs (N, 3, S, S) uint8 if the backbone is tuned; see also
    `ResidentBatches`. tokens (N, R, T+1) int64: START, words, END, NULL; a picture with fewer captions than R has rows
    of NULL. positions (N,) int64: the pictures' positions in the whole batch, of which this may be one process's part.
    is_padding: true if the whole batch had no picture left for this process; this batch then adds nothing to the loss
    or the gradient. token_indices, next_words (M,) int64: the words that count, as `Decoder.forward` takes them, and
    the words that follow them. rewards (N, R) float64: the captions' rewards, if training uses rewards; else empty.
    """

    pictures: Tensor
    tokens: Tensor
    positions: Tensor
    token_indices: Tensor
    next_words: Tensor
    is_padding: bool = False
    rewards: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    @classmethod
    def of(cls, pictures: Tensor, tokens: Tensor, positions: Tensor | None = None, is_padding: bool = False) -> Batch:
        """Return the batch of tokens in the host's memory, with `token_indices`. positions: by default 0, 1, ..."""
        targets = tokens[:, :, 1:].flatten()
        token_indices = (targets != NULL).nonzero().squeeze(1)
        positions = torch.arange(len(tokens)) if positions is None else positions
        return cls(pictures, tokens, positions, token_indices, targets[token_indices], is_padding)

    @property
    def words(self) -> Tensor:
        """Return the tokens that the decoder reads, (N, R, T) int64."""
        return self.tokens[:, :, :-1]

    @property
    def targets(self) -> Tensor:
        """Return the token that follows each token read, (N, R, T) int64; NULL if none follows."""
        return self.tokens[:, :, 1:]

    @property
    def valid(self) -> Tensor:
        """Return which targets count, (N, R, T) bool: those that are not NULL."""
        return self.targets != NULL

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device. From pinned memory, tensors are copied asynchronously."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def parts(self, number: int) -> list[Batch]:
        """Split the batch into `number` parts, or into one part per picture if it has fewer pictures."""
        number = min(number, len(self.tokens))
        parts = zip(
            *(tensor.tensor_split(number) for tensor in (self.pictures, self.tokens, self.positions)), strict=True
        )
        return [Batch.of(pictures, tokens, own, self.is_padding) for pictures, tokens, own in parts]


class Batches(ABC):
    """The batches of a split's pictures: `size` pictures per batch, each with at most `rows` captions.

    Each epoch draws `most_captions` captions of a picture that has more. An epoch shows each picture once, or has
    `epoch_batches` batches; it then leaves pictures out, or shows them again in another order. If several processes
    train together (see distributed.py), each process reads its part of every batch.
    """

    def __init__(
        self,
        pictures: Sequence[CaptionedPicture],
        size: int,
        seed: int,
        most_captions: int | None = None,
        epoch_batches: int | None = None,
    ) -> None:
        self.captioned = list(pictures)
        self.size, self.seed = size, seed
        self._most_captions, self._epoch_batches = most_captions or _MAX_CAPTIONS, epoch_batches
        self.rows = min(max((len(picture.tokens) for picture in self.captioned), default=0), self._most_captions)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self._epoch_batches or math.ceil(len(self.captioned) / self.size)

    @abstractmethod
    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        """Return `Batch.pictures` for these pictures: a function of the pictures, the seed and the epoch."""

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        """Return a batch on a device, with pictures as the model reads them: float32 grids, or photographs."""
        moved = batch.to(device)
        return replace(moved, pictures=moved.pictures.float()) if moved.pictures.is_floating_point() else moved

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return an epoch's order as indices into `captioned`, (pictures shown,): a function of seed and epoch."""
        generator = np.random.default_rng((self.seed, epoch))
        if self._epoch_batches is None or not self.captioned:
            return self._permutation(generator)
        shown = self._epoch_batches * self.size
        passes = [self._permutation(generator) for _ in range(math.ceil(shown / len(self.captioned)))]
        return np.concatenate(passes)[:shown]

    def _permutation(self, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return an order of all pictures, (number of pictures,)."""
        return generator.permutation(len(self.captioned))

    def prefetch(self, order: npt.NDArray[np.int64], start: int) -> None:  # noqa: B027 -- an optional hook
        """Prepare to read the batch that begins at index `start` of the epoch's order.

        The reading thread calls this before it reads each batch. By default there is nothing to prepare.
        """

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Return the shuffled batches of epoch `number`, from batch `start` on; two are read ahead."""
        order = self.order(number)
        starts = range(start * self.size, len(order), self.size)
        return run_ahead((self._read(order, first, number) for first in starts), 2)

    def _read(self, order: npt.NDArray[np.int64], start: int, epoch: int) -> Batch:
        """Return this process's part of the batch that begins at index `start` of the epoch's order."""
        self.prefetch(order, start)
        whole_batch = range(len(order[start : start + self.size]))
        positions = processes.share_of(whole_batch)
        spare = not positions
        # A process without a picture of its own reads the first one, because it must take part in the step.
        captioned = [self.captioned[order[start + position]] for position in positions or whole_batch[:1]]
        captions = [self._draw_captions(picture, epoch) for picture in captioned]
        tokens = torch.from_numpy(padded(captions))
        return Batch.of(self.pictures_of(captioned, epoch), tokens, torch.tensor(positions or [0]), spare)

    def _draw_captions(self, picture: CaptionedPicture, epoch: int) -> npt.NDArray[np.int32]:
        """Return a picture's captions in an epoch, (R, T+1): a function of the seed, the epoch and the picture."""
        if len(picture.tokens) <= self._most_captions:
            return picture.tokens
        generator = random.Random(f"captions {self.seed} {epoch} {picture.digest}")
        return picture.tokens[sorted(generator.sample(range(len(picture.tokens)), self._most_captions))]


class GridBatches(Batches):
    """Batches of cached grids; pictures without a grid are left out.

    block: the number of pictures with neighbouring digests that are read together, for caches larger than memory; None
    for fully random order. Blocks come in random order, and the pictures of a pool of sixteen blocks are shuffled
    together; while one pool is used, the next is read. Every addition to the cache is stored in the order of its
    digests, so a block is one contiguous run in each addition. The order is a function of the pictures' digests, the
    seed and the epoch, and stays the same when grids are moved within the cache. device: where the batches are used.
    """

    def __init__(
        self,
        pictures: Sequence[CaptionedPicture],
        grids: GridReader,
        size: int,
        seed: int,
        block: int | None = None,
        most_captions: int | None = None,
        epoch_batches: int | None = None,
        device: torch.device = CPU,
    ) -> None:
        with_grid = [picture for picture in pictures if picture.digest in grids]
        super().__init__(with_grid, size, seed, most_captions, epoch_batches)
        self.grids, self.device, self._block = grids, device, block
        # A GPU gets grids in float16, as they are stored: half as large. It converts them itself.
        self._dtype = torch.float32 if device == CPU else torch.float16
        # In pictures, rounded up to whole batches.
        self._pool_size = 0 if block is None else math.ceil(_POOL_BLOCKS * block / size) * size
        # The number of the pool in use, and how many grids of the next pool were requested from the disk.
        self._prefetched: tuple[int, int] | None = None

    def _permutation(self, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        if self._block is None:
            return super()._permutation(generator)
        by_digest = np.argsort([picture.digest for picture in self.captioned])
        blocks = [by_digest[start : start + self._block] for start in range(0, len(by_digest), self._block)]
        shuffled = np.concatenate([blocks[index] for index in generator.permutation(len(blocks))])
        pool_starts = range(0, len(shuffled), self._pool_size)
        return np.concatenate(
            [generator.permutation(shuffled[start : start + self._pool_size]) for start in pool_starts]
        )

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        self._prefetched = None
        yield from super().epoch(number, start)

    def prefetch(self, order: npt.NDArray[np.int64], start: int) -> None:
        """Request the next pool's grids from the disk, a batch's worth at a time, while this pool is used."""
        if self._block is None:
            return
        pool = start // self._pool_size
        if self._prefetched is None:
            self.grids.prefetch(self._pool_digests(order, pool))
        done = self._prefetched[1] if self._prefetched is not None and self._prefetched[0] == pool else 0
        until = start % self._pool_size + self.size
        self.grids.prefetch(self._pool_digests(order, pool + 1)[done:until])
        self._prefetched = pool, until

    def _pool_digests(self, order: npt.NDArray[np.int64], pool: int) -> list[str]:
        """Return the digests of a pool's pictures, in the order in which the cache stores their grids."""
        indices = order[pool * self._pool_size : (pool + 1) * self._pool_size]
        return sorted((self.captioned[index].digest for index in indices), key=self.grids.row)

    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        pinned = self.device.type == "cuda"  # a GPU copies from pinned memory asynchronously
        out = torch.empty(len(captioned), *self.grids.shape, dtype=self._dtype, pin_memory=pinned)
        return read_into(out, self.grids, [picture.digest for picture in captioned])

    @property
    def channels(self) -> int:
        """Return C, the number of channels of a grid."""
        return self.grids.shape[2]

    def gram(self) -> Tensor:
        """Return the sum of a a^T over all annotation vectors a of the split, float64 (C, C)."""
        digests = [picture.digest for picture in self.captioned]
        total = torch.zeros(self.grids.shape[2], self.grids.shape[2], dtype=torch.float64)
        for _, grid in grids_in_order(digests, self.grids, 64):
            vectors = grid.flatten(0, 2).double()
            total += vectors.T @ vectors
        return total


class ResidentBatches(GridBatches):
    """The batches of `GridBatches`, with all grids copied to a GPU's memory first, as float16.

    `Batch.pictures` are the indices of the pictures' grids there, (N,) int64.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Copy all grids to the device; raise AttendError if its memory is too small.

        arguments, options: as for `GridBatches`.
        """
        super().__init__(*arguments, **options)
        digests = [picture.digest for picture in self.captioned]
        self._index = {digest: index for index, digest in enumerate(digests)}
        try:
            self._resident = torch.empty(len(digests), *self.grids.shape, dtype=torch.float16, device=self.device)
        except torch.OutOfMemoryError:
            size = 2 * len(digests) * math.prod(self.grids.shape) / 2**30
            raise AttendError(
                f"machine.resident: {self.device} has no room for {size:.1f} GiB of grids: set machine.resident=false"
            ) from None
        for start in range(0, len(digests), 64):
            grids = torch.from_numpy(self.grids.read(digests[start : start + 64]))
            self._resident[start : start + len(grids)] = grids.to(self.device)

    def prefetch(self, order: npt.NDArray[np.int64], start: int) -> None:
        """Do nothing: all grids are in memory already."""

    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        return torch.tensor([self._index[picture.digest] for picture in captioned])

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        moved = batch.to(device)
        return replace(moved, pictures=self._resident.index_select(0, moved.pictures).float())


def padded(captions: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int64]:
    """Return the captions of N pictures as one array (N, R, T + 1), padded with NULL to the longest caption.

    captions: one array per picture, (its number of captions, max_tokens + 2).
    """
    rows = np.full((len(captions), max(map(len, captions)), captions[0].shape[1]), NULL, dtype=np.int64)
    for row, own in zip(rows, captions, strict=True):
        row[: len(own)] = own
    return rows[:, :, : int((rows != NULL).sum(axis=2).max())]


def grids_in_order(digests: Sequence[str], grids: GridReader, size: int) -> Iterator[tuple[Sequence[str], Tensor]]:
    """Yield (digests, grids (n, h, w, C) float32) for `size` pictures at a time, in the order of `digests`."""
    for start in range(0, len(digests), size):
        part = digests[start : start + size]
        yield part, read_into(torch.empty(len(part), *grids.shape), grids, part)


def decode_batch_size(machine: MachineConfig, shape: tuple[int, int, int], rows: int, members: int = 1) -> int:
    """Return how many pictures to caption at once, from 1 to 256, within about 512 MiB of memory.

    Captioning more pictures at once is faster while memory allows. If `machine.decode_batch` is set, it is returned.
    shape: (h, w, C) of a grid. rows: hypotheses per picture. members: of an ensemble.
    """
    # In float32. Attention computes about 512 numbers per hypothesis and grid position: see attention.py.
    bytes_per_picture = 4 * math.prod(shape) + members * 4 * 512 * shape[0] * shape[1] * rows
    return machine.decode_batch or min(max(2**29 // bytes_per_picture, 1), 256)


def read_into(out: Tensor, grids: GridReader, digests: Sequence[str]) -> Tensor:
    """Fill `out` (n, h, w, C) with the grids of these digests, in order, and return it.

    Each grid is copied and converted in one step, without an intermediate copy of all grids.
    """
    for row, digest in zip(out, digests, strict=True):
        row.copy_(torch.from_numpy(grids.mapped(digest)))
    return out
