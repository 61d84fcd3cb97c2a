"""A device without one: what a GPU does at another time than Python asks for it, done on the processor.

`RecordedGraphs` are as strict as CUDA graphs: recording does nothing, and a replay does the same operations on the same
memory, whatever Python's variables say meanwhile. `LateCopies` are as late as a copy may be: it is made when somebody
waits for it, of what its source holds by then. `NothingWaits` refuses each operation for whose value a GPU would be waited
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Made = TypeVar("Made")


def place_of(tensor: Tensor) -> int:
    """Return the address of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


class _Recorder(TorchDispatchMode):
    """Does each operation and keeps it with the tensors it read and made; keeps what it wrote over, too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[Any, Any, Any, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []  # tensors that were there before, and copies of them
        self._own: set[int] = set()
        self._saved: set[int] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        for declared, given in zip(operation._schema.arguments, arguments, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                for tensor in tree_leaves(given):
                    self._save(tensor)
        given = {place_of(tensor) for tensor in tree_leaves((arguments, options)) if isinstance(tensor, Tensor)}
        made = operation(*arguments, **options)
        # What shares its memory with an argument is a view, maybe of a tensor that was there before.
        self._own |= {place_of(tensor) for tensor in tree_leaves(made) if isinstance(tensor, Tensor)} - given
        self.done.append((operation, arguments, options, made))
        return made

    def _save(self, tensor: Tensor) -> None:
        place = place_of(tensor)
        if place not in self._own and place not in self._saved:
            self._saved.add(place)
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self.before.append((whole, whole.clone()))


class RecordedGraph:
    """A graph of the processor's operations."""

    def record(self, work: Callable[[], Made]) -> Made:
        """Record `work`, and take back what it changed."""
        random = torch.get_rng_state()
        with _Recorder() as recorder:
            made = work()
        torch.set_rng_state(random)
        self._done = recorder.done
        with torch.no_grad():
            for whole, before in recorder.before:
                whole.copy_(before)
            for tensor in tree_leaves(made):
                if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.requires_grad:
                    tensor.fill_(torch.nan)  # nothing was computed yet
        return made

    def replay(self) -> None:
        """Do the operations again, in the memory that they had."""
        with torch.no_grad():
            for operation, arguments, options, made in self._done:
                again = operation(*arguments, **options)
                for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.detach().copy_(new)


class LateCopies:
    """Copies that are made when they are waited for, or not at all where nobody waits."""

    def __init__(self) -> None:
        self.made = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    def upload(self, tensors: Sequence[Tensor]) -> _Late:
        return _Late(self, list(tensors))

    def download(self, tensors: Sequence[Tensor]) -> _Late:
        return _Late(self, list(tensors))


class _Late:
    def __init__(self, copies: LateCopies, tensors: list[Tensor]) -> None:
        self._copies, self._tensors, self._asked = copies, tensors, 0

    def use(self) -> list[Tensor]:
        self._copies.made += 1
        return [tensor.clone() for tensor in self._tensors]

    def has_come(self) -> bool:
        self._asked += 1
        return self._asked > 2

    def wait(self) -> list[Tensor]:
        return self.use()


# Each needs a value, or the number of values, before Python can go on; `multinomial` to check its argument.
_WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "is_nonzero",
    "equal",
    "unique",
    "item",
    "repeat_interleave",
    "multinomial",
)


class WaitedError(AssertionError):
    """An operation for whose value a GPU would have been waited for."""


class NothingWaits(TorchDispatchMode):
    """A block in which no operation needs a value."""

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = operation._schema.name.partition("::")[2]
        indices = arguments[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        by_mask = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
        if name in _WAITS or by_mask:
            raise WaitedError(f"{operation} waits for the device")
        return operation(*arguments, **(options or {}))


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Refuse operations that need a value, in this block."""
    with NothingWaits():  # type: ignore[no-untyped-call]
        yield
