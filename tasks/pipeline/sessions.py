"""A run's stay in a workspace: how an orderly end is told from a crash, and what keeps `prune` out meanwhile.

Every run holds a marker, `locks/sessions/<id>.lock`, and takes it away when it ends, in success or failure. A marker
that nobody holds is a crash: what was in the workspace then is *suspect*, and its digests are read before it is used
again (see `Workspace.suspects`).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from tasks.common.errors import AttendError
from tasks.common.files import drop_temporaries, write_atomically
from tasks.common.progress import say
from tasks.pipeline.workspace import Workspace

_GATE = "sessions"


@dataclass(frozen=True)
class Session:
    """A run that is going on: what it does, in words, its process and when it began (Unix time)."""

    doing: str
    process: int
    began: float


def notice_crashes(workspace: Workspace) -> None:
    """Make the files of a run that was killed suspect."""
    if any((workspace.root / "locks" / _GATE).glob("*.lock")):
        with workspace.lock(_GATE):
            _notice(workspace)


@contextlib.contextmanager
def session(workspace: Workspace, doing: str) -> Iterator[None]:
    """Be in the workspace for as long as the block takes. What a crashed run left there becomes suspect."""
    name = uuid.uuid4().hex
    folder = _folder(workspace)
    marker = filelock.FileLock(folder / f"{name}.lock")
    with workspace.lock(_GATE, doing, "the workspace is being tidied"):
        _notice(workspace)
        marker.acquire()
        told = json.dumps({"doing": doing, "process": os.getpid(), "began": time.time()})
        write_atomically(folder / f"{name}.json", told)
    try:
        yield
    finally:
        with workspace.lock(_GATE):
            (folder / f"{name}.json").unlink(missing_ok=True)
            marker.release()
            (folder / f"{name}.lock").unlink(missing_ok=True)


@contextlib.contextmanager
def alone(workspace: Workspace, doing: str) -> Iterator[None]:
    """Keep every other run out of the workspace; AttendError where one is in it already."""
    with workspace.lock(_GATE):
        running, _ = _look(workspace, forget=False)
        if running:
            told = "; ".join(f"{item.doing} (process {item.process})" for item in running)
            raise AttendError(f"{workspace.root}: {doing}: a run is going on: {told}: try again when it has ended")
        yield


def _notice(workspace: Workspace) -> None:
    _, crashed = _look(workspace)
    if crashed:
        drop_temporaries(
            (workspace.root, workspace.root / "runs", workspace.root / "runs" / "mlflow", _folder(workspace))
        )
        workspace.suspect(workspace.published())
        say(f"{crashed[0].doing}: was cut off; what it may have touched is checked before it is used")


def _folder(workspace: Workspace) -> Path:
    folder = workspace.root / "locks" / _GATE
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _look(workspace: Workspace, forget: bool = True) -> tuple[list[Session], list[Session]]:
    """The sessions that are going on, and those that crashed; these are told once (forget)."""
    running, crashed = [], []
    for path in sorted(_folder(workspace).glob("*.lock")):
        told = path.with_suffix(".json")
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            running.append(_read(told))
            continue
        crashed.append(_read(told))
        if forget:
            told.unlink(missing_ok=True)
        lock.release()
        if forget:
            path.unlink(missing_ok=True)
    return running, crashed


def _read(path: Path) -> Session:
    try:
        return Session(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # killed before it was written
        return Session("a run", 0, 0.0)
