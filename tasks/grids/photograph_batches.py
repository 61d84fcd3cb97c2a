"""Decode the photographs of a batch: files -> pixels of the size that a backbone takes, in one tensor.

The processor decodes all of them, by a pool of threads. Or, where the config has `grids.decode_on: gpu`, the GPU
decodes and resizes JPEG files that any decoder reads alike (see `is_plain_jpeg`), by nvJPEG; all others, and those that
nvJPEG refuses, the processor does. Which of the two takes a file depends on its content alone.
"""

from __future__ import annotations

import hashlib
import io
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from models.encoded_pictures import is_plain_jpeg
from models.memory import is_out_of_memory
from models.photographs import decode, resize, resize_in_float
from models.picture_formats import Fit, Interpolation
from tasks.common.errors import AttendError, TransientError
from tasks.common.retries import may_pass
from tasks.device.copies import Copies
from tasks.grids.failures import FailedPhotograph

View = Callable[[str, Tensor], Tensor]  # (name, photograph) -> the part of the photograph that is encoded


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

    def __init__(
        self, shape: Shape, view: View | None, pool: ThreadPoolExecutor, copies: Copies, device: torch.device | None
    ) -> None:
        """Keep what photographs are decoded with.

        view: returns the part of a photograph that its name stands for; None for the whole. pool: the threads that
        decode. copies: of the device that encodes. device: the one that decodes JPEG files; None for the processor.
        """
        self._shape, self._view, self._pool, self._copies, self._device = shape, view, pool, copies, device
        if device is not None:
            _check_decodes(device)

    def read(self, items: Sequence[tuple[str, Path]]) -> list[Future[bytes]]:
        """Begin to read files, given as (name, file)."""
        return [self._pool.submit(_read, *item) for item in items]

    def decode(
        self, items: Sequence[tuple[str, Path]], files: Sequence[bytes]
    ) -> tuple[list[Photograph | FailedPhotograph], Tensor]:
        """Return what became of each photograph, and the pixels, uint8 (n, 3, S, S), of those that could be decoded."""
        size = self._shape.size
        # Channels last, and filled by the threads themselves.
        lines = self._copies.empty((len(items), size, size, 3), torch.uint8)
        on_device = {} if self._device is None else self._decode_on_device(items, files, self._device)

        def decode_one(index: int) -> Photograph | FailedPhotograph:
            (name, path), data = items[index], files[index]
            if index in on_device:
                return on_device[index][0]
            return self._decode_one(name, path, data, lines[index])

        outcomes = list(self._pool.map(decode_one, range(len(items))))
        good = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Photograph)]
        if on_device:
            assert self._device is not None
            moved = lines.to(self._device, non_blocking=True)
            for index, (_, pixels) in on_device.items():
                moved[index] = pixels.permute(1, 2, 0)
            lines = moved
        return outcomes, (lines if len(good) == len(items) else lines[good]).permute(0, 3, 1, 2)

    def _decode_one(self, name: str, path: Path, data: bytes, out: Tensor) -> Photograph | FailedPhotograph:
        """Decode a photograph on the processor, and write its pixels to out (S, S, 3)."""
        try:
            original = decode(data)
            part = original if self._view is None else self._view(name, original)
            out.copy_(resize(part, *self._shape).permute(1, 2, 0))
            return Photograph(name, (original.shape[2], original.shape[1]))
        except ValueError as error:
            return FailedPhotograph(name, path, str(error))
        except Exception as error:
            if is_out_of_memory(error):  # no fault of the photograph: it is tried again in the next run
                raise AttendError(
                    f"{path}: out of memory while it was decoded: free some, or lower machine.decode_workers and "
                    "machine.extract_batch, and run again; finished shards are kept"
                ) from None
            raise

    def _decode_on_device(
        self, items: Sequence[tuple[str, Path]], files: Sequence[bytes], device: torch.device
    ) -> dict[int, tuple[Photograph, Tensor]]:
        """Return the photographs that the device decodes, by their index, with their pixels (3, S, S) on the device."""
        plain = [index for index, is_plain in enumerate(self._pool.map(is_plain_jpeg, files)) if is_plain]
        decoded = {}
        for index, original in zip(plain, _decode_jpegs([files[index] for index in plain], device), strict=True):
            if original is None:
                continue
            name = items[index][0]
            part = original if self._view is None else self._view(name, original)
            photograph = Photograph(name, (original.shape[2], original.shape[1]))
            decoded[index] = photograph, resize_in_float(part, *self._shape)
        return decoded


def _decode_jpegs(files: Sequence[bytes], device: torch.device) -> list[Tensor | None]:
    """Return the RGB pictures (3, H, W) of JPEG files, uint8 on the device; None for one that it cannot decode."""
    encoded = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    together = _decode_together(encoded, device)
    if together is not None:
        return list(together)
    # One of them cannot be decoded, and took the others with it.
    alone = [_decode_together([one], device) for one in encoded]
    return [None if found is None else found[0] for found in alone]


def _check_decodes(device: torch.device) -> None:
    """Raise AttendError where the device cannot decode JPEG files at all: a sound one is tried."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG")
    try:
        decode_jpeg(torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8), device=device)
    except RuntimeError as error:
        raise AttendError(
            f"grids.decode_on: {device} cannot decode JPEG files ({' '.join(str(error).split())[:160]}): "
            "leave it out, so that the processor decodes"
        ) from None


def _decode_together(encoded: list[Tensor], device: torch.device) -> list[Tensor] | None:
    """Return the pictures of JPEG files; None where the device cannot decode all of them."""
    if not encoded:
        return []
    try:
        pictures: list[Tensor] = decode_jpeg(encoded, ImageReadMode.RGB, device)
        return pictures
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None


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
