"""Lists in a .npy file of objects, which NumPy writes as a pickle: read without executing anything in the file."""

from __future__ import annotations

import io
import pickle
import reprlib
from pathlib import Path
from typing import Any

import numpy as np

from tasks.common.errors import AttendError
from tasks.common.files import check_text

_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")


class _Array:
    """Stands for the array of objects while it is unpickled; NumPy itself is not called."""

    def __init__(self, *_: Any) -> None:
        self.items: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        """Take the items of an array; state: (version, shape, dtype, whether by columns, items)."""
        if isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], list):
            self.items = state[4]


class _Type:
    """Stands for the array's dtype, which says nothing more than `object`."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        """Ignore the state of the dtype."""


_KNOWN: dict[str, Any] = {"_reconstruct": _Array, "ndarray": None, "dtype": _Type}


class _Unpickler(pickle.Unpickler):
    """An unpickler for which no name stands for anything but the two classes above: nothing else can be called."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _KNOWN:
            return _KNOWN[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only lists of texts are read")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to {reprlib.repr(pid)} outside the file")


def read_texts(path: Path) -> list[list[str]]:
    """Return the texts of each row of a .npy file: an array of objects, each a list of texts, or an array of texts.

    Raises AttendError where the file holds anything else.
    """
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            _, _, dtype = read(file)
            if not dtype.hasobject:
                file.seek(0)
                rows = np.load(file, allow_pickle=False).tolist()
            else:
                array = _Unpickler(io.BytesIO(file.read())).load()
                rows = array.items if isinstance(array, _Array) else None
    except Exception as error:  # numpy and pickle raise various errors for a damaged file
        raise AttendError(f"{path}: cannot be read as an array: {' '.join(str(error).split())[:160]}") from None
    if not isinstance(rows, list):
        raise AttendError(f"{path}: holds no rows: an array of lists of texts is needed")
    return [_row(row, f"{path}[{number}]") for number, row in enumerate(rows)]


def _row(row: Any, where: str) -> list[str]:
    """Return the texts of a row. Raises AttendError where it holds anything else."""
    texts = [row] if isinstance(row, str) else row.items if isinstance(row, _Array) else row
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise AttendError(f"{where}: is {reprlib.repr(row)}: a list of texts is needed")
    for text in texts:
        try:
            check_text(text)
        except ValueError as error:
            raise AttendError(f"{where}: {error}") from None
    return list(texts)
