"""Pictures (cached grids, or photographs) + token ids -> batches. One row a picture; its captions share it.

The order of an epoch is a function of the seed and the epoch alone: a resumed run sees the same batches.
"""

from __future__ import annotations

import math
import random
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.vocabulary import NULL
from tasks.common.errors import AttendError
from tasks.config.schema import MachineConfig
from tasks.data.captions import CaptionedPicture
from tasks.grids.reader import GridReader
from tasks.pipeline import distributed as processes

_POOL = 16  # blocks that are mixed
_CAPTIONS = 64  # of a picture in an epoch: a file that a data set has in thousands of copies has thousands
# Mapped grids are read-only, and nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


@dataclass(frozen=True)
class Batch:
    """N pictures, each with up to R captions.

    pictures: grids (N, h, w, C) float32, or photographs (N, 3, S, S) uint8 where the backbone is tuned. tokens
    (N, R, T+1) int64: START, words, END, NULL; a picture with fewer captions than R has rows of NULL. places (N,)
    int64: of the pictures in the whole batch, of which this may be one process's part. spare: it counts for nothing:
    the batch had no picture left for this process.
    """

    pictures: Tensor
    tokens: Tensor
    places: Tensor
    spare: bool = False

    @property
    def words(self) -> Tensor:
        """(N, R, T): what the decoder reads."""
        return self.tokens[:, :, :-1]

    @property
    def targets(self) -> Tensor:
        """(N, R, T): the word that follows each word read; NULL where none does."""
        return self.tokens[:, :, 1:]

    @property
    def valid(self) -> Tensor:
        """(N, R, T) bool: where a target counts."""
        return self.targets != NULL

    def to(self, device: torch.device) -> Batch:
        pictures, tokens = (given.to(device, non_blocking=True) for given in (self.pictures, self.tokens))
        return replace(self, pictures=pictures, tokens=tokens)

    def pieces(self, number: int) -> list[Batch]:
        """It in `number` pieces, or one a picture where those are fewer."""
        number = min(number, len(self.tokens))
        cut = zip(*(given.tensor_split(number) for given in (self.pictures, self.tokens, self.places)), strict=True)
        return [Batch(pictures, tokens, places, self.spare) for pictures, tokens, places in cut]


class Batches(ABC):
    """The batches of a split's pictures: `size` of them a batch, none with more than `rows` captions.

    Of a picture with more than 64 captions each epoch draws as many. Where several processes train together
    (distributed.py), each reads its part of every batch.
    """

    def __init__(self, pictures: Sequence[CaptionedPicture], size: int, seed: int) -> None:
        self.captioned = list(pictures)
        self.size, self.seed = size, seed
        self.rows = min(max((len(picture.tokens) for picture in self.captioned), default=0), _CAPTIONS)

    def __len__(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self.captioned) / self.size)

    @abstractmethod
    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        """`Batch.pictures` for these pictures, a function of them, the seed and the epoch."""

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The pictures of an epoch in order, by their places: a function of the seed and the epoch."""
        return np.random.default_rng((self.seed, epoch)).permutation(len(self.captioned))

    def expect(self, order: npt.NDArray[np.int64], at: int, epoch: int) -> None:  # noqa: B027 -- most do not prepare
        """Called by the reading thread before it reads the batch that begins at `at` of the epoch's order."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` from batch `start` on, shuffled; two are read while one is used."""
        order = self.order(number)
        firsts = iter(range(start * self.size, len(order), self.size))
        with ThreadPoolExecutor(1) as pool:
            ahead = deque(pool.submit(self._read, order, at, number) for at in islice(firsts, 2))
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(pool.submit(self._read, order, at, number) for at in islice(firsts, 1))
                yield batch

    def _read(self, order: npt.NDArray[np.int64], at: int, epoch: int) -> Batch:
        self.expect(order, at, epoch)
        whole = range(len(order[at : at + self.size]))
        places = processes.part(whole)
        spare = not places
        captioned = [self.captioned[order[at + place]] for place in places or whole[:1]]
        drawn = [self._captions_of(picture, epoch) for picture in captioned]
        tokens = np.full((len(drawn), max(map(len, drawn)), drawn[0].shape[1]), NULL, dtype=np.int64)
        for place, rows in enumerate(drawn):
            tokens[place, : len(rows)] = rows
        longest = int((tokens != NULL).sum(axis=2).max())
        told = torch.from_numpy(tokens[:, :, :longest])
        return Batch(self.pictures_of(captioned, epoch), told, torch.tensor(places or [0]), spare)

    def _captions_of(self, picture: CaptionedPicture, epoch: int) -> npt.NDArray[np.int32]:
        """Those of an epoch, (R, T+1), a function of the seed, the epoch and the picture."""
        if len(picture.tokens) <= _CAPTIONS:
            return picture.tokens
        chance = random.Random(f"captions {self.seed} {epoch} {picture.digest}")
        return picture.tokens[sorted(chance.sample(range(len(picture.tokens)), _CAPTIONS))]


