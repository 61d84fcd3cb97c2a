"""HTML pages of one file, and the files that pages share: their style sheet and their scripts."""

from __future__ import annotations

import html
import importlib.resources
import json
import string


def page_file(name: str) -> str:
    """Return the text of a file of the folder pages/."""
    return (importlib.resources.files("tasks.evaluation") / "pages" / name).read_text(encoding="utf-8")


def filled(template: str, title: str, **parts: str) -> str:
    """Return a page of a template. parts: what stands in it, as HTML."""
    return string.Template(template).substitute(title=html.escape(title), look=page_file("look.css"), **parts)


def page_of_data(name: str, title: str, data: object, **parts: str) -> str:
    """Return the page of `NAME.html`, which `NAME.js` fills from data. parts: as of `filled`."""
    return filled(
        page_file(f"{name}.html"),
        title,
        # JSON within a <script> element, which a caption cannot end.
        data=json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        heat=page_file("heat.js"),
        elements=page_file("elements.js"),
        script=page_file(f"{name}.js"),
        **parts,
    )
