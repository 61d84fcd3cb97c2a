"""Graphs: work on a device that is recorded once and replayed, as CUDA graphs are.

A GPU finishes a small kernel before Python has asked for the next. A graph asks for all of them at once. It repeats
what was recorded: the same kernels on the same memory. So whatever changes from one replay to the next must be in
tensors, and nothing that is recorded may wait for a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")


class Graph(Protocol):
    """Recorded work."""

    def record(self, work: Callable[[], Made]) -> Made:
        """Record `work` without doing it, and return what it returns: tensors that hold their values after a replay."""
        ...

    def replay(self) -> None:
        """Do the recorded work, on what its tensors hold now. Random numbers go on from the device's generator."""
        ...


Graphs = Callable[[], Graph]  # makes a new graph


class CudaGraph:
    """A graph of one GPU. All graphs of a `cuda_graphs` share their memory, so two must not be replayed at once."""

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def record(self, work: Callable[[], Made]) -> Made:
        # Other threads may go on copying grids meanwhile.
        with torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        self._graph.replay()


def cuda_graphs(device: torch.device) -> Graphs:
    """Return what makes graphs of a GPU that share their memory."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
    return lambda: CudaGraph(pool, stream)


class Replayed:
    """A function of tensors that is replayed.

    For each set of shapes, the first call does the work, the next records it. The first call prepares what may not be
    recorded: libraries, the optimiser's state. The function may return any structure of tensors; each call overwrites
    what the call before returned.
    """

    def __init__(self, function: Callable[..., Any], graphs: Graphs, most: int = 64) -> None:
        """Keep the function. most: the number of sets of shapes that are recorded; others are computed each time."""
        self._function, self._graphs, self._most = function, graphs, most
        self._recorded: dict[Any, tuple[Graph, list[Tensor], Any] | None] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """Return what the function returns for these tensors."""
        key = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in inputs)
        if key not in self._recorded:
            if len(self._recorded) < self._most:
                self._recorded[key] = None
            return self._function(*inputs)
        recorded = self._recorded[key]
        if recorded is None:
            graph, own = self._graphs(), [tensor.clone() for tensor in inputs]
            recorded = self._recorded[key] = graph, own, graph.record(lambda: self._function(*own))
        graph, own, returned = recorded
        torch._foreach_copy_(own, list(inputs))
        graph.replay()
        return returned
