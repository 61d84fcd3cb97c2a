"""The contents of scores.json: what an evaluation found, as a type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, TypedDict, cast

SCORES = "scores.json"


class ScoreRecord(TypedDict):
    """The scores of captions.

    scores: percent, by name. intervals: the 95 % interval of each, low and high. signature: everything that the scores
    depend on beside the captions. pictures: their number. language: the statistics of caption_statistics.py. data: the
    digest of the pictures and their references. also_in_training: how many of the pictures are, byte for byte, in the
    train split as well. Neither is there where the captions came from a file.
    """

    scores: dict[str, float]
    intervals: dict[str, list[float]]
    signature: str
    pictures: int
    language: dict[str, float]
    data: NotRequired[str]
    also_in_training: NotRequired[int]


def read_scores(folder: Path) -> ScoreRecord:
    """Return the contents of a folder's scores.json."""
    return cast(ScoreRecord, json.loads((folder / SCORES).read_text(encoding="utf-8")))


def write_scores(record: ScoreRecord, folder: Path) -> None:
    """Write scores.json into a folder."""
    (folder / SCORES).write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
