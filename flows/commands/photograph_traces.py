"""Find all traces of photographs in a workspace, and remove them.

A photograph is identified by its digest (SHA-256 of its file), which is in a column of tables, and in pictures.parquet
of MLflow's runs. Only the records of Prefect's server are searched for its names, because they have no digests.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from flows.commands.traced_rows import change_rows, rows_by_table
from flows.commands.traced_versions import StoredTraces, has_cell, has_table, remove_stored
from flows.commands.workspace_contents import Compaction, compact
from flows.operations.prefect_settings import environment
from flows.preflight import VERDICTS
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file, remove_folder, write_atomically
from tasks.common.wording import counted
from tasks.config.machine import MachineConfig
from tasks.data.manifest import MANIFEST
from tasks.datasets.corrections import ANSWERS_FILE, answers_lock
from tasks.grids.store import stores
from tasks.mlflow_store import tracking
from tasks.pipeline.ledger import Ledger
from tasks.pipeline.stage import kind_of
from tasks.pipeline.workspace import LastRun, Workspace

_DIGEST = re.compile("[0-9a-f]{64}")
_PAGES = "page"  # folder of the workspace
_PREFECT_ELSEWHERE = (
    "PREFECT_API_URL",
    "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
)
_Photographs = Mapping[str, Collection[str]]  # digest -> names in the data sets
_TEXTS = (".json", ".jsonl", ".html", ".txt", ".csv", ".yaml", ".md", ".log")


@dataclass(frozen=True)
class Traces:
    """The traces of photographs in a workspace.

    artifacts: folders of artifacts that contain them or are derived from such, derived ones first. leftovers: files and
    folders that may show them and that nothing needs: pages, interrupted training, damaged grids. grids: compactions of
    the shards that hold their grids. rows: database -> number of rows to delete. answers: the number of people's
    answers about them. stored: traces in MLflow's store.
    """

    artifacts: list[Path]
    leftovers: list[Path]
    grids: list[Compaction]
    rows: dict[Path, int]
    answers: int
    stored: StoredTraces

    def lines(self, root: Path) -> Iterator[str]:
        """Yield a line for each item to remove. root: the workspace's folder, to which paths are relative."""
        yield from map(str, self.stored.versions)
        yield from (f"MLflow's run {run.info.run_id}, with its files and models" for run in self.stored.runs)
        for path in itertools.chain(self.stored.evaluations, self.artifacts, self.leftovers):
            yield str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
        for item in self.grids:
            yield f"{item.store.folder.relative_to(root)}: {counted(item.dropped, 'grid')}"
        yield from (f"{path}: {counted(rows, 'row')}" for path, rows in self.rows.items())
        if self.answers:
            yield f"{ANSWERS_FILE}: {counted(self.answers, 'answer')}"


def photographs(workspace: Workspace, references: Sequence[str]) -> dict[str, set[str]]:
    """Return digest -> names of the photographs given by digests, files, or names in the data sets.

    Raises AttendError for an unknown photograph, an ambiguous name, and one that the latest run of a config still read.
    """
    names_by_digest: dict[str, set[str]] = {}
    for manifest in (workspace.root / "artifacts" / "ingest").glob(f"*/{MANIFEST}"):
        for row in pq.read_table(manifest, columns=["digest", "name"]).to_pylist():
            names_by_digest.setdefault(row["digest"], set()).add(row["name"])
    runs = sorted((workspace.root / "runs").glob("*.json"))
    still_read = {run.stem: _read_by(workspace, run) for run in runs}
    matched: dict[str, set[str]] = {}
    for item in references:
        digests = _digests_of(item, names_by_digest)
        if not digests:
            raise AttendError(f"{item}: no photograph of this name or file is known in {workspace.root}")
        if len(digests) > 1:
            listed = ", ".join(f"{digest} ({', '.join(sorted(names_by_digest[digest]))})" for digest in sorted(digests))
            raise AttendError(f"{item}: is the name of {len(digests)} photographs: give the digest of one: {listed}")
        (digest,) = digests
        for run, read in still_read.items():
            if digest in read:
                raise AttendError(
                    f"{item}: the latest run of {run} read it: delete it and its captions, and run {run} again; or, if "
                    f"{run} is no longer used, `attend workspace prune --forget {run} --yes`"
                )
        matched[digest] = names_by_digest.get(digest, set())
    return matched


