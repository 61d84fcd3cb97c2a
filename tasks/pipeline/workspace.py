"""The folder of artifacts, grids and locks: finding, checking and publishing what stages made.

A workspace in object storage is a folder too, the cache of what lies there: what is not here is fetched, and what is
published is uploaded, the ledger last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock

from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file, flush, write_atomically
from tasks.common.object_storage import Remote
from tasks.common.progress import say
from tasks.pipeline.ledger import LEDGER, Artifact, FileRecord, Ledger, Outcome

SUSPECTS = "suspects.json"


@dataclass(frozen=True)
class Recent:
    """What a run of some name did last. done: stage -> key made or found; begun: stage -> key under way since then."""

    done: dict[str, str] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)


class Workspace:
    """The folder in which artifacts, grids, locks and the embedded MLflow store live."""

    def __init__(self, root: Path) -> None:
        """root: the folder; of a workspace in object storage, the one that is its cache."""
        self.root, self.remote = root, Remote.of(root)

    @property
    def grids(self) -> Path:
        return self.root / "grids"

    def folder(self, stage: str, key: str) -> Path:
        return self.root / "artifacts" / stage / key[:20]

    def partial(self, stage: str, key: str) -> Path:
        """Where a stage works before it publishes; what a killed run leaves for the next to go on from."""
        return self.root / "artifacts" / stage / f"{key[:20]}.partial"

    def find(self, stage: str, key: str) -> Artifact | None:
        folder = self.folder(stage, key)
        if self.remote is not None and not folder.exists():
            self._download(self.remote, folder, key)
        ledger = Ledger.read(folder)
        return Artifact(folder, ledger) if ledger is not None and ledger.key == key else None

    def _download(self, remote: Remote, folder: Path, key: str) -> None:
        """Have an artifact here that is in the storage, if it is."""
        far = folder.relative_to(self.root).as_posix()
        told = remote.read(f"{far}/{LEDGER}")
        if told is None:
            return
        partial = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / LEDGER).write_bytes(told)
        ledger = Ledger.read(partial)
        if ledger is not None and ledger.key == key and _fetched(remote, far, partial, ledger):
            with contextlib.suppress(OSError):  # another process has it by now
                partial.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)

    def _elsewhere(self, folder: Path, key: str) -> Artifact | None:
        """An artifact as the storage has it, in the place of what is here; None where it has none that is whole."""
        assert self.remote is not None
        aside = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        shutil.rmtree(aside, ignore_errors=True)
        if folder.exists():
            folder.rename(aside)
        self._download(self.remote, folder, key)
        ledger = Ledger.read(folder)
        if ledger is None and aside.exists():
            aside.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
        return Artifact(folder, ledger) if ledger is not None else None

    def _upload(self, remote: Remote, partial: Path, folder: Path, ledger: Ledger) -> None:
        far = folder.relative_to(self.root).as_posix()
        for name in [*ledger.files, LEDGER]:  # the ledger last: without it nothing is there
            remote.put(partial / name, f"{far}/{name}")

    def damage(self, artifact: Artifact, read: Collection[Path] = ()) -> str | None:
        """What is wrong with an artifact's files, in words; None where they are as recorded.

        Sizes are compared always, digests only of the files named in `read`. What a storage has is fetched anew first.
        """
        told = self._damage(artifact, read)
        if told is not None and self.remote is not None:
            again = self._elsewhere(artifact.path, artifact.ledger.key)
            told = self._damage(again, read) if again is not None else told
        return told

    def _damage(self, artifact: Artifact, read: Collection[Path]) -> str | None:
        far: dict[str, set[str]] = {}  # folder of grids -> its files in the storage
        for path, record in artifact.files(self.root):
            name = path.relative_to(self.root)
            try:
                size = path.stat().st_size
            except OSError:
                folder = name.parent.as_posix()
                if self.remote is not None and folder not in far:
                    far[folder] = self.remote.names(folder)
                if f"{record.sha256}.h5" in far.get(folder, ()):
                    continue
                return f"{name} is gone"
            if size != record.size:
                return f"{name} has {size} bytes, {record.size} are recorded"
            if path in read and digest_of_file(path) != record.sha256:
                return f"{name} does not match its digest"
        return None

    def cut_off(self, stage: str, key: str) -> str | None:
        """What is wrong with the ledger of an artifact whose folder is there; None where there is no such folder."""
        folder = self.folder(stage, key)
        if not folder.is_dir() or self.find(stage, key) is not None:
            return None
        name = (folder / LEDGER).relative_to(self.root)
        return f"{name} is {'not whole' if (folder / LEDGER).exists() else 'gone'}"

    def suspects(self) -> set[Path]:
        """The files whose digests are to be read before they are used again (see sessions.py)."""
        try:
            names = json.loads((self.root / SUSPECTS).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except ValueError:  # it is written atomically: somebody else's doing
            names = [path.relative_to(self.root).as_posix() for path in self.published()]
        return {self.root / name for name in names}

    def suspect(self, files: Iterable[Path]) -> None:
        """Read the digests of these files before they are used again."""
        with self.lock("suspects"):
            self._write_suspects(self.suspects() | set(files))

    def trust(self, files: Iterable[Path]) -> None:
        """These files were read and found sound, or are gone."""
        sound = set(files)
        if self.suspects() & sound:
            with self.lock("suspects"):
                self._write_suspects(self.suspects() - sound)

    def _write_suspects(self, files: set[Path]) -> None:
        names = sorted(path.relative_to(self.root).as_posix() for path in files)
        write_atomically(self.root / SUSPECTS, json.dumps(names, indent=0))

    def published(self) -> list[Path]:
        """Every file that artifacts are made of, and every shard of grids."""
        files = set(self.grids.glob("*/shard-*.h5"))
        for told in (self.root / "artifacts").glob(f"*/*/{LEDGER}"):
            ledger = Ledger.read(told.parent)
            if ledger is not None:
                files.update(path for path, _ in Artifact(told.parent, ledger).files(self.root))
        return sorted(files)

    def publish(
        self,
        stage: str,
        key: str,
        parts: dict[str, Any],
        outcome: Outcome,
        seconds: float,
        made_from: dict[str, str] | None = None,
    ) -> Artifact:
        """Rename the stage's partial folder into place, its ledger written last inside it.

        Files whose names begin with a dot are the stage's own (checkpoints): dropped once all is in place.
        """
        partial, folder = self.partial(stage, key), self.folder(stage, key)
        (partial / LEDGER).unlink(missing_ok=True)  # of a run whose upload was cut off
        files = {
            path.relative_to(partial).as_posix(): FileRecord(path.stat().st_size, digest_of_file(path))
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
            versions={name: metadata.version(name) for name in ("attend", "torch", "torchvision")},
            made_from=made_from or {},
        )
        for path in partial.rglob("*"):
            if path.is_file():
                flush(path)
        write_atomically(partial / LEDGER, json.dumps(asdict(ledger), indent=1, sort_keys=True))
        if self.remote is not None:
            there = self._elsewhere(folder, key)
            if there is not None:
                shutil.rmtree(partial)
                return there
            self._upload(self.remote, partial, folder, ledger)
        if folder.exists():  # damaged, else it would have been found fresh
            shutil.rmtree(folder)
        partial.rename(folder)
        flush(folder.parent)
        for path in folder.glob(".*"):  # what a killed run would have gone on from: not needed any more
            path.unlink()
        return Artifact(folder, ledger)

    def recent(self, run: str) -> Recent:
        """What the run of this name did last; `status` compares with it, and `prune` keeps it."""
        try:
            return Recent(**json.loads((self.root / "runs" / f"{run}.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            return Recent()

    def remember(self, run: str, stage: str, key: str, done: bool) -> None:
        """Note the key that a stage of this run works on, or is done with: then it works on nothing else any more."""
        with self.lock(f"run-{run}"):
            recent = self.recent(run)
            before = asdict(recent)
            if done:
                recent.done[stage] = key
                recent.begun.pop(stage, None)
            else:
                recent.begun[stage] = key
            if asdict(recent) != before:
                self._write_recent(run, recent)

    def prepare(self) -> None:
        """Make the workspace, or say in one line why it cannot be written."""
        try:
            for name in ("artifacts", "grids", "locks", "runs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            probe = self.root / "locks" / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise AttendError(
                f"{self.root}: the workspace cannot be written ({error.strerror}): "
                "give another with machine.workspace=FOLDER"
            ) from None

    def remember_only(self, run: str, stages: Collection[str]) -> None:
        """This run, come to its end, has these stages and no others any more: what others made it needs no longer."""
        with self.lock(f"run-{run}"):
            recent = self.recent(run)
            others = (recent.done.keys() | recent.begun.keys()) - set(stages)
            for stage in others:
                recent.done.pop(stage, None)
                recent.begun.pop(stage, None)
            if others:
                self._write_recent(run, recent)

    def _write_recent(self, run: str, recent: Recent) -> None:
        path = self.root / "runs" / f"{run}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(recent), indent=1, sort_keys=True))

    @contextlib.contextmanager
    def lock(self, name: str, doing: str | None = None, by: str = "another run is at it") -> Iterator[None]:
        """Hold the lock `name`, waiting for another process that has it. doing, by: told where that may take long.

        The kernel frees it when its holder dies, however it dies.
        """
        path = self.root / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=-1 if doing is None else 0)
        except filelock.Timeout:
            say(f"{doing}: {by}; waiting until that has finished")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _fetched(remote: Remote, far: str, folder: Path, ledger: Ledger) -> bool:
    """Download an artifact's files; whether all are there and as recorded."""
    for name, record in ledger.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            remote.get(f"{far}/{name}", folder / name)
        except FileNotFoundError:
            return False
        if digest_of_file(folder / name) != record.sha256:
            return False
    return True
