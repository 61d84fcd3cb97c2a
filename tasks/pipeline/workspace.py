"""The workspace, the folder of artifacts, grids and locks: finding, checking and publishing artifacts.

A workspace in object storage has a folder too, which is a cache of the storage: artifacts missing in the folder are
downloaded, and published ones are uploaded, the ledger last.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import filelock

from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file, flush, flush_all, write_atomically
from tasks.common.log import log
from tasks.common.object_storage import Remote
from tasks.common.source import commit
from tasks.pipeline.ledger import LEDGER, Artifact, FileRecord, KeyParts, Ledger, Outcome

SUSPECTS = "suspects.json"


@dataclass(frozen=True)
class LastRun:
    """The keys of the stages in the last run with a name.

    done: stage -> key of its fresh artifact, produced by the run or found. begun: stage -> key that the stage has
    started on since then, but not finished.
    """

    done: dict[str, str] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> LastRun | None:
        """Return the record in a file of the folder `runs`; None if it cannot be read."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return LastRun({**values["done"]}, {**values["begun"]})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


class Workspace:
    """The folder that contains artifacts, grids, locks and the embedded MLflow store."""

    def __init__(self, root: Path) -> None:
        """root: the folder; for a workspace in object storage, its cache folder."""
        self.root, self.remote = root, Remote.for_cache(root)

    @property
    def grids(self) -> Path:
        return self.root / "grids"

    def folder(self, stage: str, key: str) -> Path:
        """Return the folder of a stage's artifact, by the stage's kind and key."""
        return self.root / "artifacts" / stage / key[:20]

    def partial(self, stage: str, key: str) -> Path:
        """Return the folder in which a stage works before it publishes; a killed run is resumed from it."""
        return self.root / "artifacts" / stage / f"{key[:20]}.partial"

    def find(self, stage: str, key: str) -> Artifact | None:
        """Return the artifact of a stage by kind and key, downloaded if necessary; None if there is none."""
        folder = self.folder(stage, key)
        if self.remote is not None and not folder.exists():
            self._download(self.remote, folder, key)
        ledger = Ledger.read(folder)
        return Artifact(folder, ledger) if ledger is not None and ledger.key == key else None

    def _download(self, remote: Remote, folder: Path, key: str) -> None:
        """Download an artifact from the storage to `folder`; do nothing if the storage has no undamaged copy."""
        remote_folder = folder.relative_to(self.root).as_posix()
        ledger_bytes = remote.read(f"{remote_folder}/{LEDGER}")
        if ledger_bytes is None:
            return
        remote.save_settings(self.root)
        partial = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / LEDGER).write_bytes(ledger_bytes)
        ledger = Ledger.read(partial)
        if ledger is not None and ledger.key == key and _download_files(remote, remote_folder, partial, ledger):
            with contextlib.suppress(OSError):  # another process has downloaded it in the meantime
                partial.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)

    def _replace_from_storage(self, folder: Path, key: str) -> Artifact | None:
        """Replace an artifact in `folder`, if any, by the storage's copy, and return the copy.

        If the storage has no undamaged copy, return None and leave the folder unchanged.
        """
        assert self.remote is not None
        replaced = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        shutil.rmtree(replaced, ignore_errors=True)
        if folder.exists():
            folder.rename(replaced)
        self._download(self.remote, folder, key)
        ledger = Ledger.read(folder)
        if ledger is None and replaced.exists():
            replaced.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
        return Artifact(folder, ledger) if ledger is not None else None

    def _upload(self, remote: Remote, partial: Path, folder: Path, ledger: Ledger) -> Artifact | None:
        """Upload the files in `partial` as the artifact whose local folder will be `folder`.

        If another machine has uploaded the artifact in the meantime and that copy is complete, return it, to be used
        instead. Each upload has a separate folder for its files, so that no ledger ever names the files of two uploads.
        """
        remote_folder = folder.relative_to(self.root).as_posix()
        for name in ledger.files:
            remote.put(partial / name, _remote_name(remote_folder, ledger, name))
        if remote.create((partial / LEDGER).read_bytes(), f"{remote_folder}/{LEDGER}"):
            return None
        stored = self._replace_from_storage(folder, ledger.key)
        if stored is None:  # the other copy is damaged
            remote.put(partial / LEDGER, f"{remote_folder}/{LEDGER}")
        return stored

    def damage(self, artifact: Artifact, read: Collection[Path] = ()) -> str | None:
        """Return what is wrong with an artifact's files, in words; None if they match the ledger.

        Sizes are always compared, digests only for the files in `read`. With object storage, a damaged artifact is
        first downloaded again.
        """
        damage = self._local_damage(artifact, read)
        if damage is not None and self.remote is not None:
            downloaded = self._replace_from_storage(artifact.path, artifact.ledger.key)
            damage = self._local_damage(downloaded, read) if downloaded is not None else damage
        return damage

    def _local_damage(self, artifact: Artifact, read: Collection[Path]) -> str | None:
        """Return what is wrong with the files in the local folder; a shard that only the storage has is not damage."""
        remote_names: dict[str, set[str]] = {}  # folder of grids -> names of its files in the storage
        for path, record in artifact.files(self.root):
            name = path.relative_to(self.root)
            try:
                size = path.stat().st_size
            except OSError:
                folder = name.parent.as_posix()
                if self.remote is not None and folder not in remote_names:
                    remote_names[folder] = self.remote.names(folder)
                if not {f"{record.sha256}.h5", name.name}.isdisjoint(remote_names.get(folder, ())):
                    continue
                return f"{name} is gone"
            if size != record.size:
                return f"{name} has {size} bytes, {record.size} are recorded"
            if path in read and digest_of_file(path) != record.sha256:
                return f"{name} does not match its digest"
        return None

    def ledger_damage(self, stage: str, key: str) -> str | None:
        """Return what is wrong with the ledger of an artifact; None if it is intact or the folder is missing."""
        folder = self.folder(stage, key)
        if not folder.is_dir() or self.find(stage, key) is not None:
            return None
        name = (folder / LEDGER).relative_to(self.root)
        return f"{name} is {'not whole' if (folder / LEDGER).exists() else 'gone'}"

    def suspects(self) -> set[Path]:
        """Return the suspect files: their digests are checked before they are used again (see sessions.py)."""
        try:
            names = json.loads((self.root / SUSPECTS).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except ValueError:  # written atomically, so another program has damaged it: suspect every file
            names = [path.relative_to(self.root).as_posix() for path in self.published()]
        return {self.root / name for name in names}

    def suspect(self, files: Iterable[Path]) -> None:
        """Mark files as suspect: their digests are checked before they are used again."""
        with self.lock("suspects"):
            self._write_suspects(self.suspects() | set(files))

    def trust(self, files: Iterable[Path]) -> None:
        """Unmark suspect files that match their digests, or that no longer exist."""
        trusted = set(files)
        if self.suspects() & trusted:
            with self.lock("suspects"):
                self._write_suspects(self.suspects() - trusted)

    def _write_suspects(self, files: set[Path]) -> None:
        names = sorted(path.relative_to(self.root).as_posix() for path in files)
        write_atomically(self.root / SUSPECTS, json.dumps(names, indent=0))

    def published(self) -> list[Path]:
        """Return every file of every artifact, and every shard of grids, sorted."""
        files = {*self.grids.glob("*/shard-*.h5"), *self.grids.glob("*/shard-*.parquet")}
        for ledger_path in (self.root / "artifacts").glob(f"*/*/{LEDGER}"):
            with contextlib.suppress(AttendError):  # written by a later version, which alone reads these files
                ledger = Ledger.read(ledger_path.parent)
                if ledger is not None:
                    files.update(path for path, _ in Artifact(ledger_path.parent, ledger).files(self.root))
        return sorted(files)

    def publish(
        self,
        stage: str,
        key: str,
        parts: KeyParts,
        outcome: Outcome,
        seconds: float,
        made_from: dict[str, str] | None = None,
    ) -> Artifact:
        """Write the ledger into the stage's partial folder, rename that to the artifact's folder, return the artifact.

        With object storage, the files are uploaded first, unless the storage has the artifact already: then that one
        is returned. Files whose names begin with a dot (checkpoints) do not belong to the artifact; they are removed
        after the rename.
        """
        partial, folder = self.partial(stage, key), self.folder(stage, key)
        (partial / LEDGER).unlink(missing_ok=True)  # left by a run whose upload was interrupted
        files = {
            path.relative_to(partial).as_posix(): FileRecord.of(path)
            for path in sorted(partial.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }
        ledger = Ledger(
            stage=stage,
            key=key,
            parts=parts,
            products=outcome.products,
            files=files,
            shared=outcome.shared,
            counts=outcome.counts,
            notes=outcome.notes,
            seconds=round(seconds, 3),
            versions=_versions(),
            made_from=made_from or {},
            publication="" if self.remote is None else secrets.token_hex(8),
        )
        flush_all(partial)
        write_atomically(partial / LEDGER, ledger.to_json())
        if self.remote is not None:
            stored = self._replace_from_storage(folder, key) or self._upload(self.remote, partial, folder, ledger)
            if stored is not None:
                shutil.rmtree(partial)
                return stored
        if folder.exists():  # it is damaged: the stage would not have run otherwise
            shutil.rmtree(folder)
        partial.rename(folder)
        flush(folder.parent)
        for path in folder.glob(".*"):  # checkpoints, needed only to resume a killed run
            path.unlink()
        return Artifact(folder, ledger)

    def last_run(self, run: str) -> LastRun:
        """Return the keys of the last run with a name: `status` compares with them, `prune` keeps their artifacts.

        Empty if there was no such run, or if its record cannot be read.
        """
        return LastRun.read(self.root / "runs" / f"{run}.json") or LastRun()

    def remember(self, run: str, stage: str, key: str, done: bool) -> None:
        """Record the key that a stage of this run has started on or, if `done`, has finished."""
        with self.lock(f"record-{run}"):
            recent = self.last_run(run)
            before = asdict(recent)
            if done:
                recent.done[stage] = key
                recent.begun.pop(stage, None)
            else:
                recent.begun[stage] = key
            if asdict(recent) != before:
                self._write_recent(run, recent)

    def prepare(self) -> None:
        """Create the folders of the workspace. Raises AttendError if it is not writable."""
        try:
            for name in ("artifacts", "grids", "locks", "runs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            probe = self.root / "locks" / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            if self.remote is not None:
                self.remote.save_settings(self.root)
        except OSError as error:
            raise AttendError(
                f"{self.root}: the workspace cannot be written ({error.strerror}): "
                "give another with machine.workspace=FOLDER"
            ) from None

    def is_writable(self) -> bool:
        """Return whether this process may write to the workspace, or create it. If not, readers hold no lock."""
        folder = self.root / "locks"
        while not folder.exists():
            folder = folder.parent
        return os.access(folder, os.W_OK)

    def forget_other_stages(self, run: str, stages: Collection[str]) -> None:
        """Forget the keys of all stages except these, the stages of the finished run: it needs no other artifacts."""
        with self.lock(f"record-{run}"):
            recent = self.last_run(run)
            obsolete = (recent.done.keys() | recent.begun.keys()) - set(stages)
            for stage in obsolete:
                recent.done.pop(stage, None)
                recent.begun.pop(stage, None)
            if obsolete:
                self._write_recent(run, recent)

    def _write_recent(self, run: str, recent: LastRun) -> None:
        path = self.root / "runs" / f"{run}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(recent), indent=1, sort_keys=True))

    def is_locked(self, name: str) -> bool:
        """Return whether a process holds the lock `name`."""
        path = self.root / "locks" / f"{name}.lock"
        if not path.exists():
            return False
        try:
            with filelock.FileLock(path, timeout=0):
                return False
        except filelock.Timeout:
            return True
        except OSError:  # a workspace that this process may only read
            return False

    @contextlib.contextmanager
    def lock(self, name: str, doing: str | None = None, by: str = "another run is working on it") -> Iterator[None]:
        """Hold the lock `name` for the length of the block, after waiting for any other process that holds it.

        name: what is locked, a word without `-`, then `-` and an identifier, so that names of runs and models cannot
        collide. doing, by: what waits, and what it waits for, in a message that is logged if waiting is necessary;
        without `doing`, no message is logged. The kernel frees the lock when its holder dies, for any reason.
        """
        path = self.root / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold(path, doing, by):
            yield


@contextlib.contextmanager
def hold(path: Path, doing: str | None, by: str) -> Iterator[None]:
    """Hold a lock file for the length of the block: see `Workspace.lock`."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=-1 if doing is None else 0)
    except filelock.Timeout:
        log.info(f"{doing}: {by}; waiting until that has finished")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def lock_name(stage: str, key: str) -> str:
    """Return the name of the lock under which a stage of this kind produces the artifact with a key."""
    return f"{stage}-{key[:20]}"


def _remote_name(remote_folder: str, ledger: Ledger, name: str) -> str:
    """Return the name of an artifact's file in the storage."""
    return "/".join(filter(None, (remote_folder, ledger.publication, name)))


def _download_files(remote: Remote, remote_folder: str, folder: Path, ledger: Ledger) -> bool:
    """Download an artifact's files; return whether the storage has all of them and they match the ledger."""
    for name, record in ledger.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            remote.get(_remote_name(remote_folder, ledger, name), folder / name)
        except FileNotFoundError:
            return False
        if digest_of_file(folder / name) != record.sha256:
            return False
    return True


def _versions() -> dict[str, str]:
    """Return the versions of this program and of its numerical libraries, for a ledger."""
    versions = {name: metadata.version(name) for name in ("attend", "torch", "torchvision")}
    return versions | ({"commit": commit()} if commit() else {})
