"""The format of a registered captioner, by which one that another version of attend wrote is refused."""

from __future__ import annotations

from typing import Any

from tasks.common.errors import AttendError

FORMAT = 2  # of config.json: raise it where this program could not use the captioners of before


def check_captioner(captioner: Any, shown: str) -> None:
    """Raise AttendError where another version of attend wrote a captioner. shown: its name, for the message."""
    found = captioner.config.get("format")
    if found != FORMAT:
        raise AttendError(
            f"{shown}: another version of attend wrote it (format {found}; this one reads {FORMAT}): run `attend run` "
            "again, which registers a new version; MLflow captions with the old one as before"
        )
