"""The commit of this program, for the records of its results."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def commit() -> str:
    """Return the commit of the repository that this program runs from, with `+changes` if its files differ from it.

    Empty if it was installed, or if there is no git: then its version identifies it.
    """
    if not (_ROOT / ".git").exists():
        return ""
    described = ["git", "-C", str(_ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
