"""Find what a workspace holds of photographs, and remove it.

A photograph is found by its digest (SHA-256 of its file) and by its names. Versions of a model that were made with it
are named; those without an alias are removed with their runs and files, and the others where that is asked for.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from flows.commands.old_versions import OldVersion, remove_versions, with_files
from flows.commands.workspace_contents import Compaction, compact
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file, remove_folder, write_atomically
from tasks.common.wording import counted
from tasks.config.machine import MachineConfig
from tasks.data.fingerprints import DATABASE as FINGERPRINTS
from tasks.data.manifest import MANIFEST
from tasks.datasets.base import WORKSPACE_FILE
from tasks.datasets.corrections import ANSWERS_FILE
from tasks.grids.store import stores
from tasks.mlflow_store import tracking
from tasks.mlflow_store.embedded_store import DATABASE
from tasks.mlflow_store.version_pictures import pictures_of_version
from tasks.mlflow_store.versions import CHAMPIONS, address_of, registered_models
from tasks.pipeline.ledger import Ledger
from tasks.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_DIGEST = re.compile("[0-9a-f]{64}")
_PAGES = "page"  # folder of the workspace; `attend run` writes its pages again
_PREFECT = "prefect/prefect.db"
# Tables of Prefect's server whose rows may show a photograph: history, which nothing depends on.
_PREFECT_TABLES = ("artifact", "artifact_collection", "events", "event_resources", "log")
_CACHES = (WORKSPACE_FILE, FINGERPRINTS)
_NUMBERS = (".h5", ".safetensors", ".onnx", ".npy", ".npz")  # files that name no photograph


@dataclass(frozen=True)
class Photograph:
    """A photograph that the workspace knows. digest: SHA-256 of its file. names: relative to its data set, or paths."""

    digest: str
    names: frozenset[str]


@dataclass(frozen=True)
class Traces:
    """Hold what a workspace has of photographs.

    artifacts: folders of stages' outputs that name them, or were made from such, and unfinished ones. grids: rewritings
    of the shards that hold their grids. rows: by database, the number of rows to delete. answers: people's answers
    about them. pages: of the project. versions: to remove, with their runs and files. kept: the addresses of those that
    stay. roles: by address of a version, what it has to do with them.
    """

    artifacts: list[Path]
    grids: list[Compaction]
    rows: dict[Path, int]
    answers: int
    pages: list[Path]
    versions: list[OldVersion]
    kept: list[str]
    roles: dict[str, str]

    def lines(self, root: Path) -> Iterator[str]:
        """Yield a line for each thing to remove. root: the folder of the workspace, to which paths are relative."""
        yield from (str(folder.relative_to(root)) for folder in self.artifacts)
        for item in self.grids:
            yield f"{item.store.folder.relative_to(root)}: {counted(item.dropped, 'grid')}"
        yield from (f"{path.relative_to(root)}: {counted(rows, 'row')}" for path, rows in self.rows.items())
        yield from (f"{page.relative_to(root)}, which `attend run` writes again" for page in self.pages)
        if self.answers:
            yield f"{ANSWERS_FILE}: {counted(self.answers, 'answer')}"
        yield from (f"{item.address}, {self.roles[item.address]}, with its run and its files" for item in self.versions)


def photographs(workspace: Workspace, given: Sequence[str]) -> list[Photograph]:
    """Return the photographs that are meant by digests, files, or names as in the data set.

    Raises AttendError for one that is not known, a name that several have, and one that the data set still has.
    """
    known = _known_names(workspace)
    found = []
    for item in given:
        digests = _meant(item, known)
        if not digests:
            raise AttendError(f"{item}: no photograph of this name, file or digest is known in {workspace.root}")
        if len(digests) > 1:
            listed = ", ".join(f"{digest} ({', '.join(sorted(known[digest]))})" for digest in sorted(digests))
            raise AttendError(f"{item}: is the name of {len(digests)} photographs: give the digest of one: {listed}")
        (digest,) = digests
        for path in map(Path, known.get(digest, ())):
            if path.is_absolute() and path.is_file() and digest_of_file(path) == digest:
                raise AttendError(
                    f"{path}: is still there, and the next run would read it again: delete it and its captions first"
                )
        elsewhere = {name for other, names in known.items() if other != digest for name in names}
        found.append(Photograph(digest, frozenset(known.get(digest, set()) - elsewhere)))
    return found


def _meant(item: str, known: dict[str, set[str]]) -> set[str]:
    """Return the digests of the photographs that a digest, a file or a name means."""
    if _DIGEST.fullmatch(item):
        return {item}
    path = Path(item).expanduser()
    own = {digest for digest, names in known.items() if item in names or str(path.absolute()) in names}
    own = own or {digest for digest, names in known.items() if any(name.endswith(f"/{item}") for name in names)}
    return own or ({digest_of_file(path)} & known.keys() if path.is_file() else set())


def _known_names(workspace: Workspace) -> dict[str, set[str]]:
    """Return the names of each photograph, by digest, as manifests and the cache of digests have them."""
    names: dict[str, set[str]] = {}
    for manifest in (workspace.root / "artifacts" / "ingest").glob(f"*/{MANIFEST}"):
        table = pq.read_table(manifest, columns=["digest", "name"])
        for row in table.to_pylist():
            names.setdefault(row["digest"], set()).add(row["name"])
    database = workspace.root / WORKSPACE_FILE
    if database.exists():
        with contextlib.closing(sqlite3.connect(database)) as connection:
            for path, digest in connection.execute("select path, sha256 from digest"):
                names.setdefault(digest, set()).add(path)
    return names


def traces(workspace: Workspace, wanted: Collection[Photograph], all_versions: bool) -> Traces:
    """Return what a workspace holds of photographs. all_versions: versions with an alias are to be removed too.

    The caller must be alone in the workspace.
    """
    digests, mentions = {item.digest for item in wanted}, _mentions(wanted)
    answers = workspace.root / ANSWERS_FILE
    lines = answers.read_text(encoding="utf-8").splitlines() if answers.exists() else []
    found = Traces(
        _artifacts(workspace, mentions),
        list(_compactions(workspace, digests)),
        {path: rows for path, tables in _databases(workspace) if (rows := _count_rows(path, tables, mentions))},
        sum(map(mentions, lines)),
        [],
        *_versions_made_with(workspace.root, digests, all_versions),
    )
    if not any((found.artifacts, found.grids, found.rows, found.answers, found.roles)):
        raise AttendError(f"{workspace.root}: has nothing of {', '.join(sorted(digests))}")
    # What shows photographs without naming them, and can be made again: training that was cut off, and pages.
    unfinished = [path for path in (workspace.root / "artifacts").glob("*/*") if Ledger.read(path) is None]
    pages = sorted((workspace.root / _PAGES).glob("*.html"))
    return replace(found, artifacts=[*found.artifacts, *unfinished], pages=pages)


def remove(workspace: Workspace, wanted: Collection[Photograph], found: Traces) -> None:
    """Remove what `traces` found. A kill at any moment leaves a part of it, which the same command then finds again."""
    mentions = _mentions(wanted)
    if found.versions:
        remove_versions(workspace.root, found.versions)
    for folder in found.artifacts:
        remove_folder(folder)
    compact(workspace, found.grids, MachineConfig().shard_rows)
    for path in found.pages:
        path.unlink()
    if found.answers:
        answers = workspace.root / ANSWERS_FILE
        lines = answers.read_text(encoding="utf-8").splitlines(keepends=True)
        write_atomically(answers, "".join(line for line in lines if not mentions(line)))
    for path, tables in _databases(workspace):
        if path in found.rows:
            _delete_rows(path, tables, mentions)


def places_left(workspace: Workspace, wanted: Collection[Photograph]) -> list[str]:
    """Return the files of the workspace that still name a photograph; of a database, with the table."""
    mentions = _mentions(wanted)
    places: list[str] = []
    for path in _files_of_text(workspace.root):
        name = path.relative_to(workspace.root).as_posix()
        if _is_sqlite(path):
            places += [f"{name} ({table})" for table in _tables_of(path) if _count_rows(path, (table,), mentions)]
        elif mentions(_text_of(path)):
            places.append(name)
    return places


def _mentions(wanted: Collection[Photograph]) -> Callable[[str], bool]:
    """Return a function that says whether a text names one of the photographs."""
    words = {word for item in wanted for word in (item.digest, *item.names)}
    spellings = {spelled for word in words for spelled in (word, html.escape(word), json.dumps(word)[1:-1])}
    # `1.jpg` is not named by `11.jpg` or `other/1.jpg`, but by `1.jpg.txt`.
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, sorted(spellings)))})(?![\w-])")
    return lambda text: pattern.search(text) is not None


def _files_of_text(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in _NUMBERS)


def _texts_in(folder: Path) -> Iterator[str]:
    yield from map(_text_of, _files_of_text(folder))


def _text_of(path: Path) -> str:
    """Return what a file says; of a Parquet file, its values of text, a line each."""
    if path.suffix != ".parquet":
        return path.read_bytes().decode("utf-8", "replace")
    table = pq.read_table(path)
    return "\n".join(str(value) for column in table.columns if _holds_text(column.type) for value in column.to_pylist())


def _holds_text(kind: Any) -> bool:
    return "string" in str(kind)


def _artifacts(workspace: Workspace, mentions: Callable[[str], bool]) -> list[Path]:
    """Return the folders of finished artifacts that name a photograph, or were made from one that does."""
    read = {folder: Ledger.read(folder) for folder in sorted((workspace.root / "artifacts").glob("*/*"))}
    ledgers = {folder: ledger for folder, ledger in read.items() if ledger is not None}
    found = {folder for folder in ledgers if any(map(mentions, _texts_in(folder)))}
    while True:
        made_from_them = {
            folder
            for folder, ledger in ledgers.items()
            if folder not in found
            and any(workspace.folder(kind, key) in found for kind, key in ledger.made_from.items())
        }
        if not made_from_them:
            return sorted(found)
        found |= made_from_them


def _compactions(workspace: Workspace, digests: Collection[str]) -> Iterator[Compaction]:
    """Yield the rewritings of the shards that hold grids of photographs, without these grids."""
    for store in stores(workspace.grids):
        old = [shard for shard in store.shards() if not set(digests).isdisjoint(shard.digests)]
        if old:
            yield Compaction(store, old, {digest for shard in old for digest in shard.digests}.difference(digests))


def _versions_made_with(
    workspace: Path, digests: Collection[str], all_versions: bool
) -> tuple[list[OldVersion], list[str], dict[str, str]]:
    """Return the versions to remove that were made with a photograph, the addresses of those that stay, and all roles.

    Nothing where the workspace has no store.
    """
    if not tracking.is_embedded() or not (workspace / DATABASE).exists():
        return [], [], {}
    client = tracking.connect(workspace, must_exist=True)
    made: list[ModelVersion] = []
    others: list[ModelVersion] = []
    roles: dict[str, str] = {}
    for model in registered_models(client):
        aliases = client.get_registered_model(model.name).aliases
        for version in client.search_model_versions(f"name = '{model.name}'") if CHAMPIONS in model.tags else ():
            own = [alias for alias, number in aliases.items() if str(number) == str(version.version)]
            with tempfile.TemporaryDirectory() as scratch:
                pictures = pictures_of_version(client, version, Path(scratch))
            role = "whose run does not say which pictures it was made with"
            if pictures is not None:
                role = f"{'trained' if pictures.train.keys() & set(digests) else 'scored'} on it"
            if pictures is None or pictures.digests & set(digests):
                roles[address_of(version)] = ", ".join([*own, role])
            is_removed = pictures is not None and pictures.digests & set(digests) and (all_versions or not own)
            (made if is_removed else others).append(version)
    kept = [address_of(version) for version in others if address_of(version) in roles]
    return [with_files(client, version, others, workspace) for version in made], kept, roles


def _databases(workspace: Workspace) -> list[tuple[Path, list[str]]]:
    """Return the databases, each with the tables from which rows that name a photograph are deleted."""
    caches, prefect = [workspace.root / name for name in _CACHES], workspace.root / _PREFECT
    found = [(path, _tables_of(path)) for path in caches if path.exists()]
    if prefect.exists():
        found.append((prefect, [table for table in _tables_of(prefect) if table in _PREFECT_TABLES]))
    return found


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _tables_of(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]


@contextlib.contextmanager
def _searching(path: Path, mentions: Callable[[str], bool]) -> Iterator[sqlite3.Connection]:
    """Open a database whose SQL has the function `mentions` of a value."""
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
        connection.create_function("mentions", 1, lambda value: isinstance(value, str) and mentions(value))
        yield connection


def _condition(connection: sqlite3.Connection, table: str) -> str:
    columns = [row[1] for row in connection.execute(f'pragma table_info("{table}")')]
    return " or ".join(f'mentions("{column}")' for column in columns) or "0"


def _count_rows(path: Path, tables: Collection[str], mentions: Callable[[str], bool]) -> int:
    with _searching(path, mentions) as connection:
        queries = [f'select count(*) from "{table}" where {_condition(connection, table)}' for table in tables]
        return sum(int(connection.execute(query).fetchone()[0]) for query in queries)


def _delete_rows(path: Path, tables: Collection[str], mentions: Callable[[str], bool]) -> None:
    """Delete rows, and write the database anew: deleted rows would stay in its free pages otherwise."""
    with _searching(path, mentions) as connection:
        for table in tables:
            with connection:
                connection.execute(f'delete from "{table}" where {_condition(connection, table)}')
        connection.execute("vacuum")
        connection.execute("pragma wal_checkpoint(truncate)")
