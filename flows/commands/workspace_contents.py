"""List the contents of a workspace and their users, and remove what nobody needs.

An item is needed if it is a result of the latest run of some name, if that run is working on it, if a registered
version was built from it, or if it is a grid in one of their indexes. Everything else belongs to settings and pictures
that are no longer used, and can be computed again. If a record of what is needed cannot be read, everything is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from tasks.captioner.copied_loader import DIGEST
from tasks.captioner.load_bundle import stored_digest
from tasks.common.errors import AttendError, suggestion
from tasks.common.files import digest_of_file, remove_folder
from tasks.grids.identity import Identity
from tasks.grids.index import indexed_digests, read_identity, reindex
from tasks.grids.reader import GridReader
from tasks.grids.store import GridRow, Grids, GridStore, Shard, folder_size, remove_shard, stores
from tasks.mlflow_store.registration_record import read_registration
from tasks.mlflow_store.tracking import has_version
from tasks.pipeline.ledger import Artifact, Ledger
from tasks.pipeline.stage import kind_of
from tasks.pipeline.workspace import LastRun, Workspace
from tasks.registry.starting_points import CAPTIONERS

_INDEXED = "extract"  # the stage whose artifacts hold an index of grids


@dataclass(frozen=True)
class Item:
    """A file or folder of the workspace, with its size and its users.

    what: a description. size: in bytes. needed_by: names of runs and addresses of registered versions; empty if nobody
    needs it. unneeded: in a shard that somebody needs, the number of grids that nobody needs.
    """

    what: str
    path: Path
    size: int
    needed_by: tuple[str, ...]
    unneeded: int = 0


def usage(workspace: Workspace, without: Collection[str] = (), versions: Collection[str] = ()) -> list[Item]:
    """Return every artifact, shard and downloaded captioner, also partial and damaged ones, with sizes and users.

    without: names of runs whose needs do not count. versions: addresses of versions whose needs do not count. Raises
    AttendError if there is no such run, and for records written by a later version of this program.
    """
    run_names = _run_names(workspace)
    for name in without:
        if name not in run_names:
            raise AttendError(f"--forget: {name}: no run has this name{suggestion(name, run_names)}")
    needs = _needs(workspace, without, versions)
    return [*_artifact_items(workspace, needs), *_grid_items(workspace, needs), *_captioner_items(workspace, needs)]


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
            remove_folder(item.path)
        else:
            item.path.unlink(missing_ok=True)
    workspace.trust(path for path in workspace.suspects() if not path.exists())


@dataclass(frozen=True)
class Compaction:
    """The shards of a store to rewrite, and the digests of the pictures whose grids are kept."""

    store: GridStore
    old: list[Shard]
    live: set[str]

    @property
    def dropped(self) -> int:
        """Return how many grids of the old shards are not written again."""
        return sum(digest not in self.live for shard in self.old for digest in shard.digests)


def planned_compactions(workspace: Workspace) -> list[Compaction]:
    """Return the shards of each store that hold unneeded grids, or grids that another shard holds too.

    Raises AttendError while an extraction is unfinished, and if a record of what is needed cannot be read, because then
    it is not known which grids are needed.
    """
    needs = _needs(workspace)
    if needs.unfinished:
        names = ", ".join(needs.unfinished)
        raise AttendError(f"{workspace.root}: the extraction of {names} is not finished: run it first")
    if needs.unknown:
        raise AttendError(f"{workspace.root}: what is needed is not known: {'; '.join(sorted(needs.unknown))}")
    indexes = _indexes(workspace, needs)
    planned = []
    for store in stores(workspace.grids):
        live = {digest for index in indexes if index.identity == store.identity for digest in index.digests()}
        needed_grids: set[str] = set()
        old = []
        for shard in store.shards():
            if live.issuperset(shard.digests) and needed_grids.isdisjoint(shard.digests):
                needed_grids.update(shard.digests)
            else:
                old.append(shard)
        if old:
            planned.append(Compaction(store, old, live))
    return planned


def compact(workspace: Workspace, planned: Iterable[Compaction], shard_rows: int) -> None:
    """Rewrite shards without the grids that nobody needs.

    A kill at any moment may leave grids stored twice, but loses none. The caller must have been alone in the workspace
    since the compaction was planned. Raises AttendError, with nothing removed, for a shard that does not match its
    digest.
    """
    suspects = workspace.suspects()
    for item in planned:
        store, old = item.store, {shard.number for shard in item.old}
        for shard in store.shards():
            damage = shard.damage(verify=shard.number in old or shard.path in suspects)
            if damage is not None:
                raise AttendError(f"{damage}: run `attend workspace verify`, `attend run`, and then this again")
        store.clean()
        _rewrite(item, shard_rows)
        rows, _ = store.rows(only={shard.number for shard in store.shards()} - old)
        for index in _indexes(workspace):
            if index.identity == store.identity and all(digest in rows for digest in index.digests()):
                reindex(workspace, index.artifact, store, rows)
        for shard in item.old:
            remove_shard(shard.path)


def _rewrite(item: Compaction, shard_rows: int) -> None:
    """Copy the live rows of the old shards into new shards. The old ones stay on disk."""
    store, numbers = item.store, {shard.number for shard in item.old}
    written = {digest for shard in store.shards() if shard.number not in numbers for digest in shard.digests}
    rows: list[tuple[Grids, str, tuple[int, int]]] = []
    for shard in item.old:
        sizes = pq.read_table(shard.path.with_suffix(".parquet"), columns=["width", "height"]).to_pylist()
        reader = GridReader(store, {digest: GridRow(shard.number, row) for row, digest in enumerate(shard.digests)})
        for digest, size in zip(shard.digests, sizes, strict=True):
            if digest in item.live and digest not in written:
                written.add(digest)
                rows.append((reader.read([digest])[0], digest, (size["width"], size["height"])))
            if len(rows) == shard_rows:
                _write_rows(store, rows)
                rows = []
    if rows:
        _write_rows(store, rows)


def _write_rows(store: GridStore, rows: list[tuple[Grids, str, tuple[int, int]]]) -> None:
    """Write one shard. rows: (grid, digest, (width, height)) of each picture."""
    grids, digests, sizes = zip(*rows, strict=True)
    store.publish(store.draft([grid[None] for grid in grids], digests, sizes, store.next_number()))


@dataclass(frozen=True)
class _Needs:
    """The needs of runs and registered versions.

    users: artifact folder -> the runs and registered versions that need it. unfinished: the runs with an unfinished
    extraction. unknown: lines on why not all needs are known and what to do; if there are any, everything is needed.
    """

    users: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    unfinished: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)


def _run_names(workspace: Workspace) -> list[str]:
    return [path.stem for path in sorted((workspace.root / "runs").glob("*.json"))]


def _needs(workspace: Workspace, without: Collection[str] = (), versions: Collection[str] = ()) -> _Needs:
    """Return the needs of all runs except `without`, and of all registered versions except `versions`."""
    needs = _Needs()
    for name in _run_names(workspace):
        if name in without:
            continue
        recent = LastRun.read(workspace.root / "runs" / f"{name}.json")
        if recent is None:
            needs.unknown.add(f"runs/{name}.json cannot be read: run it again, or give --forget {name}")
            continue
        for stage, key in recent.done.items():
            _mark_needed(workspace, needs, kind_of(stage), key, name)
        for stage, key in recent.begun.items():
            needs.users[workspace.partial(kind_of(stage), key)].add(name)
        if any(recent.done.get(stage) != key for stage, key in recent.begun.items() if kind_of(stage) == _INDEXED):
            needs.unfinished.append(name)
    for folder in sorted((workspace.root / "artifacts").glob("*/*")):
        ledger = Ledger.read(folder)  # raises for a ledger of a later version, of any kind
        is_published = folder.suffix != ".partial" and not folder.name.startswith(".")
        if ledger is None and folder.parent.name == "register" and is_published:
            needs.unknown.add(f"{_name_in(workspace, folder)} cannot be read: run its settings again, or remove it")
    for artifact in _artifacts_of_kind(workspace, "register"):
        try:
            registration = read_registration(artifact.path)
            if registration["uri"] not in versions and has_version(registration, workspace):
                _mark_needed(workspace, needs, "register", artifact.ledger.key, registration["uri"])
        except (OSError, ValueError, KeyError, TypeError, AttendError) as error:
            name = _name_in(workspace, artifact.path)
            needs.unknown.add(
                f"which version {name} registered, and whether it is there still, cannot be read: {error}"
            )
    return needs


def _mark_needed(workspace: Workspace, needs: _Needs, kind: str, key: str, user: str) -> None:
    """Add `user` to the users of an artifact and of all artifacts that it is derived from."""
    folder = workspace.folder(kind, key)
    if user in needs.users[folder]:
        return
    needs.users[folder].add(user)
    artifact = workspace.find(kind, key)
    if artifact is None or (kind == _INDEXED and not _index_is_whole(artifact, workspace)):
        needs.unknown.add(f"{_name_in(workspace, folder)}, which {user} needs, cannot be read: run {user} again")
    if artifact is not None:
        for upstream, made_from in artifact.ledger.made_from.items():
            _mark_needed(workspace, needs, upstream, made_from, user)


def _index_is_whole(artifact: Artifact, workspace: Workspace) -> bool:
    """Return whether an artifact's own files match its ledger; the shards that it names are not checked."""
    return all(
        path.is_file() and path.stat().st_size == record.size and digest_of_file(path) == record.sha256
        for path, record in artifact.files(workspace.root)
        if artifact.path in path.parents
    )


