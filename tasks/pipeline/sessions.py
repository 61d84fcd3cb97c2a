"""Sessions record which runs are active in a workspace, to detect crashed runs and to keep `prune` out meanwhile.

Every run holds a marker, `locks/sessions/<id>.lock`, and removes it when it ends, in success or failure. A marker that
no process holds was left by a crash. The files in the workspace at that time are *suspect*: their digests are checked
before they are used again (see `Workspace.suspects`).
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
from tasks.common.log import log
from tasks.pipeline.workspace import Workspace

_SESSIONS = "sessions"  # the folder of the markers, and the lock that guards it


@dataclass(frozen=True)
class Session:
    """A run in a workspace: a description, its process id and its start (Unix time)."""

    doing: str
    process: int
    began: float


@contextlib.contextmanager
def session(workspace: Workspace, doing: str) -> Iterator[None]:
    """Hold a session in the workspace for the length of the block; first mark files left by a crashed run as suspect.

    doing: a description of the run, for messages.
    """
    session_id = uuid.uuid4().hex
    folder = _marker_folder(workspace)
    marker = filelock.FileLock(folder / f"{session_id}.lock")
    with workspace.lock(_SESSIONS, doing, "the workspace is being tidied"):
        _mark_suspects(workspace)
        marker.acquire()
        description = json.dumps({"doing": doing, "process": os.getpid(), "began": time.time()})
        write_atomically(folder / f"{session_id}.json", description)
    try:
        yield
    finally:
        with workspace.lock(_SESSIONS):
            (folder / f"{session_id}.json").unlink(missing_ok=True)
            marker.release()
            (folder / f"{session_id}.lock").unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive_session(workspace: Workspace, doing: str) -> Iterator[None]:
    """Keep every run out of the workspace for the length of the block. Raises AttendError if one is active.

    doing: a description of the block, for messages.
    """
    with workspace.lock(_SESSIONS):
        running, _ = _running_and_crashed(workspace)
        if running:
            runs = "; ".join(f"{run.doing} (process {run.process})" for run in running)
            raise AttendError(f"{workspace.root}: {doing}: a run is going on: {runs}: try again when it has ended")
        yield


def _mark_suspects(workspace: Workspace) -> None:
    """Remove the temporary files of crashed runs and mark all published files as suspect; do nothing without a crash.

    The caller holds the lock `sessions`.
    """
    _, crashed = _running_and_crashed(workspace)
    if crashed:
        drop_temporaries(
            (workspace.root, workspace.root / "runs", workspace.root / "runs" / "mlflow", _marker_folder(workspace))
        )
        workspace.suspect(workspace.published())
        first = next(iter(crashed.values()))
        log.warning(f"{first.doing}: was cut off; the files that it may have changed are checked before they are used")
    for marker in crashed:  # only now, so that a kill in between forgets no crash
        marker.with_suffix(".json").unlink(missing_ok=True)
        marker.unlink(missing_ok=True)


def _marker_folder(workspace: Workspace) -> Path:
    folder = workspace.root / "locks" / _SESSIONS
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _running_and_crashed(workspace: Workspace) -> tuple[list[Session], dict[Path, Session]]:
    """Return the running sessions, and the crashed ones by the path of their marker."""
    running, crashed = [], {}
    for marker in sorted(_marker_folder(workspace).glob("*.lock")):
        description = _read(marker.with_suffix(".json"))
        lock = filelock.FileLock(marker)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            running.append(description)
            continue
        lock.release()
        crashed[marker] = description
    return running, crashed


def _read(path: Path) -> Session:
    try:
        return Session(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # the run was killed before it wrote its description
        return Session("a run", 0, 0.0)
