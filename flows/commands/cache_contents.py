"""List what the workspace holds and who needs it, and remove the rest.

An item is needed if a run of some name last made it or is working on it, if a registered version was made from it, or
if it is a grid that one of their indexes names. Everything else belongs to settings and pictures that are no longer
used, and could be made again.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from tasks.common.errors import AttendError, suggestion
from tasks.grids.index import indexed_digests, read_identity, reindex
from tasks.grids.reader import GridReader
from tasks.grids.store import Grids, GridStore, Row, folder_size, remove_shard, stores
from tasks.pipeline.ledger import Artifact, Ledger
from tasks.pipeline.stage import kind_of
from tasks.pipeline.workspace import LastRun, Workspace
from tasks.registry.tracking import lost_registration, registered_uri

_REMOVED = ".removed-"
_INDEXED = ("extract", "views")  # stages whose artifacts hold an index of grids


@dataclass(frozen=True)
class Item:
    """A file or folder of the workspace, with its size and its users.

    what: a description. size: in bytes. needed_by: names of runs and addresses of registered versions; empty where
    nobody needs it. unneeded: in a shard that somebody needs, the number of grids that nobody needs.
    """

    what: str
    path: Path
    size: int
    needed_by: tuple[str, ...]
    unneeded: int = 0


def usage(workspace: Workspace, without: Collection[str] = ()) -> list[Item]:
    """Return every artifact and shard, and what killed runs and damage left behind, with sizes and users.

    without: names of runs whose needs do not count. Raises AttendError where no run has such a name.
    """
    runs = _runs(workspace)
    for name in without:
        if name not in runs:
            raise AttendError(f"--forget: {name}: no run has this name{suggestion(name, runs)}")
    runs = {name: recent for name, recent in runs.items() if name not in without}
    needed = _needed(workspace, runs)
    return [*_artifact_items(workspace, needed), *_grid_items(workspace, needed, runs)]


def prune(workspace: Workspace, items: Iterable[Item], without: Collection[str] = ()) -> None:
    """Remove items that nobody needs, and forget the runs named in `without`.

    The caller must be alone in the workspace.
    """
    for name in without:
        (workspace.root / "runs" / f"{name}.json").unlink(missing_ok=True)
    for item in items:
        assert not item.needed_by
        if item.path.suffix == ".h5":
            remove_shard(item.path)
        elif item.path.is_dir():
            # Renamed first, so that a kill never leaves half an artifact under its name.
            renamed = item.path.with_name(f"{_REMOVED}{item.path.name}")
            item.path.rename(renamed)
            shutil.rmtree(renamed)
        else:
            item.path.unlink(missing_ok=True)
    workspace.trust(path for path in workspace.suspects() if not path.exists())


def compact(workspace: Workspace, shard_rows: int) -> tuple[int, int]:
    """Rewrite the shards that hold unneeded grids, without those grids. Returns the shard counts before and after.

    A kill at any moment may leave grids stored twice, but loses none. The caller must be alone in the workspace.
    Raises AttendError while an extraction is not finished: which grids it needs is not known yet.
    """
    runs = _runs(workspace)
    unfinished = _unfinished_extractions(runs)
    if unfinished:
        raise AttendError(f"{workspace.root}: the extraction of {', '.join(unfinished)} is not finished: run it first")
    needed = _needed(workspace, runs)
    before = after = 0
    for store in stores(workspace.grids):
        store.clean(workspace.suspects())
        live = {digest for artifact, _ in _indexes(workspace, store, needed) for digest in indexed_digests(artifact)}
        shards = store.shards()
        before += len(shards)
        old = _rewrite(store, live, shard_rows)
        if old:
            rows, _ = store.rows(without=old)
            for artifact, _ in _indexes(workspace, store, None):
                if all(digest in rows for digest in indexed_digests(artifact)):
                    reindex(workspace, artifact, store, rows)
            for shard in shards:
                if shard.number in old:
                    remove_shard(shard.path)
        after += len(store.shards())
    return before, after


def _rewrite(store: GridStore, live: Collection[str], shard_rows: int) -> set[int]:
    """Copy the live rows of shards that also hold other rows into new shards. Returns the numbers of the old shards.

    live: digests of the pictures whose grids are needed. The old shards are still on disk: the caller holds the
    store's lock, and removes them once nobody reads them.
    """
    written: set[str] = set()  # digests of the live grids that stay or have been copied
    old = []
    for shard in store.shards():
        if all(digest in live for digest in shard.digests) and written.isdisjoint(shard.digests):
            written.update(shard.digests)
        else:
            old.append(shard)
    rows: list[tuple[Grids, str, tuple[int, int]]] = []
    for shard in old:
        sizes = pq.read_table(shard.path.with_suffix(".parquet"), columns=["width", "height"]).to_pylist()
        reader = GridReader(store, {digest: Row(shard.number, row) for row, digest in enumerate(shard.digests)})
        for digest, size in zip(shard.digests, sizes, strict=True):
            if digest in live and digest not in written:
                written.add(digest)
                rows.append((reader.read([digest])[0], digest, (size["width"], size["height"])))
            if len(rows) == shard_rows:
                _write_rows(store, rows)
                rows = []
    if rows:
        _write_rows(store, rows)
    return {shard.number for shard in old}


def _write_rows(store: GridStore, rows: list[tuple[Grids, str, tuple[int, int]]]) -> None:
    """Write one shard. rows: (grid, digest, (width, height)) of each picture."""
    store.write([grid[None] for grid, _, _ in rows], [digest for _, digest, _ in rows], [size for _, _, size in rows])


def _runs(workspace: Workspace) -> dict[str, LastRun]:
    """Return, by run name, what the run of that name did last."""
    return {path.stem: workspace.last_run(path.stem) for path in sorted((workspace.root / "runs").glob("*.json"))}


def _needed(workspace: Workspace, runs: dict[str, LastRun]) -> dict[Path, set[str]]:
    """Return, by artifact folder, the runs and registered versions that need it."""
    needed: dict[Path, set[str]] = defaultdict(set)
    for name, recent in runs.items():
        for stage, key in recent.done.items():
            _mark_needed(workspace, needed, kind_of(stage), key, name)
        for stage, key in recent.begun.items():
            needed[workspace.partial(kind_of(stage), key)].add(name)
    for artifact in _artifacts_of_kind(workspace, "register"):
        if lost_registration(artifact, workspace) is None:
            _mark_needed(workspace, needed, "register", artifact.ledger.key, registered_uri(artifact))
    return needed


def _mark_needed(workspace: Workspace, needed: dict[Path, set[str]], kind: str, key: str, user: str) -> None:
    """Add `user` to the users of an artifact, and of all artifacts that it was made from."""
    folder = workspace.folder(kind, key)
    if user in needed[folder]:
        return
    needed[folder].add(user)
    artifact = workspace.find(kind, key)
    if artifact is not None:
        for upstream, made_from in artifact.ledger.made_from.items():
            _mark_needed(workspace, needed, upstream, made_from, user)


def _artifacts_of_kind(workspace: Workspace, kind: str) -> Iterator[Artifact]:
    """Yield the finished artifacts of a kind of stage."""
    for folder in sorted((workspace.root / "artifacts" / kind).glob("*")):
        ledger = Ledger.read(folder)
        if ledger is not None and folder.name == ledger.key[:20]:
            yield Artifact(folder, ledger)


def _artifact_items(workspace: Workspace, needed: dict[Path, set[str]]) -> Iterator[Item]:
    """Yield an item for every folder of an artifact, finished or not."""
    for folder in sorted((workspace.root / "artifacts").glob("*/*")):
        kind, size, users = folder.parent.name, folder_size(folder), tuple(sorted(needed.get(folder, ())))
        if folder.suffix == ".partial":
            yield Item(f"{kind}, not finished", folder, size, users)
        elif Ledger.read(folder) is None:
            yield Item(f"{kind}, without a ledger", folder, size, ())
        else:
            yield Item(kind, folder, size, users)


def _unfinished_extractions(runs: dict[str, LastRun]) -> list[str]:
    """Return the names of the runs that began an extraction and have not finished it."""
    return [
        name
        for name, recent in runs.items()
        if any(recent.done.get(stage) != key for stage, key in recent.begun.items() if kind_of(stage) in _INDEXED)
    ]


def _grid_items(workspace: Workspace, needed: dict[Path, set[str]], runs: dict[str, LastRun]) -> Iterator[Item]:
    """Yield an item for every shard, and for every file that was set aside as damaged."""
    unfinished = {f"{name} (its extraction is not finished)" for name in _unfinished_extractions(runs)}
    for store in stores(workspace.grids):
        users_of_grid: dict[str, set[str]] = defaultdict(set)
        for artifact, users in _indexes(workspace, store, needed):
            for digest in indexed_digests(artifact):
                users_of_grid[digest] |= users
        for shard in store.shards():
            live = [users_of_grid[digest] for digest in shard.digests if digest in users_of_grid]
            users = unfinished.union(*live)
            size = shard.record.size + shard.path.with_suffix(".parquet").stat().st_size
            unneeded = len(shard.digests) - len(live) if users else 0
            yield Item(f"grids of {store.identity.backbone}", shard.path, size, tuple(sorted(users)), unneeded)
        for path in sorted(store.folder.glob("*.damaged")):
            yield Item(f"grids of {store.identity.backbone}, set aside", path, path.stat().st_size, ())


def _indexes(
    workspace: Workspace, store: GridStore, needed: dict[Path, set[str]] | None
) -> Iterator[tuple[Artifact, set[str]]]:
    """Yield the needed artifacts that hold an index of the store, with their users.

    Where `needed` is None, yields all artifacts with such an index, each with an empty set of users.
    """
    for artifact in (artifact for kind in _INDEXED for artifact in _artifacts_of_kind(workspace, kind)):
        if read_identity(artifact) == store.identity and (needed is None or needed.get(artifact.path)):
            yield artifact, set() if needed is None else needed[artifact.path]
