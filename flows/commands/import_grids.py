"""Import grids that another program extracted into the grid cache, under an identity that marks them as imported.

A file of grids is .npy (with a separate file of ids), .npz or HDF5. It holds one 4-D array, and ids that name pictures
of a manifest.
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from flows.pipeline import build_pipeline
from models.given_grids import as_float16
from tasks.common.errors import AttendError
from tasks.common.progress import Bar
from tasks.config.schema import Config
from tasks.data.manifest import MANIFEST
from tasks.datasets.documents import parse_text
from tasks.grids.foreign_hdf5 import foreign_arrays
from tasks.grids.identity import identity_of
from tasks.grids.reader import GridReader
from tasks.grids.store import Grids, GridStore
from tasks.grids.weights import IMPORTED, weight_digests
from tasks.pipeline.plan import artifact, up_to
from tasks.pipeline.run import run_stage
from tasks.pipeline.workspace import Workspace

Layout = Literal["nchw", "nhwc"]


def import_grids(config: Config, file: Path, ids: Path | None = None, layout: Layout | None = None) -> int:
    """Put the grids of `file` into the store of the config's identity. Returns how many grids of the file it now holds.

    The config's grids.backbone must be `imported` and its grids.weights `imported:NAME`. Grids of pictures that the
    data set does not have are left out, and so are grids that the store has already, so that an interrupted import
    continues. Raises AttendError for a grid that is not finite, that has another shape than the store's, or that
    differs from the grid that the store has of the same picture.
    """
    if config.grids.backbone != IMPORTED:
        raise AttendError(f"grids.backbone: is {config.grids.backbone!r}: set grids.backbone=imported to import grids")
    identity = identity_of(config.grids, weight_digests(config.grids, config.machine)["weights"])
    ingest = up_to(build_pipeline(config), "ingest")
    run_stage(ingest, "ingest")
    digests_by_id = _digests_by_id(artifact(ingest).path)
    workspace = Workspace(config.workspace)
    store = GridStore(workspace.grids, identity)
    with _open_grids(file) as (array, file_ids), workspace.lock(f"grids-{identity.digest[:20]}", "imported grids"):
        names = _ids(file, array, file_ids, ids)
        axes = _axes_to_hwc(file, array, layout)
        store.open()
        store.clean()
        selected = _select(names, digests_by_id, file)
        stored = _stored_grids(store, [digest for _, digest in selected])
        with Bar(len(selected), f"grids of {file.name}", "grids") as bar:
            for start in range(0, len(selected), config.machine.shard_rows):
                part = selected[start : start + config.machine.shard_rows]
                grids = [_grid(array, index, axes, f"{file}: {names[index]}") for index, _ in part]
                digests = [digest for _, digest in part]
                new = _new_rows(f"{file}: {config.grids.weights}", stored, grids, digests)
                if new:
                    sizes = [(0, 0)] * len(new)  # the photographs' sizes are not known
                    store.write([grids[row][None] for row in new], [digests[row] for row in new], sizes)
                bar.advance(len(part))
    return len(selected)


def _stored_grids(store: GridStore, digests: list[str]) -> GridReader:
    """Return a reader of the grids that the store already has of these pictures."""
    rows, _ = store.rows()
    stored = {digest: rows[digest] for digest in digests if digest in rows}
    if not stored:
        stored = dict(itertools.islice(rows.items(), 1))  # the reader learns from one the shape that all must have
    return GridReader(store, stored)


def _new_rows(where: str, stored: GridReader, grids: list[Grids], digests: list[str]) -> list[int]:
    """Return the indices of the grids that are not in the store yet.

    where: the file and the name of the import, for messages. Raises AttendError for a grid of another shape than the
    store's, or one that is in the store with other values.
    """
    for grid in grids:
        if stored.shape not in ((0, 0, 0), grid.shape):
            raise AttendError(
                f"{where} holds grids of {stored.shape}, but these are {grid.shape}: give another imported:NAME"
            )
    for grid, digest in zip(grids, digests, strict=True):
        if digest in stored and not np.array_equal(stored.read([digest])[0], grid):
            raise AttendError(
                f"{where} already holds another grid of a picture in this file: give another imported:NAME"
            )
    return [row for row, digest in enumerate(digests) if digest not in stored]


def _digests_by_id(manifest: Path) -> dict[str, str]:
    """Return the digest of the picture that each id may name.

    An id is a picture's path, its path without the suffix, its file name, its stem, or the number that its stem ends
    in. An id that two pictures share names neither.
    """
    digests: dict[str, str] = {}
    shared: set[str] = set()
    for record in pq.read_table(manifest / MANIFEST, columns=["name", "digest"]).to_pylist():
        path = PurePosixPath(record["name"])
        number = _without_leading_zeros(path.stem[len(path.stem.rstrip("0123456789")) :])
        for name in {str(path), str(path.with_suffix("")), path.name, path.stem, number} - {""}:
            if digests.setdefault(name, record["digest"]) != record["digest"]:
                shared.add(name)
    return {name: digest for name, digest in digests.items() if name not in shared}


def _without_leading_zeros(digits: str) -> str:
    """Return a number's digits without leading zeros; an empty string where the text is not all digits."""
    return (digits.lstrip("0") or "0") if digits.isascii() and digits.isdecimal() else ""