def _name_in(workspace: Workspace, path: Path) -> str:
    return path.relative_to(workspace.root).as_posix()


def _artifacts_of_kind(workspace: Workspace, kind: str) -> Iterator[Artifact]:
    """Yield the finished artifacts of a kind of stage."""
    for folder in sorted((workspace.root / "artifacts" / kind).glob("*")):
        ledger = Ledger.read(folder)
        if ledger is not None and folder.name == ledger.key[:20]:
            yield Artifact(folder, ledger)


def _artifact_items(workspace: Workspace, needs: _Needs) -> Iterator[Item]:
    """Yield an item for every artifact folder, finished or not."""
    for folder in sorted((workspace.root / "artifacts").glob("*/*")):
        kind, size = folder.parent.name, folder_size(folder)
        users = tuple(sorted(needs.users.get(folder, set()) | needs.unknown))
        if folder.suffix == ".partial":
            yield Item(f"{kind}, not finished", folder, size, users)
        elif Ledger.read(folder) is None:
            yield Item(f"{kind}, without a ledger", folder, size, users)
        else:
            yield Item(kind, folder, size, users)


def _grid_items(workspace: Workspace, needs: _Needs) -> Iterator[Item]:
    """Yield an item for every shard, and for every file that was set aside as damaged."""
    unfinished = {f"{name} (its extraction is not finished)" for name in needs.unfinished}
    indexes = _indexes(workspace, needs)
    for store in stores(workspace.grids):
        users_of_all = unfinished | needs.unknown
        users_of_grid: dict[str, set[str]] = defaultdict(set)
        for index in indexes:
            if index.identity == store.identity:
                for digest in index.digests():
                    users_of_grid[digest] |= index.users
        for shard in store.shards():
            live = [users_of_grid[digest] for digest in shard.digests if digest in users_of_grid]
            users = users_of_all.union(*live)
            size = shard.record.size + shard.path.with_suffix(".parquet").stat().st_size
            unneeded = len(shard.digests) - len(live) if users and not users_of_all else 0
            yield Item(f"grids of {store.identity.backbone}", shard.path, size, tuple(sorted(users)), unneeded)
        for path in sorted(store.folder.glob("*.damaged")):
            name = f"grids of {store.identity.backbone}, set aside"
            yield Item(name, path, path.stat().st_size, tuple(sorted(needs.unknown)))


