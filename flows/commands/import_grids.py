"""Grids that others extracted -> the grid cache, under an identity that says so.

They come as .npy (with a file of ids), .npz or HDF5: one 4-D array, and ids that name the pictures of a manifest.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from flows.pipeline import pipeline_of
from tasks.common.errors import AttendError
from tasks.common.progress import Bar
from tasks.config.schema import Config
from tasks.data.manifest import MANIFEST
from tasks.grids.identity import identity_of
from tasks.grids.reader import GridReader
from tasks.grids.store import Grids, GridStore, Row, hdf5_arrays
from tasks.grids.weights import IMPORTED, weight_digests
from tasks.pipeline.plan import artifact, up_to
from tasks.pipeline.run import run_stage
from tasks.pipeline.workspace import Workspace

Layout = Literal["nchw", "nhwc"]


def import_grids(config: Config, file: Path, ids: Path | None = None, layout: Layout | None = None) -> int:
    """Put the grids of `file` into the store of the config's identity; returns how many.

    The config's grids.backbone is `imported` and grids.weights `imported:NAME`. Grids of pictures that the data set
    does not have are left out, and so are those that the store has already: an import that was cut goes on. Refused is
    a grid that is not finite, of another shape than the store's, or another one of a picture than it has.
    """
    if config.grids.backbone != IMPORTED:
        raise AttendError(f"grids.backbone: is {config.grids.backbone!r}: set grids.backbone=imported for such grids")
    identity = identity_of(config.grids, weight_digests(config.grids, config.machine)["weights"])
    ingest = up_to(pipeline_of(config), "ingest")
    run_stage(ingest, "ingest")
    pictures = _by_id(artifact(ingest).path)
    workspace = Workspace(config.workspace)
    store = GridStore(workspace.grids, identity)
    with _opened(file) as (array, own), workspace.lock(f"grids-{identity.digest[:20]}", "imported grids"):
        names = _ids(file, array, own, ids)
        order = _order(file, array, layout)
        store.open()
        store.clean()
        wanted = _wanted(names, pictures, file)
        held = _held(store, wanted)
        with Bar(len(wanted), f"grids of {file.name}", "grids") as bar:
            for at in range(0, len(wanted), config.machine.shard_rows):
                part = wanted[at : at + config.machine.shard_rows]
                grids = [_grid(array, place, order, f"{file}: {names[place]}") for place, _ in part]
                digests = [digest for _, digest in part]
                fresh = _fresh(f"{file}: {config.grids.weights}", held, grids, digests)
                if fresh:
                    chosen = [grids[row] for row in fresh]
                    store.write([grid[None] for grid in chosen], [digests[row] for row in fresh], [(0, 0)] * len(fresh))
                bar.advance(len(part))
    return len(wanted)


def _held(store: GridStore, wanted: list[tuple[int, str]]) -> GridReader:
    """What the store has of the pictures wanted: all that a cut import left, for one."""
    rows, _ = store.rows()
    return GridReader(store, {digest: rows[digest] for _, digest in wanted if digest in rows} or dict(_first(rows)))


def _first(rows: dict[str, Row]) -> list[tuple[str, Row]]:
    return list(rows.items())[:1]  # one tells the shape that all must have


def _fresh(what: str, held: GridReader, grids: list[Grids], digests: list[str]) -> list[int]:
    """The rows that are not in the store yet; AttendError for one that is there with other values or another shape."""
    for grid in grids:
        if held.shape not in ((0, 0, 0), grid.shape):
            raise AttendError(f"{what} holds grids of {held.shape}, these are {grid.shape}: give another name")
    for grid, digest in zip(grids, digests, strict=True):
        if digest in held and not np.array_equal(held.read([digest])[0], grid):
            raise AttendError(f"{what} holds another grid of a picture of this file already: give another name")
    return [row for row, digest in enumerate(digests) if digest not in held]


def _by_id(manifest: Path) -> dict[str, str]:
    """What may name a picture -> its digest: its path, its path without suffix, its stem, the number its stem ends in.

    A short name that two pictures share names neither.
    """
    found: dict[str, str] = {}
    shared: set[str] = set()
    for record in pq.read_table(manifest / MANIFEST, columns=["name", "digest"]).to_pylist():
        path = PurePosixPath(record["name"])
        number = _number(path.stem[len(path.stem.rstrip("0123456789")) :])
        for name in {str(path), str(path.with_suffix("")), path.name, path.stem, number} - {""}:
            if found.setdefault(name, record["digest"]) != record["digest"]:
                shared.add(name)
    return {name: digest for name, digest in found.items() if name not in shared}


def _number(digits: str) -> str:
    """Without leading zeros; empty where they are no digits."""
    return str(int(digits)) if digits.isdecimal() else ""


def _wanted(names: list[str], pictures: dict[str, str], file: Path) -> list[tuple[int, str]]:
    """(place in the array, digest) of every grid whose picture the data set has, each picture once."""
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        digest = pictures.get(name, pictures.get(_number(name)))
        if digest is None:
            continue
        if digest in found and names[found[digest]] == name:
            raise AttendError(f"{file}: {name} is the id of two grids")
        found.setdefault(digest, place)  # of two files with the same content, the first
    if not found:
        raise AttendError(
            f"{file}: none of its {len(names)} ids ({', '.join(names[:3])}, ...) names a picture of the data set: "
            "an id is a picture's path in the image folder, its file name, or the number its name ends in"
        )
    return sorted((place, digest) for digest, place in found.items())


@contextmanager
def _opened(file: Path) -> Iterator[tuple[Any, Any]]:
    """The array, sliceable by row without reading it all where the format allows, and the ids that it holds or None."""
    if not file.is_file():
        raise AttendError(f"{file}: no such file")
    if file.suffix in (".h5", ".hdf5"):
        with _read(file, lambda: hdf5_arrays(file)) as held:
            array, own = _pick(file, held)
            yield array, None if own is None else np.asarray(own)
    elif file.suffix == ".npy":
        yield _read(file, lambda: np.load(file, mmap_mode="r", allow_pickle=False)), None
    elif file.suffix == ".npz":
        yield _pick(file, _read(file, lambda: dict(np.load(file, allow_pickle=False))))
    else:
        raise AttendError(f"{file}: imported grids end in .npy, .npz, .h5 or .hdf5")


def _read(file: Path, reading: Callable[[], Any]) -> Any:
    try:
        return reading()
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise AttendError(f"{file}: not readable: {' '.join(str(error).split())[:160]}") from None


def _pick(file: Path, arrays: dict[str, Any]) -> tuple[Any, Any]:
    grids = [name for name, array in arrays.items() if array.ndim == 4]
    if len(grids) != 1:
        raise AttendError(f"{file}: one array of four dimensions is needed; there are: {', '.join(grids) or 'none'}")
    return arrays[grids[0]], arrays.get("ids")


def _ids(file: Path, array: Any, own: npt.NDArray[Any] | None, given: Path | None) -> list[str]:
    if array.ndim != 4 or array.dtype.kind != "f":
        raise AttendError(f"{file}: is {array.shape} {array.dtype}: N x C x H x W or N x H x W x C floats are needed")
    if given is not None:
        names = _ids_of_file(given)
    elif own is not None:
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in own.tolist()]
    else:
        raise AttendError(f"{file}: holds no `ids`: give them with --ids FILE, one a grid")
    if len(names) != len(array):
        raise AttendError(f"{given or file}: {len(names)} ids for {len(array)} grids")
    return names


def _ids_of_file(path: Path) -> list[str]:
    if not path.is_file():
        raise AttendError(f"--ids: {path}: no such file")
    if path.suffix == ".npy":
        return _read(path, lambda: [str(name) for name in np.load(path, allow_pickle=False).tolist()])  # type: ignore[no-any-return]
    text: str = _read(path, lambda: path.read_text(encoding="utf-8"))
    if path.suffix == ".json":
        return _read(path, lambda: [str(name) for name in json.loads(text)])  # type: ignore[no-any-return]
    return [line.strip() for line in text.splitlines() if line.strip()]


def _order(file: Path, array: Any, layout: Layout | None) -> tuple[int, int, int]:
    """How a row's axes become (h, w, C)."""
    _, first, second, third = array.shape
    if layout is None and (first == second) == (second == third):
        raise AttendError(f"{file}: {array.shape} may be N x C x H x W or N x H x W x C: say --layout nchw or nhwc")
    return (1, 2, 0) if layout == "nchw" or (layout is None and second == third) else (0, 1, 2)


def _grid(array: Any, place: int, order: tuple[int, int, int], where: str) -> npt.NDArray[np.float16]:
    values = np.asarray(array[place], dtype=np.float32).transpose(order)
    if not np.isfinite(values).all():
        raise AttendError(f"{where}: holds values that are not finite")
    top = float(np.finfo(np.float16).max)
    return values.clip(-top, top).astype(np.float16)
