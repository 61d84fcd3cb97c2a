"""manifest.parquet: one row for each picture of the data set.

Columns: name (path in the image folder), digest (SHA-256 of the file's bytes), split (train, dev, test), captions (list
of texts), facts (JSON or null). No other file has names: downstream stages identify a picture by its digest.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.common.wording import counted, counted_by_split
from tasks.config.machine import MachineConfig
from tasks.data.fingerprints import DATABASE as FINGERPRINTS
from tasks.data.inputs import digests_of
from tasks.data.near_duplicates import near_duplicates
from tasks.data.splits import divide, divides, joined
from tasks.datasets.base import SPLITS, DatasetOptions, PictureFile, Row, paths_of, pictures_of
from tasks.datasets.faults import Faults
from tasks.datasets.picture_finder import PictureFinder
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
GIVEN_WORDS = "given_words.json"  # the words of the data set's own vocabulary, if it has one
LEFT_OUT = "left_out.txt"  # the rows that `data.on_error: skip` left out: one line each, with place and reason


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
    then, if a row or its picture is not valid (unless such rows are skipped), or if train or dev is empty.
    """
    faults = Faults(gather=data.on_error == "skip")
    generated, workspace = out / GENERATED_FOLDER, machine.folder
    rows = list(data.rows(generated, faults))
    rows = valid_rows(rows, data, generated, pictures_of(data, generated), faults)
    paths = paths_of(data, [row.name for row in rows], generated)
    digests = _digests(paths, out, workspace / "digests.sqlite")
    alike: list[list[str]] = []
    if data.near_duplicates == "together" and divides((row.split for row in rows), data):
        alike = near_duplicates({digests[name]: path for name, path in paths.items()}, workspace / FINGERPRINTS)
    rows, notes = joined(rows, digests, data, faults, alike)
    if digests_of(data, machine) != inputs:
        raise AttendError(f"{data.place}: the data set changed while it was being read: run again")
    divided = divide([(row.split, digests[row.name]) for row in rows], data, alike)
    records: list[ManifestRow] = [
        {
            "name": row.name,
            "digest": digests[row.name],
            "split": split,
            "captions": captions_of(row, split, data),
            "facts": json.dumps(row.facts) if row.facts is not None else None,
        }
        for row, split in zip(rows, divided.splits, strict=True)
    ]
    records.sort(key=lambda record: record["name"])
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), out / MANIFEST)
    notes += _duplicate_notes(records)
    present = sorted({record["split"] for record in records})
    content = {split: read_pictures(out, split) for split in present}
    products = {split: digest_of([[p.digest, p.captions, p.facts] for p in content[split]]) for split in present}
    products["pictures"] = digest_of(sorted({record["digest"] for record in records}))
    products["splits"] = digest_of([[split, products[split]] for split in present])
    vocabulary = data.given_words()
    if vocabulary is not None:
        (out / GIVEN_WORDS).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        products["words"] = digest_of(vocabulary)
    for split in ("train", "dev"):
        if split not in present:
            raise AttendError(f"{data.place}: the split {split!r} is empty: {how_to_fill(split, rows, data)}")
    sizes = {split: len(content[split]) for split in SPLITS if split in content}
    if divided.note:
        notes.append(f"{divided.note}: {counted_by_split(sizes)}")
    counts: dict[str, int | float] = {"pictures": len({record["digest"] for record in records})}
    counts["captions"] = sum(len(row.captions) for row in rows)
    counts |= sizes
    if faults.found:
        (out / LEFT_OUT).write_text("".join(f"{fault}\n" for fault in faults.found), encoding="utf-8")
        counts["left out"] = len(faults.found)
        notes.append(
            f"{counted(len(faults.found), 'row')} left out, listed in {LEFT_OUT}; the first: {faults.found[0]}"
        )
    return Outcome(products, counts, notes)


def how_to_fill(split: str, rows: list[Row], data: DatasetOptions) -> str:
    """Return the remedy for an empty split, as part of a message."""
    if split == "train" and any(row.split for row in rows):
        return "give it pictures in the data set's split files, folders or column"
    change = f"raise data.dev_share (now {data.dev_share})"
    if split == "train":
        change = f"lower data.dev_share and data.test_share (now {data.dev_share} and {data.test_share})"
    return f"{change} or add pictures (the data set has {len(rows)})"


def captions_of(row: Row, split: str, data: DatasetOptions) -> list[str]:
    """Return the captions of a row in this split; in train they are repeated by its source's weight."""
    weight = data.parts()[data.prefix_of(row.name)].weight if split == "train" else 1
    return list(row.captions) * weight


