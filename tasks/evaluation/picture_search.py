"""The captions that a trained decoder finds for held-out pictures, free-running, from their cached grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.captioned import key_of_digest
from models.confidence import features_of
from models.decoders.base import Decoder
from models.decoders.ensemble import Ensemble, members_of
from models.decoding_rules import Floats
from models.neighbours import Memory, NearestPictures, pool
from models.options import Neighbours
from models.ranking import Copy, Ranked, as_captions, rank
from models.search import Caption, decode
from models.torch_steps import TorchSteps
from tasks.common.errors import AttendError
from tasks.common.progress import Bar
from tasks.config.devices import device_of
from tasks.config.machine import MachineConfig
from tasks.config.stages import EvaluationConfig
from tasks.data.manifest import Picture
from tasks.grids.index import open_grids
from tasks.pipeline import distributed as processes
from tasks.pipeline.ledger import Artifact
from tasks.training.batches import decode_batch_size, grids_in_order

_READ_AT_ONCE = 64


@dataclass(frozen=True)
class SearchResult:
    """The captions that a search found for N pictures.

    pictures: those that have a grid. captions: each picture's, likeliest first. near: the training pictures most
    similar to each.
    """

    pictures: list[Picture]
    captions: list[list[Caption]]
    near: NearestPictures

    def select(self, indices: Sequence[int]) -> SearchResult:
        """Return the results for the pictures with these indices."""
        return SearchResult(
            [self.pictures[number] for number in indices],
            [self.captions[number] for number in indices],
            self.near.select(indices),
        )


class PictureSearch:
    """A trained decoder, the grids that it reads, and the memory of its training pictures.

    It computes in float32, because its captions give the reported scores.
    """

    def __init__(
        self,
        evaluation: EvaluationConfig,
        machine: MachineConfig,
        grids: Artifact,
        decoder: Decoder | Ensemble,
        memory: Memory,
    ) -> None:
        device = device_of(machine)
        self._members = len(members_of(decoder))
        self._steps = TorchSteps(decoder.to(device).eval().for_inference(), device)
        self._evaluation, self._decoding, self._machine = evaluation, evaluation.decoding(), machine
        self._grids, self._memory = open_grids(grids, machine), memory

    def find(self, pictures: Sequence[Picture]) -> SearchResult:
        """Return the captions that a search finds for pictures; AttendError if none of them has a grid."""
        readable = [picture for picture in pictures if picture.digest in self._grids]
        if not readable:
            raise AttendError(f"evaluate: none of the {len(pictures):,} pictures to be captioned could be read")
        share, decoding = processes.share_of([picture.digest for picture in readable]), self._decoding
        beam = decoding.search == "beam"
        fixed = self._evaluation.neighbours
        number = Neighbours.number if isinstance(fixed, str) else fixed.number
        results: list[list[Caption]] = []
        near: list[tuple[Any, ...]] = []
        with Bar(len(share), f"captions, beam {decoding.beam}" if beam else "captions, sampled", "pictures") as bar:
            rows = decoding.beam if beam else decoding.n_best
            size = decode_batch_size(self._machine, self._grids.shape, rows, self._members)
            for part, grid in grids_in_order(share, self._grids, size):
                keys = [key_of_digest(digest) for digest in part]
                results += decode(self._steps, self._steps.start(grid), len(part), decoding, keys)
                near += zip(*self._memory.look_up(pool(grid.numpy()), number), strict=True)
                bar.advance(len(part))
        near = processes.all_gather(near, len(readable))
        captions = processes.all_gather(results, len(readable))
        return SearchResult(
            readable, captions, NearestPictures(*(np.stack(column) for column in zip(*near, strict=True)))
        )

    def ranked(self, result: SearchResult, neighbours: Neighbours | None) -> list[Ranked]:
        """Return the found captions as neighbours rank them; in their own order if `neighbours` is None."""
        if neighbours is None or self._memory.captions is None:
            return [Ranked(captions) for captions in result.captions]

        def score_copies(numbers: list[int], copies: list[Copy]) -> list[Caption]:
            captions = []
            for start in range(0, len(numbers), _READ_AT_ONCE):
                part = slice(start, start + _READ_AT_ONCE)
                grid = self._grids.read([result.pictures[number].digest for number in numbers[part]])
                captions += as_captions(self._steps, self._steps.start(grid.astype(np.float32)), copies[part])
            return captions

        return rank(self._memory, result.near, result.captions, neighbours, self._decoding, score_copies)

    def features(self, result: SearchResult, ranked: Sequence[Ranked]) -> Floats:
        """Return the features of the best captions' confidence (see confidence.py), (N, F)."""
        blind = self._steps.start(self._memory.grid[None])
        distances = result.near.distances
        similarities = np.array([item.similarity for item in ranked], np.float32)
        best = [item.captions[0] for item in ranked]
        return np.concatenate(
            [
                features_of(self._steps, blind, distances[part], similarities[part], best[part])
                for start in range(0, len(best), _READ_AT_ONCE)
                for part in [slice(start, start + _READ_AT_ONCE)]
            ]
        )
