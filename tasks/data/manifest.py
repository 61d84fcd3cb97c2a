"""manifest.parquet: one row for each picture of the data set.

Columns: name (path in the image folder), digest (SHA-256 of the file's bytes), split (train, dev, test), captions (list
of texts), facts (JSON or null). No other file has names: downstream stages identify a picture by its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.config.machine import MachineConfig
from tasks.data.sources import digests_of
from tasks.data.splits import hashed_split
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
GENERATED_FOLDER = "pictures"
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Picture:
    """A distinct picture content of one split, with the captions of all files that have this content."""

    digest: str
    name: str
    captions: list[str]
    facts: dict[str, Any] | None


class ManifestRow(TypedDict):
    """A row of manifest.parquet. facts: as JSON."""

    name: str
    digest: str
    split: str
    captions: list[str]
    facts: str | None


def write_manifest(data: DatasetOptions, machine: MachineConfig, inputs: Mapping[str, str], out: Path) -> Outcome:
    """Read the data set with its adapter, check it, split it, and write the manifest to `out`.

    inputs: the digests of the data set's files when the run began. Raises AttendError if the files have changed since
    then, if a row or its picture is not valid, or if the train or the dev split is empty.
    """
    rows = list(data.rows(out / GENERATED_FOLDER))
    folder = data.image_folder(out / GENERATED_FOLDER)
    workspace = machine.folder
    _check(rows, folder, data, set(picture_files(folder, without=None if data.unpacks else workspace)))
    paths = [folder / row.name for row in rows]
    digests = _uncached_digests(paths) if data.unpacks else Digests(workspace / "digests.sqlite").of(paths)
    if digests_of(data, machine) != inputs:
        raise AttendError(f"{data.path}: the data set changed while it was being read: run again")
    splits = [row.split or hashed_split(digests[path], data) for row, path in zip(rows, paths, strict=True)]
    records: list[ManifestRow] = [
        {
            "name": row.name,
            "digest": digests[path],
            "split": split,
            "captions": list(row.captions),
            "facts": json.dumps(row.facts) if row.facts is not None else None,
        }
        for row, path, split in zip(rows, paths, splits, strict=True)
    ]
    records.sort(key=lambda record: record["name"])
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), out / MANIFEST)
    notes = _duplicate_notes(records)
    present = sorted({record["split"] for record in records})
    content = {split: read_pictures(out, split) for split in present}
    products = {split: digest_of([[p.digest, p.captions, p.facts] for p in content[split]]) for split in present}
    products["pictures"] = digest_of(sorted({record["digest"] for record in records}))
    products["splits"] = digest_of([[split, products[split]] for split in present])
    for split in ("train", "dev"):
        if split not in present:
            raise AttendError(f"{data.path}: the split {split!r} is empty: {_how_to_fill(split, rows, data)}")
    undivided = sum(row.split is None for row in rows)
    if undivided:
        sizes = ", ".join(f"{len(content[split]):,} {split}" for split in SPLITS if split in content)
        notes.append(f"{undivided:,} pictures come without a split: divided by their content into {sizes}")
    counts: dict[str, int | float] = {"pictures": len({record["digest"] for record in records})}
    counts["captions"] = sum(len(row.captions) for row in rows)
    counts |= {split: len(content[split]) for split in present}
    return Outcome(products, counts, notes)


def _how_to_fill(split: str, rows: list[Row], data: DatasetOptions) -> str:
    """Return what to do about an empty split, as part of a message."""
    if any(row.split for row in rows):
        return "give it pictures in the data set's split files or column"
    change = f"raise data.dev_share (now {data.dev_share})"
    if split == "train":
        change = f"lower data.dev_share and data.test_share (now {data.dev_share} and {data.test_share})"
    return f"{change} or add pictures (the data set has {len(rows)})"


def _uncached_digests(paths: list[Path]) -> dict[Path, str]:
    """Return the SHA-256 of each file, without the cache: pictures that were just written are not in it."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _check(rows: list[Row], folder: Path, data: DatasetOptions, pictures: set[Path]) -> None:
    """Raise AttendError for the first row that is not valid, or if there is no row.

    folder: the image folder. pictures: all picture files in it.
    """
    if not rows:
        raise AttendError(f"{data.path}: the data set has no captioned picture: add one, or correct data.path")
    where_by_name: dict[str, str] = {}
    for row in rows:
        if row.name in where_by_name:
            raise AttendError(
                f"{row.where}: {row.name} has an entry already, at {where_by_name[row.name]}: remove one of the two"
            )
        where_by_name[row.name] = row.where
        if not row.captions:
            raise AttendError(f"{row.where}: {row.name} has no caption: add one, or remove its entry")
        if not (folder / row.name).is_file():
            raise AttendError(
                f"{row.where}: {row.name} is captioned, but there is no such picture in {folder}: "
                "add it or remove its captions"
            )
        if folder / row.name not in pictures:
            raise AttendError(
                f"{row.where}: {row.name} is not a picture file in {folder}: give its path relative to that folder, "
                f"ending in {', '.join(sorted(PICTURE_SUFFIXES))}"
            )


def _duplicate_notes(records: list[ManifestRow]) -> list[str]:
    """Return notes on pictures that have the same content: how many there are, and which are in two splits."""
    first_by_digest: dict[str, ManifestRow] = {}
    leaks, copies = [], 0
    for record in records:
        first = first_by_digest.setdefault(record["digest"], record)
        if first is not record:
            copies += 1
            if first["split"] != record["split"]:
                leaks.append(f"{first['name']} ({first['split']}) = {record['name']} ({record['split']})")
    notes = [f"{copies} pictures have the same content as another"] if copies else []
    if leaks:
        shown = "; ".join(leaks[:5]) + (f"; and {len(leaks) - 5} more" if len(leaks) > 5 else "")
        notes.append(f"{len(leaks)} pictures have the same content in two splits: {shown}")
    return notes


def read_pictures(manifest: Path, split: str) -> list[Picture]:
    """Return the distinct pictures of a split, ordered by digest; captions of copies are joined.

    manifest: the folder of the `ingest` artifact.
    """
    copies: dict[str, list[ManifestRow]] = {}
    for record in pq.read_table(manifest / MANIFEST, filters=[("split", "=", split)]).to_pylist():
        copies.setdefault(record["digest"], []).append(record)
    pictures = []
    for digest in sorted(copies):
        # Sorted by captions and facts, not by name: renaming a copy must not reorder the captions.
        records = sorted(copies[digest], key=lambda record: (record["captions"], record["facts"] or ""))
        captions = [caption for record in records for caption in record["captions"]]
        facts = json.loads(records[0]["facts"]) if records[0]["facts"] else None
        pictures.append(Picture(digest, records[0]["name"], captions, facts))
    return pictures


def files_by_digest(manifest: Path, data: DatasetOptions) -> dict[str, Path]:
    """Return, for the digest of every picture of the manifest, the path of a file with that content.

    manifest: the folder of the `ingest` artifact. data: the data set it was made from. Of several copies, the first by
    name.
    """
    folder = data.image_folder(manifest / GENERATED_FOLDER)
    table = pq.read_table(manifest / MANIFEST, columns=["digest", "name"]).to_pylist()
    return {record["digest"]: folder / record["name"] for record in reversed(table)}
