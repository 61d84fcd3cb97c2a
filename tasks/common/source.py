"""The commit of this program, for the records of what it made."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def commit() -> str:
    """Return the commit of the repository that this program runs from, `+changes` where its files differ from it.

    Empty where it was installed, or where there is no git: its version tells then what it is.
    """
    if not (_ROOT / ".git").exists():
        return ""
    git = ["git", "-C", str(_ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head}{'+changes' if changes else ''}"
