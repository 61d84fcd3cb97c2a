"""Reading the lists in a .npy file of objects, which NumPy writes as a pickle, without executing any code in it."""

from __future__ import annotations

import io
import math
import pickle
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np

from tasks.common.errors import AttendError, reason_of
from tasks.common.files import check_text

_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")


class _Array:
    """A stand-in for an array during unpickling; NumPy itself is not called."""

    shape: tuple[int, ...] = ()
    items: Sequence[Any] = ()  # in the order of rows
    dtype: _Type | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        """Set the items of an array; state: (version, shape, dtype, whether by columns, items or their bytes)."""
        _, self.shape, self.dtype, by_columns, content = state
        items = content if isinstance(content, list) else _texts_of(content, self.dtype)
        if len(self.shape) not in (1, 2) or math.prod(self.shape) != len(items):
            raise pickle.UnpicklingError(f"an array of shape {self.shape} has {len(items)} items")
        if by_columns and len(self.shape) == 2 and not isinstance(content, list):  # a list is always in row order
            rows, columns = self.shape
            items = [items[column * rows + row] for row in range(rows) for column in range(columns)]
        self.items = items

    def rows(self) -> list[Any]:
        """Return the items of a one-dimensional array, or the rows of a two-dimensional one as lists."""
        if len(self.shape) < 2:
            return list(self.items)
        return [list(self.items[row * self.shape[1] : (row + 1) * self.shape[1]]) for row in range(self.shape[0])]


class _Type:
    """A stand-in for the dtype of an array. name: such as `O8` or `U12`."""

    def __init__(self, name: str = "", *_: Any) -> None:
        self.name, self.order = str(name), "<"

    def __setstate__(self, state: Any) -> None:
        """Set the byte order; state: (version, byte order, ...)."""
        self.order = ">" if state[1] == ">" else "<"


def _texts_of(content: Any, dtype: _Type | None) -> list[str]:
    """Return the texts in the bytes of an array of fixed-length texts."""
    if not isinstance(content, bytes) or dtype is None or not dtype.name.startswith("U"):
        raise pickle.UnpicklingError("an array of other items than objects and texts")
    size = 4 * int(dtype.name[1:])
    text = f"utf-32-{'le' if dtype.order == '<' else 'be'}"
    parts = [content[start : start + size] for start in range(0, len(content), size)] if size else []
    return [part.decode(text).rstrip("\0") for part in parts]


def _scalar(dtype: Any, content: Any) -> str:
    """Return the text of a NumPy string scalar."""
    (text,) = _texts_of(content, dtype)
    return text


_KNOWN: dict[str, Any] = {"_reconstruct": _Array, "ndarray": None, "dtype": _Type, "scalar": _scalar}
# The opcodes of pickled lists of texts; none creates objects of other classes, or buffers of a declared length.
_OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "BININT"),
    *("BININT1", "BININT2", "LONG1", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "UNICODE"),
    *("BINUNICODE", "SHORT_BINUNICODE", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
    *("TUPLE2", "TUPLE3", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
    *("GET", "BINGET", "LONG_BINGET"),
)
_Base: Any = pickle._Unpickler  # in Python: the C one allocates memory for any number it reads


class _Unpickler(_Base):  # type: ignore[misc]
    """An unpickler that resolves only the names above, so that nothing else can be called."""

    dispatch: ClassVar[dict[int, Any]] = {
        getattr(pickle, name)[0]: _Base.dispatch[getattr(pickle, name)[0]] for name in _OPCODES
    }

    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _KNOWN:
            return _KNOWN[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only lists of texts are read")


class Header(NamedTuple):
    """The header of a .npy file, which describes its array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_grids(self) -> bool:
        """Return whether the array may hold grids: floats of three or four dimensions."""
        return self.dtype.kind == "f" and len(self.shape) in (3, 4)

    @property
    def is_texts(self) -> bool:
        """Return whether the array may hold a text or a list of texts for each row."""
        return (self.dtype.hasobject or self.dtype.kind == "U") and len(self.shape) in (1, 2)


def array_header(path: Path) -> Header | None:
    """Return the header of a .npy file; None for other files."""
    try:
        with path.open("rb") as file:
            return _header(file)
    except (OSError, ValueError):
        return None


def _header(file: BinaryIO) -> Header:
    """Read the header at the beginning of a .npy file; ValueError if there is none."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return Header(shape, dtype)


def read_texts(path: Path) -> list[list[str]]:
    """Return the texts of each row of a .npy file: an array of objects, each a list of texts, or an array of texts.

    Raises AttendError if the file holds anything else.
    """
    try:
        with path.open("rb") as file:
            if not _header(file).dtype.hasobject:
                file.seek(0)
                rows = np.load(file, allow_pickle=False).tolist()
            else:
                array = _Unpickler(io.BytesIO(file.read())).load()
                rows = array.rows() if isinstance(array, _Array) else None
    except Exception as error:  # numpy and pickle raise various errors for a damaged file
        raise AttendError(f"{path}: cannot be read as an array: {reason_of(error)}") from None
    if not isinstance(rows, list):
        raise AttendError(f"{path}: holds no rows: an array of lists of texts is needed")
    texts = [_row(row, f"{path}[{number}]") for number, row in enumerate(rows)]
    if sum(map(len, texts)) > path.stat().st_size:  # a pickle may refer to one list many times
        raise AttendError(f"{path}: has more texts than bytes: an array of lists of texts is needed")
    return texts


def _row(row: Any, where: str) -> list[str]:
    """Return the texts of a row. Raises AttendError if it holds anything else."""
    texts = [row] if isinstance(row, str) else row.rows() if isinstance(row, _Array) else row
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise AttendError(f"{where}: is {reprlib.repr(row)}: a list of texts is needed")
    for text in texts:
        try:
            check_text(text)
        except ValueError as error:
            raise AttendError(f"{where}: {error}") from None
    return list(texts)
