"""The page of an inspection: one HTML file with the pictures, which needs no server and no network."""

from __future__ import annotations

import html
import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from models.encoded_pictures import decode
from tasks.common.wording import counted
from tasks.evaluation.cards import thumbnail
from tasks.evaluation.page_files import filled
from tasks.inspection.record import (
    ALIKE,
    DOUBTFUL,
    FINDINGS,
    PAGE,
    UNLIKE,
    UNUSUAL,
    InspectionRecord,
    describe_drift,
)

_SHOWN = 24  # findings of a kind
_KINDS = {
    DOUBTFUL: (
        "Captions that probably belong to another picture",
        "To the trained model, this picture makes the words of such a caption hardly likelier than an average picture "
        "does. Some are right and only unusual: look before you change them.",
    ),
    ALIKE: (
        "Pictures that the backbone can hardly tell apart",
        "Another frame of the same moment, or a copy with other colours. Where one is to train on and the other to "
        "test with, the scores are too good.",
    ),
    UNUSUAL: ("Captions unlike the others", "By their script, their language or their length."),
    UNLIKE: (
        "Pictures least like those trained on",
        "Of those that arrived since the champion was trained, where there are any. Their captions are the least sure.",
    ),
}


def write_page(title: str, record: InspectionRecord, folder: Path, files: Mapping[str, Path] | None) -> None:
    """Write the page of an inspection beside its findings.

    folder: of findings.parquet. files: the photograph of each name in the findings; None if there are none to show.
    """
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
    for row in pq.read_table(folder / FINDINGS).to_pylist():
        rows[row["kind"]].append(row)
    sections = [_section(kind, rows[kind], record["counts"].get(kind, 0), files) for kind in _KINDS]
    template = importlib.resources.files("tasks.inspection") / "inspection.html"
    page = filled(
        template.read_text(encoding="utf-8"),
        title,
        seen=f"{counted(record['captions'], 'caption')} compared with their pictures, and "
        f"{counted(record['pictures'], 'picture')} with each other.",
        drift=html.escape(_sentence(describe_drift(record["drift"]))),
        sections="".join(sections),
    )
    (folder / PAGE).write_text(page, encoding="utf-8")


def _section(kind: str, rows: Sequence[Mapping[str, Any]], count: int, files: Mapping[str, Path] | None) -> str:
    """Return the section of a kind of findings. count: of all findings, of which `rows` are the first."""
    heading, about = _KINDS[kind]
    shown = rows[:_SHOWN]
    number = "none" if not count else counted(count, "finding")
    if len(shown) < count:
        number += f"; the first {len(shown)} are shown, the first {len(rows)} are in {FINDINGS}"
    cards = "".join(_card(row, files) for row in shown)
    return (
        f"<section><h2>{heading}</h2><p>{about}</p><p class='quiet'>{number}</p>"
        f"<div class='cards'>{cards}</div></section>"
    )


def _card(row: Mapping[str, Any], files: Mapping[str, Path] | None) -> str:
    """Return the card of a finding: its pictures, its caption, and the reason."""
    names = [row["name"], *([row["other"]] if row["other"] else [])]
    images = "".join(_image(files[name], name) for name in names) if files is not None else ""
    caption = f"<p class='words'>{html.escape(row['caption'])}</p>" if row["caption"] else ""
    places = html.escape(", ".join(names))
    return (
        f"<article class='card'><div class='pair'>{images}</div>{caption}<p>{html.escape(_sentence(row['why']))}</p>"
        f"<p class='quiet'>{places} ({row['split']})</p></article>"
    )


def _image(path: Path, name: str) -> str:
    """Return a photograph as an element; a note if it cannot be read any more."""
    try:
        jpeg, width, height = thumbnail(decode(path.read_bytes()))
    except (OSError, ValueError):
        return f"<p class='quiet'>{html.escape(name)} cannot be read</p>"
    source = f"data:image/jpeg;base64,{jpeg}"
    return f"<img src='{source}' width='{width}' height='{height}' alt='{html.escape(name, quote=True)}'>"


def _sentence(text: str) -> str:
    """Return a text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