def _captioner_items(workspace: Workspace, needs: _Needs) -> Iterator[Item]:
    """Yield an item for every captioner downloaded as a starting point of training."""
    users_of: dict[str, set[str]] = defaultdict(set)
    for artifact in _artifacts_of_kind(workspace, "train"):
        if (digest := artifact.ledger.parts["inputs"].get("start_from")) is not None:
            users_of[digest] |= needs.users.get(artifact.path, set())
    for folder in sorted((workspace.root / CAPTIONERS).glob("*")):
        if folder.suffix == ".partial":
            yield Item("captioner, not downloaded whole", folder, folder_size(folder), ())
            continue
        digests = [stored_digest(path.parent) for path in folder.rglob(DIGEST)]
        users = needs.unknown.union(*(users_of[digest] for digest in digests))
        yield Item("captioner to start from", folder, folder_size(folder), tuple(sorted(users)))


@dataclass(frozen=True)
class _Index:
    """An artifact with an index of grids, the identity of their store, and its users."""

    artifact: Artifact
    identity: Identity
    users: set[str]

    def digests(self) -> list[str]:
        """Return the names of the grids that it indexes."""
        return indexed_digests(self.artifact)


def _indexes(workspace: Workspace, needs: _Needs | None = None) -> list[_Index]:
    """Return the intact indexes that somebody needs, with their users; all of them if `needs` is None."""
    items = []
    for artifact in _artifacts_of_kind(workspace, _INDEXED):
        users = set() if needs is None else needs.users.get(artifact.path, set())
        if (needs is None or users) and _index_is_whole(artifact, workspace):
            items.append(_Index(artifact, read_identity(artifact), users))
    return items
