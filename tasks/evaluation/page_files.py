"""The files that pages share: their look, and the script that draws where the model looked."""

from __future__ import annotations

import importlib.resources


def page_file(name: str) -> str:
    """Return the text of a file of the folder pages/."""
    return (importlib.resources.files("tasks.evaluation") / "pages" / name).read_text(encoding="utf-8")
