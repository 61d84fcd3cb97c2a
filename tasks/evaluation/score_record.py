"""The type of scores.json, the results of an evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, TypedDict, cast

SCORES = "scores.json"
NO_BETTER = "no better than copying captions of similar pictures; try more pictures or a better backbone"


class ConfidenceScores(TypedDict):
    """How well the confidence separates acceptable captions from others, on pictures that it was not fitted to.

    acceptable: the definition of acceptable, in words. pictures: the number of pictures. share: of acceptable captions.
    calibration_error: the mean absolute difference between confidence and share of acceptable captions, over bins of
    equal size. ranking: for the order by confidence, by log-probability, and at random, the area under the
    risk-coverage curve (Geifman and El-Yaniv 2017): the mean share of captions that are not acceptable among the 1, 2,
    ... ranked first. gain: the 95 % interval of log-probability's area minus confidence's, by the paired bootstrap.
    auroc: the probability that an acceptable caption is ranked before one that is not. bins: each bin's confidence,
    share of acceptable captions and number of pictures. curve: points of coverage, and the share of captions that are
    not acceptable by confidence and by log-probability.
    """

    acceptable: str
    pictures: int
    share: float
    calibration_error: float
    ranking: dict[str, float]
    gain: list[float]
    auroc: float
    bins: list[list[float]]
    curve: list[list[float]]


class CopiedScore(TypedDict):
    """A score of captions copied from similar training pictures, in percent.

    gain: the 95 % interval of how much higher the model's captions score, by the paired bootstrap.
    """

    value: float
    gain: list[float]


class ScoreRecord(TypedDict):
    """The scores of captions.

    scores: percent, by name. intervals: the 95 % interval of each, low and high. signature: everything that the scores
    depend on besides the captions. pictures: their number. language: the statistics of caption_statistics.py. data: the
    digest of the pictures and their references. also_in_training: how many of the pictures are, byte for byte, also in
    the train split. neighbours: how the captions of similar training pictures rank captions (the fields of
    options.Neighbours), or why they do not. copied: the scores of captions copied from them, by name. confidence: how
    well the captions' confidence separates good ones from others, or why they have none. The fields from `data` on are
    missing if the captions came from a file; only an evaluation fits a confidence.
    """

    scores: dict[str, float]
    intervals: dict[str, list[float]]
    signature: str
    pictures: int
    language: dict[str, float]
    data: NotRequired[str]
    also_in_training: NotRequired[int]
    neighbours: NotRequired[dict[str, float | None] | str]
    copied: NotRequired[dict[str, CopiedScore]]
    confidence: NotRequired[ConfidenceScores | str]


def read_scores(folder: Path) -> ScoreRecord:
    """Return the contents of a folder's scores.json."""
    return cast(ScoreRecord, json.loads((folder / SCORES).read_text(encoding="utf-8")))


def write_scores(record: ScoreRecord, folder: Path) -> None:
    """Write scores.json into a folder."""
    (folder / SCORES).write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")


def describe_neighbours(result: ScoreRecord) -> str:
    """Return a sentence on how neighbours rank captions; empty if the record has no field `neighbours`."""
    neighbours = result.get("neighbours", "")
    if isinstance(neighbours, str):
        return f"Similar training pictures are not used to rank captions: {neighbours}." if neighbours else ""
    copies = neighbours["copies"]
    return (
        f"The captions of the {neighbours['number']} most similar training pictures help to rank the candidates "
        f"(temperature {neighbours['temperature']:g}, factor {neighbours['factor']:g}"
        + (f", copied if {copies:g} times as similar" if copies is not None else "")
        + "). The model contains these captions."
        + (
            f" A matcher of words and pictures helps too (factor {neighbours['match']:g})."
            if neighbours["match"]
            else ""
        )
    )


def copied_lines(result: ScoreRecord) -> list[str]:
    """Return the lines of a Markdown table that compares the captions with copied ones."""
    lines = ["| score | copied from similar pictures, % | gain of the model, 95 % interval |", "| --- | --- | --- |"]
    for name, copied in result.get("copied", {}).items():
        low, high = copied["gain"]
        lines.append(f"| {name} | {copied['value']:.2f} | {low:+.2f} to {high:+.2f} |")
    return lines


def no_better_than_copied(result: ScoreRecord, score: str) -> bool:
    """Return whether a score is not significantly higher than that of captions copied from similar pictures."""
    copied = result.get("copied", {}).get(score)
    return copied is not None and copied["gain"][0] <= 0


def copied_scores(result: ScoreRecord) -> dict[str, float]:
    """Return the scores of copied captions by name; empty if none were copied."""
    return {f"copied_{name}": copied["value"] for name, copied in result.get("copied", {}).items()}


def confidence_lines(result: ScoreRecord) -> list[str]:
    """Return sentences on the confidence of the captions; empty if none was tried."""
    scores = result.get("confidence")
    if scores is None or isinstance(scores, str):
        return [] if scores is None else [f"The captions have no confidence: {scores}."]
    ranking, (low, high) = scores["ranking"], scores["gain"]
    return [
        f"A caption's confidence is the probability that it is acceptable: that {scores['acceptable']}, as "
        f"{scores['share']:.1%} of {scores['pictures']:,} captions are.",
        f"On captions that it was not fitted to, its mean calibration error is {scores['calibration_error']:.1%}, and "
        f"the area under its risk-coverage curve is {ranking['confidence']:.1%} ({ranking['log_probability']:.1%} for "
        f"log-probability, {ranking['random']:.1%} for a random order; the gain over log-probability is {low:.1%} to "
        f"{high:.1%}, 95 % interval).",
    ]


def confidence_metrics(result: ScoreRecord) -> dict[str, float]:
    """Return the metrics of the captions' confidence by name, from 0 to 1; empty if they have none."""
    scores = result.get("confidence")
    if scores is None or isinstance(scores, str):
        return {}
    ranking = {f"risk_coverage_{name}": value for name, value in scores["ranking"].items()}
    errors = {"calibration_error": scores["calibration_error"], "auroc": scores["auroc"], "acceptable": scores["share"]}
    return {f"confidence_{name}": value for name, value in {**errors, **ranking}.items()}
