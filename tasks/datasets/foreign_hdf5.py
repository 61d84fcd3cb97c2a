"""Reading other programs' HDF5 files in a separate process, because the HDF5 library may crash on a damaged file."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from tasks.common.errors import AttendError

PATIENCE = 60.0  # seconds for one answer, after which the library is assumed to be in an endless loop


class ForeignArray:
    """An array of a foreign file, whose rows are read on access."""

    def __init__(self, process: _Process, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._process, self._name = process, name
        self.shape, self.dtype = shape, dtype
        self.ndim = len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """Return one row. Raises OSError if it cannot be read."""
        return np.asarray(self._process.ask(self._name, index))


@contextlib.contextmanager
def foreign_arrays(path: Path) -> Iterator[dict[str, ForeignArray]]:
    """Yield name -> array for the top level of an HDF5 file, without reading the arrays.

    Raises OSError if it is not an HDF5 file or crashes the library, and AttendError if the values of an array are in
    another file.
    """
    process = _Process(path)
    try:
        arrays, refusal = process.receive()
        if refusal is not None:
            raise AttendError(refusal)
        yield {name: ForeignArray(process, name, shape, dtype) for name, (shape, dtype) in arrays.items()}
    finally:
        process.stop()


class _Process:
    """The parent's handle of the process that reads a foreign file."""

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share this process's state of the HDF5 library
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(path, theirs), name="foreign-hdf5")
        self._process.start()
        theirs.close()

    def ask(self, name: str, index: int) -> Any:
        """Return a row of an array. Raises OSError as `receive` does."""
        with contextlib.suppress(BrokenPipeError):  # `receive` raises the reason
            self._pipe.send((name, index))
        return self.receive()

    def receive(self) -> Any:
        """Return the next answer. Raises OSError if reading failed, crashed the process, or does not end."""
        try:
            if not self._pipe.poll(PATIENCE):
                raise OSError(f"the HDF5 library found no end in {PATIENCE:.0f} s: the file is damaged")
            value, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise OSError("the HDF5 library crashed: the file is damaged") from None
        if error is not None:
            raise OSError(error)
        return value

    def stop(self) -> None:
        """Kill the process, even if it is busy."""
        self._pipe.close()
        self._process.kill()  # safe, because it only reads
        self._process.join()
        self._process.close()


def _answer(path: Path, pipe: Connection) -> None:
    """Send the arrays of a file, then each requested row. An answer is (value, None) or (None, error)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process, which ends this one
    with pipe, contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(h5py.File(path, "r"))
            pipe.send((_arrays(file, path), None))
            while True:
                name, index = pipe.recv()
                try:
                    pipe.send((file[name][index], None))
                except EOFError:
                    return
                except Exception as error:  # h5py raises various errors for a damaged file
                    pipe.send((None, _text(error)))
        except (EOFError, ConnectionError):
            return  # the parent closed the pipe
        except Exception as error:
            pipe.send((None, _text(error)))


def _arrays(file: h5py.File, path: Path) -> tuple[dict[str, tuple[tuple[int, ...], np.dtype[Any]]], str | None]:
    """Return shape and dtype of each array by name, and a refusal if the values of one are in another file."""
    arrays = {}
    for name in file:
        is_own = isinstance(file.get(name, getlink=True), h5py.HardLink)  # other links are not opened
        item = file[name] if is_own else None
        if not is_own or (isinstance(item, h5py.Dataset) and (item.external or item.is_virtual)):
            return {}, f"{path}: {name}: refers to another file: copy its values into this one"
        if isinstance(item, h5py.Dataset):
            arrays[name] = (item.shape or (), item.dtype)
    return arrays, None


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