def _digests_of(item: str, names_by_digest: Mapping[str, set[str]]) -> set[str]:
    """Return the digests of the photographs that a digest, a name or a file refers to."""
    if _DIGEST.fullmatch(item):
        return {item}
    path = Path(item).expanduser()
    digests = {digest for digest, names in names_by_digest.items() if item in names}
    digests = digests or ({digest_of_file(path)} & names_by_digest.keys() if path.is_file() else set())
    ending = f"/{item}"
    return digests or {key for key, names in names_by_digest.items() if any(name.endswith(ending) for name in names)}


def _read_by(workspace: Workspace, run: Path) -> set[str]:
    """Return the digests of the photographs that the latest run of a name read."""
    recent = LastRun.read(run)
    key = None if recent is None else recent.done.get("ingest")
    manifest = None if key is None else workspace.folder("ingest", key) / MANIFEST
    if manifest is None or not manifest.exists():
        return set()
    return set(pq.read_table(manifest, columns=["digest"])["digest"].to_pylist())


def traces(workspace: Workspace, names_by_digest: _Photographs, all_versions: bool) -> Traces:
    """Return the traces of photographs in a workspace. all_versions: whether to remove versions with an alias too.

    Raises AttendError if there are none. The caller must be alone in the workspace.
    """
    root = workspace.root
    artifacts = _artifacts(workspace, names_by_digest)
    grids = list(_compactions(workspace, names_by_digest))
    rows = {path: number for path, number in change_rows(root, names_by_digest, delete=False).items() if number}
    answers = sum(_is_about(line, names_by_digest) for line in _answers(root / ANSWERS_FILE))
    stored = StoredTraces.read(root, names_by_digest, all_versions)
    if not any((artifacts, grids, rows, answers, stored.versions, stored.runs, stored.evaluations, stored.kept)):
        raise AttendError(f"{root}: has nothing of {', '.join(sorted(names_by_digest))}")
    written_again = [*(root / _PAGES).glob("*.html"), *(root / VERDICTS).glob("*")]
    leftovers = [*_unneeded_parts(workspace), *written_again, *workspace.grids.glob("*/*.damaged")]
    return Traces(artifacts, sorted(leftovers), grids, rows, answers, stored)


def remove(workspace: Workspace, names_by_digest: _Photographs, traces: Traces) -> None:
    """Remove what `traces` found, each item before the one it is found by, so that a killed call can be repeated."""
    change_rows(workspace.root, names_by_digest, delete=True)
    if traces.answers:
        answers = (workspace.root / ANSWERS_FILE).resolve()
        with answers_lock(answers):
            rest = (line for line in _answers(answers) if not _is_about(line, names_by_digest))
            write_atomically(answers, "".join(rest))
    remove_stored(workspace.root, traces.stored)
    for path in (*traces.leftovers, *traces.artifacts):
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink()
    compact(workspace, traces.grids, MachineConfig().shard_rows)


def remaining_files(workspace: Workspace, digests: Collection[str]) -> list[str]:
    """Return the files below the workspace that still contain a digest; databases with the table."""

    def has_digest(text: str) -> bool:
        return any(digest in text for digest in digests)

    files: list[str] = []
    for path in sorted(path for path in workspace.root.rglob("*") if path.is_file()):
        name = path.relative_to(workspace.root).as_posix()
        if path.suffix == ".parquet":
            files += [name] if has_cell(path, digests) else []
        elif path.suffix in _TEXTS:
            text = path.read_text(encoding="utf-8", errors="replace")
            files += [name] if has_digest(text) else []
        elif path.suffix in (".db", ".sqlite"):
            files += [f"{name} ({table})" for table, rows in rows_by_table(path, has_digest).items() if rows]
    return files


