"""The work of stage `remember`: the vectors and captions of training pictures, in a file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.neighbours import KeptCaptions, Memory, pool
from models.ngrams import Frequencies
from models.vocabulary import NULL
from models.word_rules import Floats
from tasks.common.errors import AttendError
from tasks.common.progress import Bar
from tasks.config.machine import MachineConfig
from tasks.config.stages import MemoryConfig
from tasks.data.caption_files import CaptionedPicture, read_captions, read_frequencies
from tasks.grids.index import open_grids
from tasks.grids.reader import GridReader
from tasks.pipeline.ledger import Artifact, Outcome

PICTURES = "pictures.parquet"  # their digests, in the order of the memory
_READ_AT_ONCE = 64


def write_memory(
    memory: MemoryConfig, machine: MachineConfig, grids: Artifact, captions: Artifact, key: str, out: Path
) -> Outcome:
    """Write the memory of the train split's pictures to `out`.

    key: of the stage. Raises AttendError where no picture has a grid.
    """
    reader = open_grids(grids, machine)
    pictures = [picture for picture in read_captions(captions.path, "train") if picture.digest in reader]
    if not pictures:
        raise AttendError("remember: none of the training pictures could be read")
    left_out = max(len(pictures) - memory.pictures, 0)
    kept = random.Random(0).sample(pictures, len(pictures) - left_out)
    found = make_memory(reader, kept, read_frequencies(captions.path), memory.size)
    found.save(out)
    pq.write_table(pa.table({"digest": [picture.digest for picture in kept]}), out / PICTURES)
    notes = [f"{left_out:,} pictures are left out: memory.pictures is {memory.pictures:,}"] if left_out else []
    # The numbers differ by rounding from machine to machine, so the key stands for them.
    return Outcome({"pictures": key}, {"pictures": len(kept)}, notes)


def read_remembered(folder: Path) -> list[str]:
    """Return the digests of the pictures of a memory, in its order, from the folder of the artifact."""
    digests: list[str] = pq.read_table(folder / PICTURES)["digest"].to_pylist()
    return digests


def make_memory(grids: GridReader, pictures: Sequence[CaptionedPicture], frequencies: Frequencies, size: int) -> Memory:
    """Return the memory of pictures.

    frequencies: of the n-grams of their captions. size: see `memory_of`.
    """
    total, pooled = np.zeros(grids.shape), np.empty((len(pictures), grids.shape[2]), np.float32)
    with Bar(len(pictures), "training pictures", "pictures") as bar:
        for start in range(0, len(pictures), _READ_AT_ONCE):
            part = [picture.digest for picture in pictures[start : start + _READ_AT_ONCE]]
            grid = grids.read(part)
            total += grid.sum(axis=0, dtype=np.float64)
            pooled[start : start + len(part)] = pool(grid)
            bar.advance(len(part))
    mean = (total / len(pictures)).astype(np.float32)
    return replace(memory_of(mean, pooled, size), captions=_kept_captions(pictures, frequencies))


def memory_of(grid: Floats, pooled: Floats, size: int) -> Memory:
    """Return a memory without captions.

    grid (h, w, C): the mean of the pictures' grids. pooled (M, C): their pooled grids. size: numbers of a
    vector, fewer where the grids or the pictures have no more.
    """
    mean = pooled.mean(axis=0)
    basis = _principal_axes(pooled - mean, size)
    return Memory(grid, mean, basis, ((pooled - mean) @ basis).astype(np.float16))


def _principal_axes(centred: Floats, size: int) -> Floats:
    """Return the first `size` principal axes of vectors (M, C), or all that they have: (C, D)."""
    values, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, : min(size, max(int((values > 0).sum()), 1))]
    # Of an axis and its opposite, the one whose greatest number is positive.
    signs = np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0))
    basis: Floats = (axes * signs).astype(np.float32)
    return basis


def _kept_captions(pictures: Sequence[CaptionedPicture], frequencies: Frequencies) -> KeptCaptions:
    """Return the captions of pictures, each different one of a picture once. frequencies: of their n-grams."""
    different = [np.unique(picture.tokens[:, 1:], axis=0) for picture in pictures]  # without START
    captions = [row[row != NULL] for rows in different for row in rows]
    tokens = np.concatenate(captions)
    return KeptCaptions.make(
        tokens.astype(np.uint16) if tokens.max() < 2**16 else tokens,
        np.array([len(caption) for caption in captions], np.uint16),
        np.array([len(rows) for rows in different], np.uint16),
        frequencies,
    )
