"""Copies between the memory of the host and of a device, which go on beside the device's work.

A GPU works through a queue of its own: Python asks for work and goes on. It waits where it reads a value. A copy that
was asked for in this module waits for nothing by itself; who needs its values says so: `Arrival.use` makes the device's
later work wait for them, `Arrival.wait` makes Python wait. On a processor every copy is done at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Arrival(Protocol):
    """Tensors on their way."""

    def use(self) -> list[Tensor]:
        """Return the tensors, for work on the device: it will wait until they are there, Python does not."""
        ...

    def has_come(self) -> bool:
        """Return whether they are there, without waiting."""
        ...

    def wait(self) -> list[Tensor]:
        """Return the tensors once they are there."""
        ...


class Copies(Protocol):
    """The two directions of copies."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor in the host's memory, not filled, from which `upload` copies beside other work."""
        ...

    def upload(self, tensors: Sequence[Tensor]) -> Arrival:
        """Copy tensors of the host to the device. They must not be changed until they are there."""
        ...

    def download(self, tensors: Sequence[Tensor]) -> Arrival:
        """Copy tensors to the host, once the device has done what it was asked for before.

        They must not be changed until they are there.
        """
        ...


def copies_for(device: torch.device) -> Copies:
    """Return the copies of a device."""
    return NoCopies() if device.type == "cpu" else GpuCopies(device)


class NoCopies:
    """Copies where the device is the processor: none, the tensors are where they are needed."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    def upload(self, tensors: Sequence[Tensor]) -> Arrival:
        return _Here(list(tensors))

    def download(self, tensors: Sequence[Tensor]) -> Arrival:
        return _Here(list(tensors))


class _Here:
    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def use(self) -> list[Tensor]:
        return self._tensors

    def has_come(self) -> bool:
        return True

    def wait(self) -> list[Tensor]:
        return self._tensors


class GpuCopies:
    """Copies of a GPU, each direction in a stream of its own: they overlap with its work and with each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._up, self._down = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, pin_memory=True)  # only pinned memory is copied beside other work

    def upload(self, tensors: Sequence[Tensor]) -> Arrival:
        with torch.cuda.stream(self._up):
            pinned = [tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory() for tensor in tensors]
            moved = [tensor.to(self._device, non_blocking=True) for tensor in pinned]
            return _OnTheWay(moved, self._up.record_event())

    def download(self, tensors: Sequence[Tensor]) -> Arrival:
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._down):
            copied = [self.empty(tensor.shape, tensor.dtype) for tensor in tensors]
            for target, tensor in zip(copied, tensors, strict=True):
                target.copy_(tensor, non_blocking=True)
                tensor.record_stream(self._down)  # its memory is not given away before it was copied
            return _OnTheWay(copied, self._down.record_event())


class _OnTheWay:
    """Tensors of a copy that a stream was asked for; event: that it is done."""

    def __init__(self, tensors: list[Tensor], event: torch.cuda.Event) -> None:
        self._tensors, self._event = tensors, event

    def use(self) -> list[Tensor]:
        stream = torch.cuda.current_stream()
        stream.wait_event(self._event)
        for tensor in self._tensors:
            tensor.record_stream(stream)
        return self._tensors

    def has_come(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> list[Tensor]:
        self._event.synchronize()
        return self._tensors