def stays(traces: Traces) -> Iterator[str]:
    """Yield a line for each version that stays and learnt, or may have learnt, from the photographs."""
    for item in traces.stored.kept:
        remedy = (
            "once a version that was trained from the beginning without it has replaced it, forget the digest again; "
            "--versions removes it now"
            if item.aliases
            else "another version has the same files"
        )
        yield f"kept: {item}: it keeps what it learnt, and its run shows the photograph: {remedy}"
    for address in traces.stored.started:
        yield (
            f"look at {address}: it started from a captioner, and keeps what that learnt: if that was trained on the "
            "photograph, train from the beginning (training.start_from)"
        )


def not_searched(workspace: Path, names_by_digest: _Photographs) -> Iterator[str]:
    """Yield a line for each place that may contain the photographs and was not searched."""
    if not tracking.is_embedded():
        yield "not looked at: the MLflow store of MLFLOW_TRACKING_URI: remove the versions made with it there"
    settings = environment(workspace)
    for name in _PREFECT_ELSEWHERE:
        if settings.get(name):
            yield f"not looked at: artifacts, events and logs in the Prefect server that {name} names"
    for name in sorted(name for names in names_by_digest.values() for name in names if not Path(name).suffix):
        yield f"not searched: Prefect's records for the name {name}, which has no ending"


def _artifacts(workspace: Workspace, digests: Collection[str]) -> list[Path]:
    """Return the folders of artifacts that contain a photograph or are derived from such, derived ones first."""
    read = {folder: Ledger.read(folder) for folder in sorted((workspace.root / "artifacts").glob("*/*"))}
    ledgers = {folder: ledger for folder, ledger in read.items() if ledger is not None}
    folders = [folder for folder in ledgers if has_table(folder, digests)]
    inputs = {
        folder: {workspace.folder(kind, key) for kind, key in ledger.made_from.items()}
        for folder, ledger in ledgers.items()
    }
    while derived := [folder for folder in ledgers if folder not in folders and inputs[folder].intersection(folders)]:
        folders += derived
    order: list[Path] = []
    while len(order) < len(folders):  # an artifact before those it is derived from
        left = [folder for folder in folders if folder not in order]
        needed = set().union(*(inputs[folder] for folder in left))
        order += [folder for folder in left if folder not in needed]
    return order


def _unneeded_parts(workspace: Workspace) -> list[Path]:
    """Return the folders of interrupted stages that no latest run is working on."""
    going_on = {
        workspace.partial(kind_of(stage), key)
        for path in (workspace.root / "runs").glob("*.json")
        if (recent := LastRun.read(path)) is not None
        for stage, key in recent.begun.items()
        if recent.done.get(stage) != key
    }
    return [
        path for path in (workspace.root / "artifacts").glob("*/*.partial") if path.is_dir() and path not in going_on
    ]


def _compactions(workspace: Workspace, digests: Collection[str]) -> Iterator[Compaction]:
    """Yield compactions that rewrite the shards with grids of these photographs, without these grids."""
    for store in stores(workspace.grids):
        old = [shard for shard in store.shards() if not set(digests).isdisjoint(shard.digests)]
        if old:
            yield Compaction(store, old, {digest for shard in old for digest in shard.digests}.difference(digests))


def _answers(path: Path) -> list[str]:
    """Return the lines of a file of answers, with their line ends."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="\n") as file:  # lines end only at \n: a caption may contain U+2028
        return list(file)


def _is_about(line: str, digests: Collection[str]) -> bool:
    with contextlib.suppress(ValueError):
        answer = json.loads(line)
        return isinstance(answer, dict) and answer.get("picture") in digests
    return False
