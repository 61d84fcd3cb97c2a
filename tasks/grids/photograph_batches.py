"""Decode the photographs of a batch: files -> pixels of the size that a backbone takes, in one tensor."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from models.encoded_pictures import decode
from models.memory import is_out_of_memory
from models.picture_formats import Fit, Interpolation
from models.resizing import Pixels, resize
from tasks.common.errors import AttendError, TransientError
from tasks.common.retries import may_pass
from tasks.grids.failures import FailedPhotograph

View = Callable[[str, Pixels], Pixels]  # (name, photograph) -> the part of the photograph that is encoded


class Shape(NamedTuple):
    """How a photograph becomes a square of pixels."""

    size: int
    fit: Fit
    interpolation: Interpolation


@dataclass(frozen=True)
class Photograph:
    """A decoded photograph: its name, and the size (width, height) of the original."""

    digest: str
    size: tuple[int, int]


class BatchDecoder:
    """The decoder of batches of photographs."""

    def __init__(self, shape: Shape, view: View | None, pool: ThreadPoolExecutor, pinned: bool = False) -> None:
        """Keep what photographs are decoded with.

        view: returns the part of a photograph that its name stands for; None for the whole. pool: the threads that
        decode. pinned: whether pixels are put into pinned memory, from which they are copied to a GPU.
        """
        self._shape, self._view, self._pool, self._pinned = shape, view, pool, pinned

    def read(self, items: Sequence[tuple[str, Path]]) -> list[Future[bytes]]:
        """Begin to read files, given as (name, file)."""
        return [self._pool.submit(_read, *item) for item in items]

    def decode(
        self, items: Sequence[tuple[str, Path]], files: Sequence[bytes]
    ) -> tuple[list[Photograph | FailedPhotograph], Tensor]:
        """Return what became of each photograph, and the pixels, uint8 (n, 3, S, S), of those that could be decoded."""
        size = self._shape.size
        # Channels last, and filled by the threads themselves.
        lines = torch.empty(len(items), size, size, 3, dtype=torch.uint8, pin_memory=self._pinned)
        rows = lines.numpy()

        def decode_one(index: int) -> Photograph | FailedPhotograph:
            return self._decode_one(*items[index], files[index], rows[index])

        outcomes = list(self._pool.map(decode_one, range(len(items))))
        good = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Photograph)]
        return outcomes, (lines if len(good) == len(items) else lines[good]).permute(0, 3, 1, 2)

    def _decode_one(self, name: str, path: Path, data: bytes, out: Pixels) -> Photograph | FailedPhotograph:
        """Decode a photograph, and write its pixels to out (S, S, 3)."""
        try:
            original = decode(data)
            part = original if self._view is None else self._view(name, original)
            out[:] = resize(part, *self._shape)
            return Photograph(name, (original.shape[1], original.shape[0]))
        except ValueError as error:
            return FailedPhotograph(name, path, str(error))
        except Exception as error:
            if is_out_of_memory(error):  # no fault of the photograph: it is tried again in the next run
                raise AttendError(
                    f"{path}: out of memory while it was decoded: free some, or lower machine.decode_workers and "
                    "machine.extract_batch, and run again; finished shards are kept"
                ) from None
            raise


def _read(name: str, path: Path) -> bytes:
    return read_photograph(name.partition("#")[0], path)


def read_photograph(digest: str, path: Path) -> bytes:
    """Return the content of a photograph's file.

    Raises AttendError where the file cannot be read (any more), a TransientError where that may pass, and where its
    SHA-256 is not `digest`, because it was changed after it was ingested.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        kind = TransientError if may_pass(error) else AttendError
        raise kind(
            f"{path}: cannot be read on {platform.node()} ({error.strerror}): run again when it can, or remove it"
        ) from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise AttendError(f"{path}: was changed while the run was going on: run again")
    return data
