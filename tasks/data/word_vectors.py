"""Initial word embeddings, from a file in GloVe's text format: on each line a word and its numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.config.decoder import DecoderConfig
from tasks.config.machine import MachineConfig
from tasks.pipeline.file_digests import Digests

if TYPE_CHECKING:
    from torch import Tensor

    from models.vocabulary import Vocabulary


def vector_digests(decoder: DecoderConfig, machine: MachineConfig) -> dict[str, str]:
    """Return the SHA-256 (hex) of the file named by `decoder.word_vectors`, by name; empty if that is not set.

    Raises AttendError if there is no such file.
    """
    if decoder.word_vectors is None:
        return {}
    path = _file(decoder.word_vectors)
    return {"word_vectors": Digests(machine.folder / "digests.sqlite").of([path])[path]}


def load_word_vectors(path: Path, vocabulary: Vocabulary, embeddings: Tensor) -> None:
    """Overwrite rows of `embeddings` (V, E) with the file's vectors; rows of words that it lacks are unchanged.

    Raises AttendError, with the line number, for the first line without E finite numbers, and for a file that
    contains no word of the vocabulary.
    """
    import torch

    size, loaded = embeddings.shape[1], 0
    width = _width(path)
    if width < 2:
        raise AttendError(
            f"{path}: line 1: is not a word followed by its vector: give GloVe's text format, without a header"
        )
    if width != size:
        raise AttendError(
            f"{path}: line 1: has {width} numbers, decoder.embedding is {size}: give a file of that size, or set "
            f"decoder.embedding={width}"
        )
    special_count = len(vocabulary) - len(vocabulary.words)  # rows of START, END, ... come first
    row_indices = {word: index for index, word in enumerate(vocabulary.words, special_count)}
    with _file(path).open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            word, *numbers = line.rsplit(maxsplit=size)
            if len(numbers) != size:
                raise AttendError(
                    f"{path}: line {number}: {len(line.split()) - 1} numbers for {word[:40]!r}, line 1 has {size}"
                )
            if word in row_indices:
                try:
                    values = [float(value) for value in numbers]
                except ValueError:
                    values = [math.nan]
                if not all(map(math.isfinite, values)):
                    raise AttendError(f"{path}: line {number}: not all of {word[:40]!r}'s values are numbers")
                embeddings[row_indices[word]] = torch.tensor(values)
                loaded += 1
    if not loaded:
        raise AttendError(
            f"{path}: holds no word of the vocabulary: check that it is lower-case and in the captions' language"
        )
    log.info(f"train: {loaded:,} of {len(vocabulary.words):,} words start from vectors in {path.name}")


def _width(path: Path) -> int:
    """Return how many numbers the first line has; its word is assumed to contain no space."""
    with _file(path).open(encoding="utf-8", errors="replace") as lines:
        return len(next(lines, "").split()) - 1


def _file(path: Path) -> Path:
    """Return the path with `~` expanded. Raises AttendError if it is not a file."""
    path = path.expanduser()
    if not path.is_file():
        raise AttendError(f"decoder.word_vectors: {path}: no such file")
    return path
