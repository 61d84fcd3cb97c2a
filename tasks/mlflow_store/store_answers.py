"""Answers of the embedded MLflow store, cached until its database changes.

MLflow takes seconds to load, and its answers to `attend status` and `attend caption` seldom change. They are cached in
a file of the workspace together with the state of the database, and used only while that state is the same.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tasks.common.files import write_atomically
from tasks.mlflow_store.embedded_store import DATABASE

Answer = TypeVar("Answer")
_FILE = "mlflow.db.answers"
# https://www.sqlite.org/fileformat.html: the header's write version (2: a write-ahead log, so that a change does not
# modify the database file), and the counter that each change of the file increments.
_HEADER, _WRITE_VERSION, _CHANGES = 100, 18, slice(24, 28)
_ROLLBACK_JOURNAL = 1


def ask(workspace: Path, question: str, answer: Callable[[], Answer]) -> Answer:
    """Return the cached answer to a question, else `answer()`, a JSON value, which is then cached.

    It is not cached if the database changes meanwhile, or if the workspace is not writable.
    """
    # A separate registry may be anywhere, so its answers are not cached.
    state = "" if os.environ.get("MLFLOW_REGISTRY_URI") else _state(workspace)
    cached = _read(workspace / _FILE, state)
    if question in cached:
        value: Answer = cached[question]
        return value
    value = answer()
    if state and _state(workspace) == state:
        cached = _read(workspace / _FILE, state)  # including answers that other processes have added
        with contextlib.suppress(OSError):  # it is asked again, which is only slower
            write_atomically(workspace / _FILE, json.dumps({"state": state, "answers": {**cached, question: value}}))
    return value


def _state(workspace: Path) -> str:
    """Return a text that differs between any two states of the database; empty if it cannot be read."""
    path = workspace / DATABASE
    try:
        stat = path.stat()
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return ""
    if len(header) < _HEADER or header[_WRITE_VERSION] != _ROLLBACK_JOURNAL:
        return ""
    return f"{stat.st_size} bytes, {stat.st_mtime_ns} ns, {int.from_bytes(header[_CHANGES])} changes"


def _read(path: Path, state: str) -> dict[str, Any]:
    """Return the answers cached for a state; none if there are none, or the file is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return dict(content["answers"]) if state and content["state"] == state else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
