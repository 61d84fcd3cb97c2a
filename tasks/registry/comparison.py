"""Two models compared on the same pictures, by their captions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tasks.common.errors import AttendError
from tasks.evaluation.caption_and_score import read_predictions
from tasks.metrics import ScoredCaption, load
from tasks.metrics.bootstrap import ScoreComparison, compare


@dataclass(frozen=True)
class ModelComparison:
    """Two models on the same pictures.

    captions: digest of a picture -> the caption and references of the first and of the second model. scores: each score
    of both models, compared. left_out: pictures that were not compared because a model was trained on them.
    """

    captions: dict[str, tuple[ScoredCaption, ScoredCaption]]
    scores: list[ScoreComparison]
    left_out: int = 0


def side_by_side(
    first: Path,
    second: Path,
    metrics: tuple[str, ...],
    trained_on: Collection[str] = (),
    among: Collection[str] | None = None,
) -> ModelComparison:
    """Compare two predictions files on the pictures that both have; AttendError if they have none in common.

    trained_on: the digests of pictures that one of the models was trained on, which are left out. among: the digests
    of the pictures to compare; None for all.
    """
    first_items, second_items = read_predictions(first), read_predictions(second)
    shared = {digest: (item, second_items[digest]) for digest, item in first_items.items() if digest in second_items}
    if among is not None:
        shared = {digest: pair for digest, pair in shared.items() if digest in among}
    if not shared:
        raise AttendError(f"{second}: has no picture in common with {first}: compare predictions of the same pictures")
    compared = {digest: pair for digest, pair in shared.items() if digest not in trained_on}
    scores: list[ScoreComparison] = []
    if compared:
        first_corpus, second_corpus = zip(*compared.values(), strict=True)
        scores = [score for name in metrics for score in compare(load(name), first_corpus, second_corpus)]
    return ModelComparison(compared, scores, len(shared) - len(compared))
