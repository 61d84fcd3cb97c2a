"""The files of an inspection, the kinds of its findings, and its record in words. Nothing heavy is imported here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict, cast

FINDINGS, INSPECTION, PAGE = "findings.parquet", "inspection.json", "inspection.html"
DOUBTFUL, ALIKE, UNUSUAL, UNLIKE = "doubtful caption", "look-alike", "unusual caption", "unlike the rest"
KINDS = (DOUBTFUL, ALIKE, UNUSUAL, UNLIKE)


class DriftRecord(TypedDict):
    """The result of a test for drift (drift.py).

    alarm: whether the new pictures have another distribution, at `level`. probability: of a distance as great by
    chance. known, arrived: number of pictures on either side.
    """

    alarm: bool
    probability: float
    distance: float
    level: float
    known: int
    arrived: int


class InspectionRecord(TypedDict):
    """The contents of inspection.json.

    captions, pictures: the numbers of captions compared with their pictures, and of pictures compared with each other.
    counts: findings of each kind, of which the table has the first ones. drift: the test, or why there was none.
    """

    captions: int
    pictures: int
    counts: dict[str, int]
    drift: DriftRecord | str


def describe_drift(drift: DriftRecord | str) -> str:
    """Return the result of the test for drift in words."""
    if isinstance(drift, str):
        return f"drift was not looked for: {drift}"
    numbers = (
        f"{drift['arrived']:,} pictures that arrived since the champion was trained, and {drift['known']:,} of before"
    )
    chance = f"p = {drift['probability']:.3f}, an alarm from {drift['level']:g} down"
    if drift["alarm"]:
        return f"the pictures that arrive are other than those of before: {numbers}; {chance}"
    return f"the pictures that arrive are like those of before: {numbers}; {chance}"


def describe_counts(record: InspectionRecord) -> str:
    """Return the number of findings of each kind in words."""
    kinds = [f"{count:,} {kind}{'s' * (count != 1)}" for kind, count in record["counts"].items() if kind != UNLIKE]
    return f"{', '.join(kinds) or 'nothing'}; {record['captions']:,} captions were looked at"


def read_inspection(folder: Path) -> InspectionRecord:
    """Return the contents of a folder's inspection.json."""
    return cast(InspectionRecord, json.loads((folder / INSPECTION).read_text(encoding="utf-8")))
