"""Pictures (cached grids, or photographs) + token ids -> batches. One row a picture; its captions share it.

The order of an epoch is a function of the seed and the epoch alone: a resumed run sees the same batches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.vocabulary import NULL
from tasks.captions import CaptionedPicture
from tasks.grid_cache import GridReader


@dataclass(frozen=True)
class Batch:
    """N pictures, each with up to R captions.

    pictures: grids (N, h, w, C) float32, or photographs (N, 3, S, S) uint8 where the backbone is tuned. tokens
    (N, R, T+1) int64: START, words, END, NULL; a picture with fewer captions than R has rows of NULL.
    """

    pictures: Tensor
    tokens: Tensor

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
        return Batch(self.pictures.to(device, non_blocking=True), self.tokens.to(device, non_blocking=True))


class Batches(ABC):
    """The batches of a split's pictures: `size` of them a batch, none with more than `rows` captions."""

    def __init__(self, pictures: Sequence[CaptionedPicture], size: int, seed: int) -> None:
        self.captioned = list(pictures)
        self.size, self.seed = size, seed
        self.rows = max((len(picture.tokens) for picture in self.captioned), default=0)

    def __len__(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self.captioned) / self.size)

    @abstractmethod
    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        """`Batch.pictures` for these pictures, a function of them, the seed and the epoch."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` from batch `start` on, shuffled, each read while the one before is used."""
        order = np.random.default_rng((self.seed, number)).permutation(len(self.captioned))
        places = [order[at : at + self.size] for at in range(start * self.size, len(order), self.size)]
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self._read, places[0], number) if places else None
            for place in range(len(places)):
                assert ahead is not None
                batch = ahead.result()
                ahead = pool.submit(self._read, places[place + 1], number) if place + 1 < len(places) else None
                yield batch

    def _read(self, places: npt.NDArray[np.int64], epoch: int) -> Batch:
        captioned = [self.captioned[place] for place in places]
        rows = max(len(picture.tokens) for picture in captioned)
        tokens = np.full((len(captioned), rows, captioned[0].tokens.shape[1]), NULL, dtype=np.int64)
        for place, picture in enumerate(captioned):
            tokens[place, : len(picture.tokens)] = picture.tokens
        longest = int((tokens != NULL).sum(axis=2).max())
        return Batch(self.pictures_of(captioned, epoch), torch.from_numpy(tokens[:, :, :longest]))


class GridBatches(Batches):
    """Batches of cached grids; pictures without one are left out."""

    def __init__(self, pictures: Sequence[CaptionedPicture], grids: GridReader, size: int, seed: int) -> None:
        super().__init__([picture for picture in pictures if picture.digest in grids], size, seed)
        self._grids = grids

    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        return torch.from_numpy(self._grids.read([picture.digest for picture in captioned])).float()

    def gram(self) -> Tensor:
        """The sum of a a^T over all annotation vectors of the split, float64 (C, C)."""
        digests = [picture.digest for picture in self.captioned]
        total = torch.zeros(self._grids.shape[2], self._grids.shape[2], dtype=torch.float64)
        for _, grid in grids_in_order(digests, self._grids, 64):
            vectors = grid.flatten(0, 2).double()
            total += vectors.T @ vectors
        return total


def grids_in_order(digests: Sequence[str], grids: GridReader, size: int) -> Iterator[tuple[Sequence[str], Tensor]]:
    """(digests, grid (n, h, w, C) float32) for `size` pictures at a time, in the order given."""
    for at in range(0, len(digests), size):
        part = digests[at : at + size]
        yield part, torch.from_numpy(grids.read(part)).float()
