"""Cached grids + token ids -> batches. One row a picture; its captions share it.

The order of an epoch is a function of the seed and the epoch alone: a resumed run sees the same batches.
"""

from __future__ import annotations

import math
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

    grid (N, h, w, C) float32. tokens (N, R, T+1) int64: START, words, END, NULL; a picture with fewer
    captions than R has rows of NULL.
    """

    grid: Tensor
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
        return Batch(self.grid.to(device, non_blocking=True), self.tokens.to(device, non_blocking=True))


class Batches:
    """The batches of a split's pictures."""

    def __init__(self, pictures: Sequence[CaptionedPicture], grids: GridReader, size: int, seed: int) -> None:
        self._pictures = [picture for picture in pictures if picture.digest in grids]
        self._grids, self._size, self._seed = grids, size, seed

    def __len__(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self._pictures) / self._size)

    @property
    def pictures(self) -> int:
        return len(self._pictures)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` from batch `start` on, shuffled, each read while the one before is used."""
        order = np.random.default_rng((self._seed, number)).permutation(len(self._pictures))
        places = [order[at : at + self._size] for at in range(start * self._size, len(order), self._size)]
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self._read, places[0]) if places else None
            for place in range(len(places)):
                assert ahead is not None
                batch = ahead.result()
                ahead = pool.submit(self._read, places[place + 1]) if place + 1 < len(places) else None
                yield batch

    def gram(self) -> Tensor:
        """The sum of a a^T over all annotation vectors of the split, float64 (C, C)."""
        digests = [picture.digest for picture in self._pictures]
        total = torch.zeros(self._grids.shape[2], self._grids.shape[2], dtype=torch.float64)
        for _, grid in grids_in_order(digests, self._grids, 64):
            vectors = grid.flatten(0, 2).double()
            total += vectors.T @ vectors
        return total

    def _read(self, places: npt.NDArray[np.int64]) -> Batch:
        pictures = [self._pictures[place] for place in places]
        grid = torch.from_numpy(self._grids.read([picture.digest for picture in pictures]))
        rows = max(len(picture.tokens) for picture in pictures)
        tokens = np.full((len(pictures), rows, pictures[0].tokens.shape[1]), NULL, dtype=np.int64)
        for place, picture in enumerate(pictures):
            tokens[place, : len(picture.tokens)] = picture.tokens
        longest = int((tokens != NULL).sum(axis=2).max())
        return Batch(grid.float(), torch.from_numpy(tokens[:, :, :longest]))


def grids_in_order(digests: Sequence[str], grids: GridReader, size: int) -> Iterator[tuple[Sequence[str], Tensor]]:
    """(digests, grid (n, h, w, C) float32) for `size` pictures at a time, in the order given."""
    for at in range(0, len(digests), size):
        part = digests[at : at + size]
        yield part, torch.from_numpy(grids.read(part)).float()