def _digests(paths: Mapping[str, Path], written: Path, database: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by name, from the cache except for newly `written` pictures, which bypass it."""
    unwritten = [path for path in paths.values() if not path.is_relative_to(written)]
    digests = Digests(database).of(unwritten) if unwritten else {}
    return {name: digests.get(path) or digest_of_file(path) for name, path in paths.items()}


def valid_rows(
    rows: list[Row], data: DatasetOptions, generated: Path, pictures: list[PictureFile], faults: Faults
) -> list[Row]:
    """Return the rows that have captions and a picture not named by another row; other rows are faults.

    generated: the folder for pictures from the adapter. pictures: all picture files of the data set. Raises
    AttendError if no row is valid.
    """
    names = {picture.name for picture in pictures}
    # macOS separates accents from letters in file names, unlike most programs.
    composed = {unicodedata.normalize("NFC", name): name for name in names}
    where_by_name: dict[str, str] = {}
    finders: dict[str, PictureFinder] = {}  # by the prefix of their names, for advice on missing pictures
    valid = []
    for row in rows:
        name = row.name if row.name in names else composed.get(unicodedata.normalize("NFC", row.name), row.name)
        with faults.of_row():
            if name in where_by_name:
                raise AttendError(
                    f"{row.where}: {name} has an entry already, at {where_by_name[name]}: remove one of the two"
                )
            where_by_name[name] = row.where
            if not row.captions:
                raise AttendError(f"{row.where}: {name} has no caption: add one, or remove its entry")
            if name not in names:
                prefix = data.prefix_of(name)
                if prefix not in finders:
                    folder = data.parts()[prefix].image_folder(generated / prefix)
                    inner_names = (other.removeprefix(prefix) for other in names if other.startswith(prefix))
                    finders[prefix] = PictureFinder(folder, inner_names)
                finders[prefix].one(name.removeprefix(prefix), [], row.where)
            valid.append(row if name == row.name else replace(row, name=name))
    if not valid:
        first = f": the first fault: {faults.found[0]}" if faults.found else ": add one, or correct data.path"
        raise AttendError(f"{data.place}: the data set has no captioned picture{first}")
    return valid


def _duplicate_notes(records: list[ManifestRow]) -> list[str]:
    """Return notes on pictures with the same content: their number, and those in two splits."""
    first_by_digest: dict[str, ManifestRow] = {}
    leaks, copies = [], 0
    for record in records:
        first = first_by_digest.setdefault(record["digest"], record)
        if first is not record:
            copies += 1
            if first["split"] != record["split"]:
                leaks.append(f"{first['name']} ({first['split']}) = {record['name']} ({record['split']})")
    notes = [f"{counted(copies, 'picture')} with the same content as another"] if copies else []
    if leaks:
        shown = "; ".join(leaks[:5]) + (f"; and {len(leaks) - 5} more" if len(leaks) > 5 else "")
        notes.append(f"{counted(len(leaks), 'picture')} with the same content in two splits: {shown}")
    return notes


def read_pictures(manifest: Path, split: str) -> list[Picture]:
    """Return the distinct pictures of a split, ordered by digest; the captions of copies are concatenated.

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


def files_by_digest(manifest: Path, data: DatasetOptions, digests: Collection[str] | None = None) -> dict[str, Path]:
    """Return, for the digest of every picture of the manifest, the path of a file with that content.

    manifest: the folder of the `ingest` artifact. data: its data set. digests: of the wanted pictures; None for all. Of
    several copies, the first by name is returned.
    """
    filters = None if digests is None else [("digest", "in", list(digests))]
    table = pq.read_table(manifest / MANIFEST, columns=["digest", "name"], filters=filters).to_pylist()[::-1]
    paths = paths_of(data, [record["name"] for record in table], manifest / GENERATED_FOLDER)
    return {record["digest"]: paths[record["name"]] for record in table}


def sources_by_digest(manifest: Path, data: DatasetOptions) -> dict[str, set[str]]:
    """Return the sources of each picture, by its digest; empty if the data set has no sources.

    Arguments as in `files_by_digest`.
    """
    sources: dict[str, set[str]] = {}
    for record in pq.read_table(manifest / MANIFEST, columns=["digest", "name"]).to_pylist():
        if prefix := data.prefix_of(record["name"]):
            sources.setdefault(record["digest"], set()).add(prefix.rstrip("/"))
    return sources


def files_by_name(manifest: Path, data: DatasetOptions) -> dict[str, Path]:
    """Return the path of every picture of the manifest, by its name there. Arguments as in `files_by_digest`."""
    names = pq.read_table(manifest / MANIFEST, columns=["name"])["name"].to_pylist()
    return paths_of(data, names, manifest / GENERATED_FOLDER)


def sizes_in_words(counts: Mapping[str, float]) -> str:
    """Return `10 pictures (8 train, 1 dev, 1 test) with 50 captions` for the counts in the ledger of a manifest."""
    by_split = {split: counts[split] for split in SPLITS if split in counts}
    twice = int(sum(by_split.values()) - counts["pictures"])
    sizes = counted_by_split(by_split) + (f"; {twice:,} of them in two splits" if twice else "")
    return f"{counted(int(counts['pictures']), 'picture')} ({sizes}) with {counted(int(counts['captions']), 'caption')}"