class GridBatches(Batches):
    """Batches of cached grids; pictures without one are left out.

    choices: digest -> names of the grids that may stand for a picture; each epoch draws one of them, evenly. Its own
    grid alone where not given. block: pictures whose digests follow each other are read together, so many at a time;
    the blocks come at random, and those of a pool of sixteen are mixed. While one pool is used the next is read. None
    for fully random order. Each addition to the cache lies in the order of its digests, so that a block is a run in
    each (of views, one a picture is read). The order is one of the pictures, and no other if their grids are moved.
    """

    def __init__(
        self,
        pictures: Sequence[CaptionedPicture],
        grids: GridReader,
        size: int,
        seed: int,
        block: int | None = None,
        choices: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__([picture for picture in pictures if picture.digest in grids], size, seed)
        self._grids, self._block, self._choices = grids, block, choices
        self._pool = 0 if block is None else math.ceil(_POOL * block / size) * size  # of whole batches
        self._asked: tuple[int, int] | None = None  # the pool in use, and how far the next one was asked for

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._block is None:
            return super().order(epoch)
        chance = np.random.default_rng((self.seed, epoch))
        by_digest = np.argsort([picture.digest for picture in self.captioned])
        blocks = [by_digest[at : at + self._block] for at in range(0, len(by_digest), self._block)]
        mixed = np.concatenate([blocks[at] for at in chance.permutation(len(blocks))])
        firsts = range(0, len(mixed), self._pool)
        return np.concatenate([chance.permutation(mixed[at : at + self._pool]) for at in firsts])

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        self._asked = None
        yield from super().epoch(number, start)

    def expect(self, order: npt.NDArray[np.int64], at: int, epoch: int) -> None:
        """Have the next pool read from the disk, piece by piece, while this one is used."""
        if self._block is None:
            return
        pool = at // self._pool
        if self._asked is None:
            self._grids.expect(self._pool_of(order, pool, epoch))
        done = self._asked[1] if self._asked is not None and self._asked[0] == pool else 0
        until = at % self._pool + self.size
        self._grids.expect(self._pool_of(order, pool + 1, epoch)[done:until])
        self._asked = pool, until

    def _pool_of(self, order: npt.NDArray[np.int64], pool: int, epoch: int) -> list[str]:
        """The names of a pool's grids, as they lie in the cache."""
        places = order[pool * self._pool : (pool + 1) * self._pool]
        return sorted((self.drawn(self.captioned[place].digest, epoch) for place in places), key=self._grids.row)

    def drawn(self, digest: str, epoch: int) -> str:
        """The name of the grid that stands for a picture in an epoch: a function of the seed, the epoch and it."""
        if self._choices is None:
            return digest
        names = self._choices[digest]
        return names[random.Random(f"{self.seed} {epoch} {digest}").randrange(len(names))]

    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        return read_floats(self._grids, [self.drawn(picture.digest, epoch) for picture in captioned])

    @property
    def channels(self) -> int:
        """C of the grids."""
        return self._grids.shape[2]

    def gram(self) -> Tensor:
        """The sum of a a^T over all annotation vectors of the split, float64 (C, C)."""
        digests = [picture.digest for picture in self.captioned]
        total = torch.zeros(self._grids.shape[2], self._grids.shape[2], dtype=torch.float64)
        for _, grid in grids_in_order(digests, self._grids, 64):
            vectors = grid.flatten(0, 2).double()
            total += vectors.T @ vectors
        return total


class ResidentBatches(GridBatches):
    """The same batches, of grids that were all brought to a GPU's memory first, float16."""

    def __init__(self, *given: Any, device: torch.device, **options: Any) -> None:
        """given, options: as `GridBatches` takes them. Raises AttendError where the device has no room."""
        super().__init__(*given, **options)
        digests = [picture.digest for picture in self.captioned]
        if self._choices is not None:
            digests = [name for digest in digests for name in self._choices[digest]]
        self._places = {digest: place for place, digest in enumerate(digests)}
        try:
            self._all = torch.empty(len(digests), *self._grids.shape, dtype=torch.float16, device=device)
        except torch.OutOfMemoryError:
            size = 2 * len(digests) * math.prod(self._grids.shape) / 2**30
            raise AttendError(
                f"machine.resident: the grids take {size:.1f} GiB, more than {device} has: set machine.resident=false"
            ) from None
        for at in range(0, len(digests), 64):
            read = torch.from_numpy(self._grids.read(digests[at : at + 64]))
            self._all[at : at + len(read)] = read.to(device)

    def expect(self, order: npt.NDArray[np.int64], at: int, epoch: int) -> None:
        """Nothing is read any more."""

    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        places = torch.tensor([self._places[self.drawn(picture.digest, epoch)] for picture in captioned])
        return self._all[places.to(self._all.device)].float()


def grids_in_order(digests: Sequence[str], grids: GridReader, size: int) -> Iterator[tuple[Sequence[str], Tensor]]:
    """(digests, grid (n, h, w, C) float32) for `size` pictures at a time, in the order given."""
    for at in range(0, len(digests), size):
        part = digests[at : at + size]
        yield part, read_floats(grids, part)


def captioned_at_once(machine: MachineConfig, shape: tuple[int, int, int], rows: int) -> int:
    """Pictures with grids of this shape and so many hypotheses: more at once are faster, until their memory counts."""
    # Each position is scored by some 512 numbers a hypothesis: see attention.py.
    needed = 4 * math.prod(shape) + 4 * 512 * shape[0] * shape[1] * rows
    return machine.decode_batch or min(max(2**29 // needed, 1), 256)


def read_floats(grids: GridReader, digests: Sequence[str]) -> Tensor:
    """(n, h, w, C) float32 in the order asked for, each copied and converted at once."""
    out = torch.empty(len(digests), *grids.shape)
    for row, digest in zip(out, digests, strict=True):
        row.copy_(torch.from_numpy(grids.mapped(digest)))
    return out