def _select(names: list[str], digests_by_id: dict[str, str], file: Path) -> list[tuple[int, str]]:
    """Return (index in the array, digest) of every grid whose picture the data set has, each picture once.

    Raises AttendError where two grids have the same id, or where the data set has none of the pictures.
    """
    indices: dict[str, int] = {}
    for index, name in enumerate(names):
        digest = digests_by_id.get(name, digests_by_id.get(_without_leading_zeros(name)))
        if digest is None:
            continue
        if digest in indices and names[indices[digest]] == name:
            raise AttendError(f"{file}: {name} is the id of two grids")
        indices.setdefault(digest, index)  # of two pictures with the same content, the first
    if not indices:
        raise AttendError(
            f"{file}: none of its {len(names)} ids ({', '.join(names[:3])}, ...) names a picture of the data set: "
            "an id is a picture's path in the image folder, its file name, or the number its name ends in"
        )
    return sorted((index, digest) for digest, index in indices.items())


@contextmanager
def _open_grids(file: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the array of grids and the ids that the file holds, or None.

    The array can be sliced by row; where the format allows, without reading all of it.
    """
    if not file.is_file():
        raise AttendError(f"{file}: no such file")
    if file.suffix in (".h5", ".hdf5"):
        with ExitStack() as stack:
            arrays = _read(file, lambda: stack.enter_context(foreign_arrays(file)))
            array, ids = _grids_and_ids(file, arrays)
            if ids is not None and ids.shape != array.shape[:1]:  # compared first: they may be more than memory holds
                raise AttendError(f"{file}: {ids.size} ids for {array.shape[0]} grids: give one id for each grid")
            yield array, None if ids is None else _read(file, ids.whole)
    elif file.suffix == ".npy":
        yield _read(file, lambda: np.load(file, mmap_mode="r", allow_pickle=False)), None
    elif file.suffix == ".npz":
        yield _grids_and_ids(file, _read(file, lambda: dict(np.load(file, allow_pickle=False))))
    else:
        raise AttendError(f"{file}: is of no known format: give a file of grids that ends in .npy, .npz, .h5 or .hdf5")


def _read(where: Path | str, reader: Callable[[], Any]) -> Any:
    """Return what `reader` returns. Raises AttendError, with the file's name, where it cannot read the file.

    where: the file, or a grid in it.
    """
    try:
        return reader()
    except AttendError:
        raise
    except Exception as error:  # numpy, h5py and zipfile raise various errors for a damaged file
        raise AttendError(f"{where}: not readable: {' '.join(str(error).split())[:160]}") from None


def _grids_and_ids(file: Path, arrays: dict[str, Any]) -> tuple[Any, Any]:
    """Return the only 4-D array of a file, and its array `ids` or None. Raises AttendError without exactly one."""
    grids = [name for name, array in arrays.items() if array.ndim == 4]
    if len(grids) != 1:
        raise AttendError(f"{file}: one array of four dimensions is needed; there are: {', '.join(grids) or 'none'}")
    return arrays[grids[0]], arrays.get("ids")


def _ids(file: Path, array: Any, file_ids: npt.NDArray[Any] | None, ids: Path | None) -> list[str]:
    """Return the id of each grid, from the file `ids` where that is given, otherwise from the file of grids.

    Raises AttendError where the array holds no grids, or where there is not one id for each.
    """
    if array.ndim != 4 or array.dtype.kind != "f":
        raise AttendError(f"{file}: is {array.shape} {array.dtype}: N x C x H x W or N x H x W x C floats are needed")
    if ids is not None:
        names = _ids_of_file(ids)
    elif file_ids is not None:
        names = _texts(file, _read(file, file_ids.tolist))
    else:
        raise AttendError(f"{file}: holds no `ids`: give them with --ids FILE, one for each grid")
    if len(names) != len(array):
        raise AttendError(f"{ids or file}: {len(names)} ids for {len(array)} grids: give one id for each grid")
    return names


def _texts(path: Path, ids: Any) -> list[str]:
    """Return ids as texts. Raises AttendError where they are no list of texts and whole numbers."""
    if not isinstance(ids, list):
        raise AttendError(f"{path}: ids: are no list")
    texts = [id_.decode(errors="replace") if isinstance(id_, bytes) else id_ for id_ in ids]
    for number, text in enumerate(texts):
        if not isinstance(text, str | int) or isinstance(text, bool):
            raise AttendError(f"{path}: ids[{number}]: is {reprlib.repr(text)}: an id is a text or a whole number")
    return list(map(str, texts))


def _ids_of_file(path: Path) -> list[str]:
    """Return the ids in a .npy file, a JSON list, or a text file with one id a line."""
    if not path.is_file():
        raise AttendError(f"--ids: {path}: no such file")
    if path.suffix == ".npy":
        return _texts(path, _read(path, lambda: np.load(path, allow_pickle=False).tolist()))
    text: str = _read(path, lambda: path.read_text(encoding="utf-8-sig"))
    if path.suffix == ".json":
        return _texts(path, parse_text(text, path))
    return [line.strip() for line in text.splitlines() if line.strip()]


def _axes_to_hwc(file: Path, array: Any, layout: Layout | None) -> tuple[int, int, int]:
    """Return the order of a row's axes that makes it (H, W, C), as `transpose` takes it.

    Without a layout, neighbouring axes of equal length are H and W. Raises AttendError where both or no pairs of
    neighbouring axes are equal.
    """
    _, first, second, third = array.shape
    if layout is None and (first == second) == (second == third):
        raise AttendError(f"{file}: {array.shape} may be N x C x H x W or N x H x W x C: add --layout nchw or nhwc")
    return (1, 2, 0) if layout == "nchw" or (layout is None and second == third) else (0, 1, 2)


def _grid(array: Any, index: int, axes: tuple[int, int, int], where: str) -> npt.NDArray[np.float16]:
    """Return one grid as (H, W, C) float16, clipped to that type's range.

    where: the file and the grid's id, for messages. Raises AttendError where a value is not finite.
    """
    values: npt.NDArray[np.float32] = _read(where, lambda: np.asarray(array[index], dtype=np.float32)).transpose(axes)
    try:
        return as_float16(values)
    except ValueError as error:
        raise AttendError(f"{where}: {error}") from None
