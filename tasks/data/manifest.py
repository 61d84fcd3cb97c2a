"""manifest.parquet: one row a picture of the data set.

Columns: name (path in the image folder), digest (SHA-256 of the file's bytes), split (train, dev, test),
captions (list of texts), facts (JSON or null). Names live here alone: downstream a picture is its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.config.schema import MachineConfig
from tasks.data.sources import digests_of
from tasks.datasets.base import PICTURE_SUFFIXES, DatasetOptions, Row, picture_files
from tasks.pipeline.file_digests import Digests
from tasks.pipeline.ledger import Outcome, digest_of

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("digest", pa.string()),
        ("split", pa.string()),
        ("captions", pa.list_(pa.string())),
        ("facts", pa.string()),
    ]
)
MANIFEST = "manifest.parquet"
GENERATED = "pictures"


@dataclass(frozen=True)
class Picture:
    """One distinct image content of one split, its names' captions joined."""

    digest: str
    name: str
    captions: list[str]
    facts: dict[str, Any] | None


def write_manifest(data: DatasetOptions, machine: MachineConfig, inputs: Mapping[str, str], out: Path) -> Outcome:
    """Read the data set with its adapter, check it, split it, and write the manifest to `out`.

    inputs: the digests of the data set's files when the run began. AttendError where they are others now.
    """
    rows = list(data.rows(out / GENERATED))
    folder = data.image_folder(out / GENERATED)
    workspace = machine.folder
    _check(rows, folder, data, set(picture_files(folder, without=None if data.unpacks else workspace)))
    paths = [folder / row.name for row in rows]
    digests = _direct(paths) if data.unpacks else Digests(workspace / "digests.sqlite").of(paths)
    if digests_of(data, machine) != inputs:
        raise AttendError(f"{data.path}: was changed while it was read: run again")
    splits = [row.split or hashed_split(digests[path], data) for row, path in zip(rows, paths, strict=True)]
    records = sorted(
        (
            {
                "name": row.name,
                "digest": digests[path],
                "split": split,
                "captions": list(row.captions),
                "facts": json.dumps(row.facts) if row.facts is not None else None,
            }
            for row, path, split in zip(rows, paths, splits, strict=True)
        ),
        key=lambda record: str(record["name"]),
    )
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), out / MANIFEST)
    notes = _told_twice(records)
    present = sorted({str(record["split"]) for record in records})
    content = {split: pictures_of(out, split) for split in present}
    products = {split: digest_of([[p.digest, p.captions, p.facts] for p in content[split]]) for split in present}
    products["pictures"] = digest_of(sorted({str(record["digest"]) for record in records}))
    products["splits"] = digest_of([[split, products[split]] for split in present])
    for split in ("train", "dev"):
        if split not in present:
            raise AttendError(f"{data.path}: the split {split!r} is empty: {_refill(rows, data)}")
    counts: dict[str, int | float] = {"pictures": len({record["digest"] for record in records})}
    counts["captions"] = sum(len(row.captions) for row in rows)
    counts |= {split: len(content[split]) for split in present}
    return Outcome(products, counts, notes)


def _refill(rows: list[Row], data: DatasetOptions) -> str:
    if any(row.split for row in rows):
        return "give it pictures in the data set's split files or column"
    return f"raise data.dev_share (now {data.dev_share}) or add pictures ({len(rows)} are there)"


def _direct(paths: list[Path]) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _check(rows: list[Row], folder: Path, data: DatasetOptions, pictures: set[Path]) -> None:
    if not rows:
        raise AttendError(f"{data.path}: the data set names no picture")
    seen: dict[str, str] = {}
    for row in rows:
        if row.name in seen:
            raise AttendError(f"{row.where}: {row.name} is described already, at {seen[row.name]}")
        seen[row.name] = row.where
        if not row.captions:
            raise AttendError(f"{row.where}: {row.name} has no caption: caption it or take it out")
        if not (folder / row.name).is_file():
            raise AttendError(f"{row.where}: {row.name} is captioned, but there is no such picture in {folder}")
        if folder / row.name not in pictures:
            raise AttendError(
                f"{row.where}: {row.name} is no picture of {folder}: give its path in that folder, "
                f"ending in {', '.join(sorted(PICTURE_SUFFIXES))}"
            )


def hashed_split(digest: str, data: DatasetOptions) -> str:
    """The split of a picture by its content alone: adding others never moves it."""
    place = int.from_bytes(hashlib.sha256(f"split {digest}".encode()).digest()[:8], "big") / 2**64
    if place < data.test_share:
        return "test"
    return "dev" if place < data.test_share + data.dev_share else "train"


def _told_twice(records: list[dict[str, Any]]) -> list[str]:
    first: dict[str, dict[str, Any]] = {}
    leaks, copies = [], 0
    for record in records:
        other = first.setdefault(record["digest"], record)
        if other is not record:
            copies += 1
            if other["split"] != record["split"]:
                leaks.append(f"{other['name']} ({other['split']}) = {record['name']} ({record['split']})")
    notes = [f"{copies} pictures have the same content as another"] if copies else []
    if leaks:
        shown = "; ".join(leaks[:5]) + (f"; and {len(leaks) - 5} more" if len(leaks) > 5 else "")
        notes.append(f"{len(leaks)} pictures have the same content in two splits: {shown}")
    return notes


def pictures_of(manifest: Path, split: str) -> list[Picture]:
    """The distinct pictures of a split, ordered by digest; captions of copies are joined."""
    copies: dict[str, list[dict[str, Any]]] = {}
    for record in pq.read_table(manifest / MANIFEST, filters=[("split", "=", split)]).to_pylist():
        copies.setdefault(record["digest"], []).append(record)
    pictures = []
    for digest in sorted(copies):
        # By what they say, not by name: a renamed copy must not reorder its captions.
        same = sorted(copies[digest], key=lambda record: (record["captions"], record["facts"] or ""))
        captions = [caption for record in same for caption in record["captions"]]
        facts = json.loads(same[0]["facts"]) if same[0]["facts"] else None
        pictures.append(Picture(digest, same[0]["name"], captions, facts))
    return pictures


def files_of(manifest: Path, folder: Path) -> dict[str, Path]:
    """Digest -> a file with that content, for every picture of the manifest."""
    table = pq.read_table(manifest / MANIFEST, columns=["digest", "name"]).to_pylist()
    return {record["digest"]: folder / record["name"] for record in reversed(table)}
