"""The files that pages share: their style sheet, and the script that draws where the model looked."""

from __future__ import annotations

import importlib.resources
import json


def page_file(name: str) -> str:
    """Return the text of a file of the folder pages/."""
    return (importlib.resources.files("tasks.evaluation") / "pages" / name).read_text(encoding="utf-8")


def script_data(data: object) -> str:
    """Return data as JSON within a <script> element, which a caption cannot end."""
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
