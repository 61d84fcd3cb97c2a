"""The work of stage `remember`: the vectors and captions of training pictures, in a file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from models.decoding_rules import Floats
from models.neighbours import Memory, StoredCaptions, pool
from models.ngrams import Frequencies, Ids, padded
from models.vocabulary import NULL, SPECIAL
from tasks.common.errors import AttendError
from tasks.common.progress import in_parts
from tasks.config.devices import device_of
from tasks.config.machine import MachineConfig
from tasks.config.stages import MemoryConfig
from tasks.config.starting_point import StartingPoint
from tasks.data.caption_files import CaptionedPicture, read_captions, read_frequencies, read_vocabulary
from tasks.grids.index import open_grids
from tasks.grids.reader import GridReader
from tasks.neighbours.fit_matcher import MIN_CAPTIONS, MIN_PICTURES, fit_matcher
from tasks.pipeline.ledger import Artifact, Outcome

PICTURES = "pictures.parquet"  # the pictures' digests, in the order of the memory
_READ_AT_ONCE = 64
_SIZE = 128  # numbers kept of a picture's grid, by PCA


def write_memory(
    memory: MemoryConfig,
    machine: MachineConfig,
    grids: Artifact,
    captions: Artifact,
    key: str,
    out: Path,
    start: StartingPoint | None = None,
) -> Outcome:
    """Write the memory of the train split's pictures to `out`.

    key: the stage's. start: a captioner whose memory is kept too. Raises AttendError if no picture has a grid, or if
    that captioner's memory has no captions.
    """
    reader = open_grids(grids, machine)
    pictures = [picture for picture in read_captions(captions.path, "train") if picture.digest in reader]
    if not pictures:
        raise AttendError("remember: none of the training pictures could be read")
    left_out = max(len(pictures) - memory.pictures, 0)
    sampled = random.Random(0).sample(pictures, len(pictures) - left_out)
    if start is None:
        new_memory = make_memory(reader, sampled, read_frequencies(captions.path), _SIZE)
    else:
        before = Memory.load(start.folder)
        if before.captions is None:
            raise AttendError(
                f"memory.joined: {start.address} remembers no captions, as neighbours did not help it: set it to false"
            )
        new_memory = join_memory(before, before.captions, reader, sampled, _new_ids(start.folder, captions.path))
    notes = [f"{left_out:,} pictures are left out: memory.pictures is {memory.pictures:,}"] if left_out else []
    stored = new_memory.captions
    assert stored is not None
    if len(stored.counts) >= MIN_PICTURES and len(stored.lengths) >= MIN_CAPTIONS:
        words = len(read_vocabulary(captions.path))
        matcher = fit_matcher(new_memory.directions, stored, words, device_of(machine))
        new_memory = replace(new_memory, matcher=matcher)
    else:
        few = f"{len(stored.lengths):,} captions of {len(stored.counts):,} pictures are too few"
        notes.append(f"no matcher: {few}: it needs {MIN_CAPTIONS:,} of {MIN_PICTURES:,}")
    new_memory.save(out)
    earlier = len(new_memory.vectors) - len(sampled)  # pictures whose photographs are not here
    pq.write_table(pa.table({"digest": [picture.digest for picture in sampled] + [""] * earlier}), out / PICTURES)
    if start is not None:
        notes.append(f"{earlier:,} of the pictures are of the memory of {start.address}")
    # The numbers differ between machines by rounding, so the key is their digest.
    return Outcome({"pictures": key}, {"pictures": len(new_memory.vectors)}, notes)


def read_remembered(folder: Path) -> list[str]:
    """Return the digests of a memory's pictures, in its order, from the folder of the artifact.

    They are empty for pictures from another captioner's memory.
    """
    digests: list[str] = pq.read_table(folder / PICTURES)["digest"].to_pylist()
    return digests


def make_memory(grids: GridReader, pictures: Sequence[CaptionedPicture], frequencies: Frequencies, size: int) -> Memory:
    """Return the memory of pictures.

    frequencies: of the n-grams of their captions. size: see `memory_of`.
    """
    mean, pooled = _mean_and_pooled(grids, pictures)
    captions = StoredCaptions.make(*_different_captions(pictures), frequencies)
    return replace(memory_of(mean, pooled, size), captions=captions)


def _mean_and_pooled(grids: GridReader, pictures: Sequence[CaptionedPicture]) -> tuple[Floats, Floats]:
    """Return the mean of the grids of M pictures, (h, w, C), and their pooled grids, (M, C)."""
    total, pooled, done = np.zeros(grids.shape), np.empty((len(pictures), grids.shape[2]), np.float32), 0
    for part in in_parts(pictures, _READ_AT_ONCE, "training pictures"):
        grid = grids.read([picture.digest for picture in part])
        total += grid.sum(axis=0, dtype=np.float64)
        pooled[done : done + len(part)] = pool(grid)
        done += len(part)
    return (total / len(pictures)).astype(np.float32), pooled


def _new_ids(before: Path, now: Path) -> Ids:
    """Return an array that maps an earlier vocabulary's token ids to a new one's; UNK for words that it lacks.

    before, now: the folders of the two.
    """
    vocabulary = read_vocabulary(now)
    return np.array([*range(len(SPECIAL)), *map(vocabulary.id_of, read_vocabulary(before).words)])


def join_memory(
    before: Memory, captions: StoredCaptions, grids: GridReader, pictures: Sequence[CaptionedPicture], words: Ids
) -> Memory:
    """Return a memory of pictures, followed by the pictures of an earlier memory, whose mean and axes are kept.

    captions: of the earlier memory. words: maps its token ids to the new ones, as `_new_ids` returns.
    """
    _, pooled = _mean_and_pooled(grids, pictures)
    vectors = _as_float16((pooled - before.mean) @ before.basis)
    earlier = (_as_smallest_type(words[captions.tokens]), captions.lengths, captions.counts)
    both = zip(_different_captions(pictures), earlier, strict=True)
    tokens, lengths, counts = (np.concatenate(parts) for parts in both)
    rows = [row.tolist() for row in np.split(tokens, np.cumsum(lengths)[:-1])]
    ends = np.cumsum(counts)
    references = [padded(rows[end - count : end]) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]
    joined = StoredCaptions.make(_as_smallest_type(tokens), lengths, counts, Frequencies.from_references(references))
    return replace(before, vectors=np.concatenate([vectors, before.vectors]), captions=joined, matcher=None)


def memory_of(grid: Floats, pooled: Floats, size: int) -> Memory:
    """Return a memory without captions.

    grid (h, w, C): the mean of the pictures' grids. pooled (M, C): their pooled grids. size: numbers of a vector; fewer
    if the pooled grids have a lower rank.
    """
    mean = pooled.mean(axis=0)
    basis = _principal_axes(pooled - mean, size)
    return Memory(grid, mean, basis, _as_float16((pooled - mean) @ basis))


def _as_float16(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return vectors as float16, or unchanged if a number is too large for it."""
    return vectors if np.abs(vectors).max(initial=0) > np.finfo(np.float16).max else vectors.astype(np.float16)


def _principal_axes(centred: Floats, size: int) -> Floats:
    """Return the first `size` principal axes of vectors (M, C), or all if there are fewer: (C, D)."""
    values, axes = np.linalg.eigh(centred.T @ centred)
    rank = int((values > values[-1] * max(centred.shape) * np.finfo(np.float32).eps).sum())
    axes = axes[:, ::-1][:, : min(size, max(rank, 1))]
    # Choose the sign of each axis so that its greatest number by magnitude is positive.
    signs = np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0))
    basis: Floats = (axes * signs).astype(np.float32)
    return basis


def _different_captions(
    pictures: Sequence[CaptionedPicture],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return tokens, lengths and counts, as in `StoredCaptions`, without a picture's repeated captions."""
    different = [np.unique(picture.tokens[:, 1:], axis=0) for picture in pictures]  # without START
    captions = [row[row != NULL] for rows in different for row in rows]
    lengths = np.array([len(caption) for caption in captions], np.uint16)
    return _as_smallest_type(np.concatenate(captions)), lengths, np.array([len(rows) for rows in different], np.uint16)


def _as_smallest_type(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return token ids as uint16 if all are small enough."""
    return tokens.astype(np.uint16) if tokens.max(initial=0) < 2**16 else tokens
