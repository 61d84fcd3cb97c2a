"""What a finished stage records of itself, and what a stage function is handed and hands back.

An artifact is a folder `artifacts/<stage>/<key>` of the workspace. Its `ledger.json` is written last, inside
a temporary folder that is then renamed into place: no ledger, no artifact. The ledger alone decides what is
fresh; it needs json and hashlib to be read, nothing of this program.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEDGER = "ledger.json"
FORMAT = 1


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no white space, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 of one file of an artifact."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Outcome:
    """What a stage function hands back beside the files it wrote.

    products: name -> content digest; downstream keys are made of these, so that content which comes out the
    same cuts a wave of staleness off. shared: files outside the artifact that it needs (the grid cache),
    relative to the workspace.
    """

    products: dict[str, str]
    counts: dict[str, int | float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    shared: dict[str, FileRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """The record of a finished stage: everything but the files themselves."""

    stage: str
    key: str
    parts: dict[str, Any]
    products: dict[str, str]
    files: dict[str, FileRecord]
    shared: dict[str, FileRecord]
    counts: dict[str, int | float]
    notes: list[str]
    seconds: float
    versions: dict[str, str]
    made_from: dict[str, str] = field(default_factory=dict)  # kind -> key of the upstream artifacts that were read
    format: int = FORMAT

    @staticmethod
    def read(folder: Path) -> Ledger | None:
        """The ledger of an artifact's folder; None where there is none or it is not whole."""
        try:
            values = json.loads((folder / LEDGER).read_text(encoding="utf-8"))
            for kind in ("files", "shared"):
                values[kind] = {name: FileRecord(**record) for name, record in values[kind].items()}
            return Ledger(**values)
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(frozen=True)
class Artifact:
    """A published stage: where its files are and what it records of them."""

    path: Path
    ledger: Ledger

    @property
    def products(self) -> dict[str, str]:
        return self.ledger.products

    def files(self, root: Path) -> list[tuple[Path, FileRecord]]:
        """Every file it needs, its own and those it shares, and what is recorded of each. root: the workspace."""
        own = [(self.path / name, record) for name, record in self.ledger.files.items()]
        return own + [(root / name, record) for name, record in self.ledger.shared.items()]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed between two stages' parts, a line each: `training.epochs: 5 -> 6`."""
    before, after = _flat(old), _flat(new)
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was != now:
            lines.append(f"{name}: {_short(was)} -> {_short(now)}")
    return lines


def _flat(parts: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {"stage version": parts.get("version")}
    for section, values in parts.get("config", {}).items():
        flat |= {f"{section}.{name}": value for name, value in values.items()}
    flat |= {f"upstream {name}": value for name, value in parts.get("upstream", {}).items()}
    flat |= dict(parts.get("inputs", {}))
    return flat


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text[:12] if len(text) == 64 else text
