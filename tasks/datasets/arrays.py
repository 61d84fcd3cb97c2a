"""Adapter for precomputed grids without photographs: an array of grids and an array of captions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tasks.common.errors import AttendError, reason_of
from tasks.common.section import NotInKey
from tasks.datasets.base import Row, UnpackedOptions, require_file
from tasks.datasets.faults import REFUSE, Faults

Layout = Literal["nhwc", "nchw", "ncp", "npc"]


class Arrays(UnpackedOptions):
    """Grids in a .npy, .npz or HDF5 file, with their captions in a .npy file of objects: a list of texts per grid."""

    has_grids: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    adapter: Literal["arrays"] = "arrays"
    captions: Annotated[Path, NotInKey()] = Field(
        description=".npy file with the captions of each grid, a list of texts or one text; no code in the file is "
        "executed"
    )
    layout: Layout | None = Field(
        None,
        description="order of the axes of `path`: N grids of `h` x `w` or `p` positions (row by row), with `c` "
        "channels; default: the two axes of equal length are h and w, and the axis whose length is a square number is "
        "p",
    )

    def annotation_files(self) -> list[Path]:
        return [require_file(self.path, "data.path"), require_file(self.captions, "data.captions")]

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        import numpy as np

        from models.given_grids import as_float16  # loads torch
        from tasks.datasets.object_array import read_texts

        file, captions_file = self.annotation_files()
        captions = read_texts(captions_file)
        generated.mkdir(parents=True, exist_ok=True)
        with _opened(file) as array:
            layout = _layout(file, array, self.layout)
            if len(captions) != len(array):
                raise AttendError(f"{captions_file}: has {len(captions):,} rows, but {file} has {len(array):,} grids")
            for number, texts in enumerate(captions):
                where = f"{captions_file}[{number}]"
                with faults.of_row():
                    try:
                        values = as_float16(array[number])
                    except (ValueError, OSError) as error:
                        raise AttendError(f"{file}[{number}]: {error}") from None
                    if not all(text.strip() for text in texts):
                        raise AttendError(f"{where}: a caption is empty")
                    name = f"{number:06d}.npy"
                    np.save(generated / name, np.ascontiguousarray(_positions_first(values, layout)))
                    yield Row(name, tuple(text.strip() for text in texts), None, where)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Yield the array of grids in a file, read row by row if the format allows.

    Raises AttendError if it cannot be read, or does not hold exactly one array of three or four dimensions.
    """
    import numpy as np

    from tasks.datasets.foreign_hdf5 import foreign_arrays

    with contextlib.ExitStack() as stack:
        try:
            if file.suffix.lower() in (".h5", ".hdf5"):
                arrays: dict[str, Any] = stack.enter_context(foreign_arrays(file))
            else:
                loaded = np.load(file, mmap_mode="r", allow_pickle=False)
                is_archive = isinstance(loaded, np.lib.npyio.NpzFile)  # regardless of the file's name
                arrays = dict(stack.enter_context(loaded)) if is_archive else {file.name: loaded}
        except AttendError:
            raise
        except Exception as error:  # numpy and h5py raise various errors for a damaged file
            raise AttendError(f"{file}: cannot be read as an array: {reason_of(error)}") from None
        names = list(arrays) if len(arrays) == 1 else [name for name in arrays if arrays[name].ndim in (3, 4)]
        if len(names) != 1:
            listed_names = ", ".join(names) or "none"
            raise AttendError(f"{file}: one array of three or four dimensions is needed; there are: {listed_names}")
        yield arrays[names[0]]


def _layout(file: Path, array: Any, layout_setting: Layout | None) -> Layout:
    """Return the order of an array's axes. Raises AttendError if it holds no grids, or the order is ambiguous."""
    shape = array.shape
    if array.dtype.kind != "f" or array.ndim not in (3, 4) or not all(shape):
        raise AttendError(
            f"{file}: is {shape} {array.dtype}: floats, (N, h, w, C), (N, C, h, w) or (N, C, h * w), are needed"
        )
    fits: dict[Layout, bool]
    if array.ndim == 4:
        fits = {"nhwc": shape[1] == shape[2], "nchw": shape[2] == shape[3]}
    else:
        fits = {"ncp": _is_square(shape[2]), "npc": _is_square(shape[1])}
    possible = [layout for layout, is_possible in fits.items() if is_possible]
    if layout_setting is not None:
        if layout_setting not in fits or (array.ndim == 3 and layout_setting not in possible):
            raise AttendError(
                f"data.layout: {layout_setting} is not possible for {shape}: the positions of a grid form a square"
            )
        return layout_setting
    # In (N, 257, 1024), a ViT's tokens including the class token, 1,024 is a square, but not the number of positions.
    has_more_positions = (possible == ["ncp"] and shape[2] > shape[1]) or (possible == ["npc"] and shape[1] > shape[2])
    if len(possible) != 1 or has_more_positions:
        advice = "" if array.ndim == 4 else "; tokens that are no positions, such as a ViT's class token, are left out"
        raise AttendError(f"{file}: the axes of {shape} are not clear: set data.layout to {' or '.join(fits)}{advice}")
    return possible[0]


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def _positions_first(values: Any, layout: Layout) -> Any:
    """Return one grid as (h, w, C)."""
    if layout in ("nhwc", "nchw"):
        return values if layout == "nhwc" else values.transpose(1, 2, 0)
    rows = values.T if layout == "ncp" else values  # (positions, C)
    side = math.isqrt(len(rows))
    return rows.reshape(side, side, -1)
