"""What the workspace holds, who needs it, and how to be rid of the rest.

Needed is what a run of some name last made or works on, what a registered version was made from, and the grids that
their indexes name. Everything else came of settings and pictures that are gone, and could be made again.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from tasks.common.errors import AttendError, nearest
from tasks.grids.index import INDEX, read_identity, reindex
from tasks.grids.reader import GridReader
from tasks.grids.store import Grids, GridStore, Row, bytes_in, remove_shard, stores
from tasks.pipeline.ledger import Artifact, Ledger
from tasks.pipeline.stage import kind_of
from tasks.pipeline.workspace import Recent, Workspace
from tasks.registry.tracking import lost_registration, registered_as

_REMOVED = ".removed-"
_INDEXED = ("extract", "views")  # stages whose artifacts say where grids lie


@dataclass(frozen=True)
class Item:
    """Something on disk, and its bytes.

    needed_by: runs by name, registered versions by address; nobody where it is empty. unneeded: of a shard that
    somebody needs, the grids in it that nobody does.
    """

    what: str
    path: Path
    size: int
    needed_by: tuple[str, ...]
    unneeded: int = 0


def usage(workspace: Workspace, without: Collection[str] = ()) -> list[Item]:
    """Every artifact, every shard, and what killed runs and damage left; bytes of each, and who needs it.

    without: names of runs whose needs do not count. AttendError where no run has such a name.
    """
    runs = _runs(workspace)
    for name in without:
        if name not in runs:
            raise AttendError(f"--forget: {name}: no run has this name{nearest(name, runs)}")
    runs = {name: recent for name, recent in runs.items() if name not in without}
    needed = _needed(workspace, runs)
    return [*_artifacts(workspace, needed), *_grids(workspace, needed, runs)]


def prune(workspace: Workspace, items: Iterable[Item], without: Collection[str] = ()) -> None:
    """Remove items that nobody needs but runs to be forgotten. The caller is alone in the workspace."""
    for name in without:
        (workspace.root / "runs" / f"{name}.json").unlink(missing_ok=True)
    for item in items:
        assert not item.needed_by
        if item.path.suffix == ".h5":
            remove_shard(item.path)
        elif item.path.is_dir():
            # Renamed first: an artifact is there whole, or not at all.
            gone = item.path.with_name(f"{_REMOVED}{item.path.name}")
            item.path.rename(gone)
            shutil.rmtree(gone)
        else:
            item.path.unlink(missing_ok=True)
    workspace.trust(path for path in workspace.suspects() if not path.exists())


def compact(workspace: Workspace, shard_rows: int) -> tuple[int, int]:
    """Rewrite the shards that hold grids nobody needs without them; (shards before, shards after).

    A kill at any moment leaves grids twice, and none out of reach. The caller is alone in the workspace.
    AttendError while an extraction is not finished: which grids it needs is not known yet.
    """
    runs = _runs(workspace)
    unfinished = _extracting(runs)
    if unfinished:
        raise AttendError(f"{workspace.root}: the extraction of {', '.join(unfinished)} is not finished: run it first")
    needed = _needed(workspace, runs)
    before = after = 0
    for store in stores(workspace.grids):
        store.clean(workspace.suspects())
        live = {digest for artifact, _ in _indexes(workspace, store, needed) for digest in _digests(artifact)}
        shards = store.shards()
        before += len(shards)
        old = _rewrite(store, live, shard_rows)
        if old:
            rows, _ = store.rows(without=old)
            for artifact, _ in _indexes(workspace, store, None):
                if all(digest in rows for digest in _digests(artifact)):
                    reindex(workspace, artifact, store, rows)
            for shard in shards:
                if shard.number in old:
                    remove_shard(shard.path)
        after += len(store.shards())
    return before, after


def _rewrite(store: GridStore, live: Collection[str], shard_rows: int) -> set[int]:
    """Write the live rows of shards that hold others too to new shards; the numbers of the old ones, still there.

    live: digests. The caller holds the store's lock, and removes the old ones once nobody reads them.
    """
    kept: set[str] = set()
    old = []
    for shard in store.shards():
        if all(digest in live for digest in shard.digests) and kept.isdisjoint(shard.digests):
            kept.update(shard.digests)
        else:
            old.append(shard)
    rows: list[tuple[Grids, str, tuple[int, int]]] = []
    for shard in old:
        sizes = pq.read_table(shard.path.with_suffix(".parquet"), columns=["width", "height"]).to_pylist()
        reader = GridReader(store, {digest: Row(shard.number, row) for row, digest in enumerate(shard.digests)})
        for digest, size in zip(shard.digests, sizes, strict=True):
            if digest in live and digest not in kept:
                kept.add(digest)
                rows.append((reader.read([digest])[0], digest, (size["width"], size["height"])))
            if len(rows) == shard_rows:
                _write_rows(store, rows)
                rows = []
    if rows:
        _write_rows(store, rows)
    return {shard.number for shard in old}


def _write_rows(store: GridStore, rows: list[tuple[Grids, str, tuple[int, int]]]) -> None:
    store.write([grid[None] for grid, _, _ in rows], [row[1] for row in rows], [row[2] for row in rows])


def _runs(workspace: Workspace) -> dict[str, Recent]:
    """Name -> what the run of that name did last."""
    return {path.stem: workspace.recent(path.stem) for path in sorted((workspace.root / "runs").glob("*.json"))}


def _needed(workspace: Workspace, runs: dict[str, Recent]) -> dict[Path, set[str]]:
    """Folder of an artifact -> who needs it."""
    needed: dict[Path, set[str]] = defaultdict(set)
    for name, recent in runs.items():
        for stage, key in recent.done.items():
            _need(workspace, needed, kind_of(stage), key, name)
        for stage, key in recent.begun.items():
            needed[workspace.partial(kind_of(stage), key)].add(name)
    for artifact in _kind(workspace, "register"):
        if lost_registration(artifact, workspace) is None:
            _need(workspace, needed, "register", artifact.ledger.key, registered_as(artifact))
    return needed


def _need(workspace: Workspace, needed: dict[Path, set[str]], kind: str, key: str, who: str) -> None:
    """It, and all that it was made from."""
    folder = workspace.folder(kind, key)
    if who in needed[folder]:
        return
    needed[folder].add(who)
    artifact = workspace.find(kind, key)
    if artifact is not None:
        for upstream, made_from in artifact.ledger.made_from.items():
            _need(workspace, needed, upstream, made_from, who)


def _kind(workspace: Workspace, kind: str) -> Iterator[Artifact]:
    for folder in sorted((workspace.root / "artifacts" / kind).glob("*")):
        ledger = Ledger.read(folder)
        if ledger is not None and folder.name == ledger.key[:20]:
            yield Artifact(folder, ledger)


def _artifacts(workspace: Workspace, needed: dict[Path, set[str]]) -> Iterator[Item]:
    for folder in sorted((workspace.root / "artifacts").glob("*/*")):
        kind, size, who = folder.parent.name, bytes_in(folder), tuple(sorted(needed.get(folder, ())))
        if folder.suffix == ".partial":
            yield Item(f"{kind}, not finished", folder, size, who)
        elif Ledger.read(folder) is None:
            yield Item(f"{kind}, without a ledger", folder, size, ())
        else:
            yield Item(kind, folder, size, who)


def _extracting(runs: dict[str, Recent]) -> list[str]:
    """The runs that began to extract and have not come to an index."""
    return [
        name
        for name, recent in runs.items()
        if any(recent.done.get(stage) != key for stage, key in recent.begun.items() if kind_of(stage) in _INDEXED)
    ]


def _grids(workspace: Workspace, needed: dict[Path, set[str]], runs: dict[str, Recent]) -> Iterator[Item]:
    unfinished = {f"{name} (its extraction is not finished)" for name in _extracting(runs)}
    for store in stores(workspace.grids):
        users: dict[str, set[str]] = defaultdict(set)
        for artifact, who in _indexes(workspace, store, needed):
            for digest in _digests(artifact):
                users[digest] |= who
        for shard in store.shards():
            live = [users[digest] for digest in shard.digests if digest in users]
            who = unfinished.union(*live)
            size = shard.record.size + shard.path.with_suffix(".parquet").stat().st_size
            unneeded = len(shard.digests) - len(live) if who else 0
            yield Item(f"grids of {store.identity.backbone}", shard.path, size, tuple(sorted(who)), unneeded)
        for path in sorted(store.folder.glob("*.damaged")):
            yield Item(f"grids of {store.identity.backbone}, set aside", path, path.stat().st_size, ())


def _indexes(
    workspace: Workspace, store: GridStore, needed: dict[Path, set[str]] | None
) -> Iterator[tuple[Artifact, set[str]]]:
    """The artifacts with an index of a store that somebody needs, and who; all of them where `needed` is not given."""
    for artifact in (artifact for kind in _INDEXED for artifact in _kind(workspace, kind)):
        if read_identity(artifact) == store.identity and (needed is None or needed.get(artifact.path)):
            yield artifact, set() if needed is None else needed[artifact.path]


def _digests(artifact: Artifact) -> list[str]:
    digests: list[str] = pq.read_table(artifact.path / INDEX, columns=["digest"]).column("digest").to_pylist()
    return digests
