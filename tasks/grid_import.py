"""Grids that others extracted -> the grid cache, under an identity that says so.

They come as .npy (with a file of ids), .npz or HDF5: one 4-D array, and ids that name the pictures of a manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tasks.config import Config
from tasks.errors import AttendError
from tasks.features import identity_of
from tasks.grid_cache import GridStore
from tasks.ledger import Workspace
from tasks.manifest import MANIFEST
from tasks.progress import Bar
from tasks.stages import artifact, run_stage
from tasks.weights import IMPORTED, weight_digests

Layout = Literal["nchw", "nhwc"]


def import_grids(config: Config, file: Path, ids: Path | None = None, layout: Layout | None = None) -> int:
    """Put the grids of `file` into the store of the config's identity; returns how many.

    The config's grids.backbone is `imported` and grids.weights `imported:NAME`. Grids of pictures that the data set
    does not have are left out; one that the store has already is refused, as is a grid that is not finite.
    """
    if config.grids.backbone != IMPORTED:
        raise AttendError(f"grids.backbone: is {config.grids.backbone!r}: set grids.backbone=imported for such grids")
    identity = identity_of(config.grids, weight_digests(config)["weights"])
    run_stage(config, "ingest")
    pictures = _by_id(artifact(config, "ingest", until="ingest").path)
    workspace = Workspace(config.workspace)
    store = GridStore(workspace.grids, identity)
    with _opened(file, ids) as (array, names), workspace.lock(f"grids-{identity.digest[:20]}", "imported grids"):
        order = _order(file, array, layout)
        store.open()
        store.clean()
        wanted = _wanted(names, pictures, file)
        held, _ = store.rows()
        twice = next((names[place] for place, digest in wanted if digest in held), None)
        if twice is not None:
            raise AttendError(f"{file}: {twice}: {config.grids.weights} holds a grid of it already: give another name")
        with Bar(len(wanted), f"grids of {file.name}", "grids") as bar:
            for at in range(0, len(wanted), config.machine.shard_rows):
                part = wanted[at : at + config.machine.shard_rows]
                grids = np.stack([_grid(array, place, order, f"{file}: {names[place]}") for place, _ in part])
                store.write(grids, [digest for _, digest in part], [(0, 0)] * len(part))
                bar.advance(len(part))
    return len(wanted)


def _by_id(manifest: Path) -> dict[str, str]:
    """What may name a picture -> its digest: its path, its path without suffix, its stem, the number its stem ends in.

    A short name that two pictures share names neither.
    """
    found: dict[str, str] = {}
    shared: set[str] = set()
    for record in pq.read_table(manifest / MANIFEST, columns=["name", "digest"]).to_pylist():
        path = PurePosixPath(record["name"])
        number = path.stem[len(path.stem.rstrip("0123456789")) :]
        for name in {str(path), str(path.with_suffix("")), path.name, path.stem, number.lstrip("0") or number} - {""}:
            if found.setdefault(name, record["digest"]) != record["digest"]:
                shared.add(name)
    return {name: digest for name, digest in found.items() if name not in shared}


def _wanted(names: list[str], pictures: dict[str, str], file: Path) -> list[tuple[int, str]]:
    """(place in the array, digest) of every grid whose picture the data set has, each picture once."""
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        digest = pictures.get(name, pictures.get(name.lstrip("0")))
        if digest is not None and found.setdefault(digest, place) != place:
            raise AttendError(f"{file}: {names[found[digest]]} and {name} are grids of the same picture")
    if not found:
        raise AttendError(
            f"{file}: none of its {len(names)} ids ({', '.join(names[:3])}, ...) names a picture of the data set: "
            "an id is a picture's path in the image folder, its file name, or the number its name ends in"
        )
    return sorted((place, digest) for digest, place in found.items())


@contextmanager
def _opened(file: Path, ids: Path | None) -> Iterator[tuple[Any, list[str]]]:
    """The array, sliceable by row without reading it all where the format allows, and the ids."""
    if not file.is_file():
        raise AttendError(f"{file}: no such file")
    try:
        if file.suffix == ".npy":
            array, own = np.load(file, mmap_mode="r", allow_pickle=False), None
            yield array, _ids(file, array, own, ids)
        elif file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as held:
                array, own = _pick(file, {name: held[name] for name in held.files})
            yield array, _ids(file, array, own, ids)
        elif file.suffix in (".h5", ".hdf5"):
            import h5py

            with h5py.File(file, "r") as held:
                array, own = _pick(file, {name: held[name] for name in held if isinstance(held[name], h5py.Dataset)})
                yield array, _ids(file, array, None if own is None else np.asarray(own), ids)
        else:
            raise AttendError(f"{file}: imported grids end in .npy, .npz, .h5 or .hdf5")
    except (OSError, ValueError) as error:
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
        return [str(name) for name in np.load(path, allow_pickle=False).tolist()]
    if path.suffix == ".json":
        return [str(name) for name in json.loads(path.read_text(encoding="utf-8"))]
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


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
