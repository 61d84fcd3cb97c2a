"""The format of a registered captioner, by which one that another version of attend wrote is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.common.errors import AttendError

FORMAT = 4  # of config.json: raise it where this program could not use the captioners of before
LOADER = "load.py"  # in a bundle: the code that loads it


def check_bundle(folder: Path, shown: str) -> None:
    """Raise AttendError where another version of attend wrote a bundle. shown: its name, for the message."""
    check_captioner(json.loads((folder / "config.json").read_text(encoding="utf-8")), shown)


def check_captioner(config: Mapping[str, Any], shown: str) -> None:
    """Raise AttendError where another version of attend wrote a captioner.

    config: its config.json. shown: its name, for the message.
    """
    found = config.get("format")
    if found != FORMAT:
        raise AttendError(
            f"{shown}: another version of attend wrote it (format {found or 1}; this one reads {FORMAT}): train it "
            "again, or use the version that wrote it; MLflow captions with a registered one as before"
        )
