"""The ledger, which records a finished stage; the artifact that it describes; and the outcome of a stage.

An artifact is a folder `artifacts/<stage>/<key>` of the workspace. Its `ledger.json` is written last, inside a
temporary folder that is then renamed to its final path: a folder without a ledger is not an artifact. The ledger alone
decides what is fresh. Reading it takes only json and hashlib, no code of this program.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from tasks.common.errors import check_format
from tasks.common.files import digest_of_file

LEDGER = "ledger.json"
FORMAT = 1


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value: keys sorted, without white space. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """Return the SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@dataclass(frozen=True)
class FileRecord:
    """The size in bytes and the SHA-256 of one file of an artifact."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Return the record of a file in its current state."""
        return cls(path.stat().st_size, digest_of_file(path))


@dataclass(frozen=True)
class Outcome:
    """The result of a stage function, besides the files that it wrote.

    products: name -> content digest. Downstream keys consist of these, so a stage that runs again and produces the
    same content makes no downstream stage stale. counts, notes: reported to the user. shared: files outside the
    artifact that it needs (the grid cache), by path relative to the workspace.
    """

    products: dict[str, str]
    counts: dict[str, int | float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    shared: dict[str, FileRecord] = field(default_factory=dict)


class KeyParts(TypedDict):
    """The value whose digest is a stage's key.

    stage: its kind. config: section -> field -> value. upstream: label of a product -> digest. inputs: name of a file
    from outside the workspace -> digest.
    """

    stage: str
    version: int
    config: dict[str, dict[str, Any]]
    upstream: dict[str, str]
    inputs: dict[str, str]


@dataclass(frozen=True)
class Ledger:
    """The record of a finished stage: everything except the contents of its files."""

    stage: str
    key: str
    parts: KeyParts
    products: dict[str, str]
    files: dict[str, FileRecord]
    shared: dict[str, FileRecord]
    counts: dict[str, int | float]
    notes: list[str]
    seconds: float
    versions: dict[str, str]
    made_from: dict[str, str] = field(default_factory=dict)  # kind -> key of the upstream artifacts that were read
    format: int = FORMAT
    publication: str = ""  # in object storage: the subfolder of the files, a new one for each upload

    @staticmethod
    def read(folder: Path) -> Ledger | None:
        """Return the ledger in an artifact's folder; None if it is missing or incomplete.

        Raises AttendError for a ledger of a later format.
        """
        path = folder / LEDGER
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            check_format(values["format"], FORMAT, str(path))
            for kind in ("files", "shared"):
                records = values[kind].items()
                values[kind] = {name: FileRecord(record["size"], record["sha256"]) for name, record in records}
            ledger = Ledger(**values)
            return ledger if ledger.has_its_types() else None
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def has_its_types(self) -> bool:
        """Return whether the fields have their declared types: a file may contain anything."""
        mappings = (self.parts, self.products, self.counts, self.versions, self.made_from)
        texts = (self.stage, self.key, self.publication, *self.products.values(), *self.made_from.values())
        records = (*self.files.values(), *self.shared.values())
        return (
            all(isinstance(mapping, dict) for mapping in mappings)
            and all(isinstance(text, str) for text in (*texts, *(record.sha256 for record in records), *self.notes))
            and all(isinstance(number, int | float) for number in (self.seconds, *self.counts.values()))
            and all(isinstance(record.size, int) for record in records)
        )

    def to_json(self) -> str:
        """Return the text of ledger.json."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)


@dataclass(frozen=True)
class Artifact:
    """The published result of a stage: the folder of its files, and their ledger."""

    path: Path
    ledger: Ledger

    @property
    def products(self) -> dict[str, str]:
        return self.ledger.products

    def files(self, root: Path) -> list[tuple[Path, FileRecord]]:
        """Return the path and the record of every file in the artifact and every shared file that it needs.

        root: the workspace's folder.
        """
        files = [(self.path / name, record) for name, record in self.ledger.files.items()]
        return files + [(root / name, record) for name, record in self.ledger.shared.items()]


_DIGEST = 64  # characters of a SHA-256 digest


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the differences between the parts of two keys of a stage, one line each: `training.epochs: 5 -> 6`."""
    old_values, new_values = _flatten(old), _flatten(new)
    lines = []
    for name in sorted(old_values.keys() | new_values.keys()):
        old_value, new_value = old_values.get(name), new_values.get(name)
        if old_value != new_value:
            digests = all(len(str(value)) == _DIGEST for value in (old_value, new_value))
            lines.append(f"{name} changed" if digests else f"{name}: {_shorten(old_value)} -> {_shorten(new_value)}")
    return lines


def _flatten(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested parts of a key as one level of dotted names."""
    flat: dict[str, Any] = {"stage version": parts.get("version")}
    for section, values in parts.get("config", {}).items():
        for name, value in values.items():
            flat |= _named(f"{section}.{name}", value)
    flat |= {f"the product {name}": value for name, value in parts.get("upstream", {}).items()}
    flat |= dict(parts.get("inputs", {}))
    return flat


def _named(name: str, value: Any) -> dict[str, Any]:
    """Return a field's value by its dotted name; for a list of pairs (name, fields), each field by its own name.

    The list's own name maps to the names of the pairs, in order.
    """
    if not (value and isinstance(value, list) and all(isinstance(item, list) for item in value)):
        return {name: value}
    fields = {f"{name}.{key}.{field}": field_value for key, values in value for field, field_value in values.items()}
    return {name: ", ".join(key for key, _ in value), **fields}


def _shorten(value: Any) -> str:
    """Return a value as text; for a SHA-256 digest, its first 12 digits."""
    text = "nothing" if value is None else str(value)
    return text[:12] if len(text) == _DIGEST else text
