"""Word embeddings to begin with, from a file in GloVe's text format: a word and its numbers a line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.common.progress import say
from tasks.config.schema import DecoderConfig, MachineConfig
from tasks.pipeline.file_digests import Digests

if TYPE_CHECKING:
    from torch import Tensor

    from models.vocabulary import Vocabulary


def vector_digests(decoder: DecoderConfig, machine: MachineConfig) -> dict[str, str]:
    """The SHA-256 of the file that `decoder.word_vectors` names; nothing where it names none."""
    if decoder.word_vectors is None:
        return {}
    path = _file(decoder.word_vectors)
    return {"word_vectors": Digests(machine.folder / "digests.sqlite").of([path])[path]}


def load_word_vectors(path: Path, vocabulary: Vocabulary, embeddings: Tensor) -> None:
    """Overwrite rows of embeddings (V, E) with the file's vectors; words that it lacks keep theirs.

    AttendError names the first line that has not E numbers, and a file that knows no word of the vocabulary.
    """
    import torch

    size, found = embeddings.shape[1], 0
    width = _width(path)
    if width < 2:
        raise AttendError(f"{path}: line 1: is no word with its vector: give GloVe's text format, without a header")
    if width != size:
        raise AttendError(
            f"{path}: line 1: has {width} numbers, decoder.embedding is {size}: give a file of that size, or set "
            f"decoder.embedding={width}"
        )
    special = len(vocabulary) - len(vocabulary.words)
    places = {word: place for place, word in enumerate(vocabulary.words, special)}
    with _file(path).open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            word, *numbers = line.rsplit(maxsplit=size)
            if len(numbers) != size:
                raise AttendError(
                    f"{path}: line {number}: {len(line.split()) - 1} numbers for {word[:40]!r}, line 1 has {size}"
                )
            if word in places:
                try:
                    values = [float(value) for value in numbers]
                except ValueError:
                    values = [math.nan]
                if not all(map(math.isfinite, values)):
                    raise AttendError(f"{path}: line {number}: not all of {word[:40]!r}'s values are numbers")
                embeddings[places[word]] = torch.tensor(values)
                found += 1
    if not found:
        raise AttendError(f"{path}: holds no word of the vocabulary: is it of this language, and lower-case?")
    say(f"train: {found:,} of {len(vocabulary.words):,} words begin with vectors of {path.name}")


def _width(path: Path) -> int:
    """How many numbers the first line has; its word has no space in it."""
    with _file(path).open(encoding="utf-8", errors="replace") as lines:
        return len(next(lines, "").split()) - 1


def _file(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise AttendError(f"decoder.word_vectors: {path}: no such file")
    return path
