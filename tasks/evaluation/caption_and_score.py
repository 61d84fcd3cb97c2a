"""Captions of held-out pictures, decoded free-running, and their scores, computed from the file of captions.

predictions.parquet: digest, caption, tokens, log_probability, finished, alternatives (the next best captions), copied
(the caption copied from a similar training picture), the features of the caption's confidence (models/confidence.py)
and that confidence, null if none could be fitted, and what the captions are scored against: references (tokenised, see
metrics/ptb.py) and facts (JSON or null). fitted_to.parquet: the same, without copied, for the dev pictures that the
confidence was fitted to, if the scored split is not dev. scores.json: the scores in percent with their intervals, the
statistics of the captions' language, how well the confidence separates good captions from others, and a signature of
the settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from models.confidence import FEATURES
from models.decoding_rules import Floats
from models.options import Decoding
from models.ranking import Ranked
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError, reason_of
from tasks.common.log import log
from tasks.config.stages import EvaluationConfig
from tasks.data.manifest import Picture
from tasks.evaluation.caption_statistics import DESCRIPTIONS, caption_statistics
from tasks.evaluation.score_record import CopiedScore, ScoreRecord, confidence_lines, copied_lines, describe_neighbours
from tasks.metrics import METRICS, ScoredCaption, is_latin, load, measure
from tasks.metrics.bootstrap import compare, intervals
from tasks.metrics.ptb import tokenize
from tasks.pipeline.ledger import digest_of

if TYPE_CHECKING:  # it needs torch, which readers of scores do not
    from tasks.evaluation.picture_search import SearchResult

PREDICTIONS, FITTED_TO = "predictions.parquet", "fitted_to.parquet"
_SAMPLE = 200  # pictures whose references are used to detect the script
_SCHEMA = pa.schema(
    [
        ("digest", pa.string()),
        ("caption", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("log_probability", pa.float64()),
        ("finished", pa.bool_()),
        ("alternatives", pa.list_(pa.string())),
        ("copied", pa.string()),
        *((name, pa.float64()) for name in (*FEATURES[1:], "confidence")),  # the first is above
        ("references", pa.list_(pa.string())),
        ("facts", pa.string()),
    ]
)


def rows_of(
    result: SearchResult,
    ranked: Sequence[Ranked],
    features: Floats,
    copies: Sequence[str | None],
    vocabulary: Vocabulary,
    evaluation: EvaluationConfig,
) -> list[dict[str, Any]]:
    """Return the rows of predictions.parquet, without references and facts.

    features (N, F): of the best captions' confidence. copies: captions copied from similar pictures, or None.
    """
    rows = []
    for picture, item, values, copy in zip(result.pictures, ranked, features.tolist(), copies, strict=True):
        best, *alternatives = item.captions[: evaluation.n_best]
        row = {
            "digest": picture.digest,
            "caption": vocabulary.text(best.tokens),
            "tokens": best.tokens,
            **dict(zip(FEATURES, values, strict=True)),
            "log_probability": best.log_probability,
            "finished": best.finished,
            "alternatives": [vocabulary.text(caption.tokens) for caption in alternatives],
            "copied": copy,
        }
        rows.append(row)
    return rows


def write_predictions(rows: list[dict[str, Any]], pictures: list[Picture], path: Path) -> None:
    """Write captions to a Parquet file, with the references and facts that they are scored against.

    rows: digest, caption, and any of the other columns; missing ones become null. pictures: the source of references
    and facts.
    """
    by_digest = {picture.digest: picture for picture in pictures}
    for row in rows:
        picture = by_digest[row["digest"]]
        row["references"] = [" ".join(tokenize(text)) for text in picture.captions]
        row["facts"] = json.dumps(picture.facts) if picture.facts is not None else None
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)


def read_predictions(path: Path, column: str = "caption") -> dict[str, ScoredCaption]:
    """Read a predictions file: digest -> caption, references and facts, in the order of the file.

    column: the column of the captions. Raise AttendError if the file is not Parquet or lacks references.
    """
    try:
        columns = pq.read_schema(path).names
    except (OSError, ValueError, pa.ArrowException) as error:
        raise AttendError(f"{path}: cannot be read as Parquet: {reason_of(error)}") from None
    if not {"digest", "caption", "references", "facts"} <= set(columns):
        raise AttendError(f"{path}: has no references: it is not a predictions.parquet")
    try:
        rows = pq.read_table(path, columns=["digest", column, "references", "facts"]).to_pylist()
        return {
            row["digest"]: ScoredCaption(
                tokenize(row[column]),
                [text.split() for text in row["references"]],
                json.loads(row["facts"]) if row["facts"] is not None else None,
            )
            for row in rows
        }
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise AttendError(f"{path}: holds no captions with references: {reason_of(error)}") from None


def differing_scores(path: Path, recorded: Mapping[str, float]) -> list[str]:
    """Return the names of the recorded scores that differ when computed again from a predictions file."""
    corpus = list(read_predictions(path).values())
    again: dict[str, float] = {}
    for name, member in METRICS.items():
        if {*member.scores} & recorded.keys():
            again |= measure(name, corpus)
    return sorted(name for name, value in recorded.items() if abs(again.get(name, math.inf) - value) > 1e-6)


def captions_in(path: Path) -> dict[str, str]:
    """Read the captions of a predictions file: digest -> caption."""
    table = pq.read_table(path, columns=["digest", "caption"])
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))


def score(
    predictions: Path,
    pictures: list[Picture],
    trained_on: list[Picture],
    vocabulary: Vocabulary,
    evaluation: EvaluationConfig,
    decoding: Decoding,
) -> ScoreRecord:
    """Score a predictions file, and return the contents of scores.json.

    pictures: of `evaluation.split`. trained_on: of the train split. decoding: the settings that the captions were
    decoded with.
    """
    corpus = list(read_predictions(predictions).values())
    training_captions = {" ".join(tokenize(text)) for picture in trained_on for text in picture.captions}
    is_scored_alike = vocabulary.settings.get("units") != "bpe" and vocabulary.settings.get("lower", True)
    known_words = set(vocabulary.words) if is_scored_alike else None
    settings = (f"split:{evaluation.split}", _decoding_signature(decoding))
    record = score_corpus(corpus, evaluation.metrics, *settings)
    record["language"] = caption_statistics(corpus, training_captions, known_words)
    if pq.read_table(predictions, columns=["copied"])["copied"].null_count == 0:
        copied = list(read_predictions(predictions, "copied").values())
        record["copied"] = compare_with_copied(record["scores"], copied, corpus)
    record["data"] = digest_of([[picture.digest, picture.captions] for picture in pictures])
    trained_digests = {picture.digest for picture in trained_on}
    record["also_in_training"] = sum(picture.digest in trained_digests for picture in pictures)
    return record


def compare_with_copied(
    names: Iterable[str], copied: Sequence[ScoredCaption], corpus: Sequence[ScoredCaption]
) -> dict[str, CopiedScore]:
    """Return the scores of copied captions, and how much higher the scores of the model's captions are.

    names: of the scores. copied, corpus: captions of the same pictures.
    """
    metrics = [load(name) for name, member in METRICS.items() if {*member.scores} & {*names}]
    compared = [item for metric in metrics for item in compare(metric, copied, corpus)]
    return {item.score: {"value": item.first, "gain": list(item.interval)} for item in compared}


def score_corpus(corpus: Sequence[ScoredCaption], metrics: Sequence[str], *settings: str) -> ScoreRecord:
    """Score captions from any source against their references.

    settings: parts to add to the signature, which names everything that the scores depend on besides the captions.
    """
    scores: dict[str, float] = {}
    score_intervals: dict[str, list[float]] = {}
    latin = is_latin(word for item in corpus[:_SAMPLE] for words in item.references for word in words)
    for name in metrics:
        if METRICS[name].only_latin and not latin:
            log.warning(f"evaluation.metrics: {name} knows only languages in Latin letters: it is left out")
            continue
        metric = load(name)
        statistics = metric.statistics(corpus)
        scores |= {score: float(value) for score, value in metric.scores(statistics.sum(axis=0)).items()}
        score_intervals |= {score: list(interval) for score, interval in intervals(metric, statistics).items()}
    counts = {len(item.references) for item in corpus}
    per_picture = str(counts.pop()) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
    signature = [
        f"pictures:{len(corpus)}",
        f"references:{per_picture}",
        "tokeniser:ptb, or characters where a script has no spaces",
        *settings,
        f"nltk:{metadata.version('nltk')}",
        f"attend:{metadata.version('attend')}",
    ]
    return {
        "scores": scores,
        "intervals": score_intervals,
        "signature": "|".join(signature),
        "pictures": len(corpus),
        "language": caption_statistics(corpus),
    }


def score_lines(result: ScoreRecord) -> list[str]:
    """Return the lines of two Markdown tables, scores and language, from the contents of scores.json.

    result: as `score` returns it, or without `data`, as the command `score` computes it from files.
    """
    lines = ["| score | % | 95 % interval |", "| --- | --- | --- |"]
    for name, value in result["scores"].items():
        low, high = result["intervals"][name]
        lines.append(f"| {name} | {value:.2f} | {low:.2f} to {high:.2f} |")
    lines += ["", "| captions | |", "| --- | --- |"]
    lines += [f"| {DESCRIPTIONS[name]} | {_formatted(name, value)} |" for name, value in result["language"].items()]
    signature = result["signature"].replace("|", ", ")
    lines += ["", f"{describe_pictures(result)}; `{signature}`."]
    lines += ["", describe_neighbours(result), "", *copied_lines(result)] if "neighbours" in result else []
    lines += ["", *confidence_lines(result)] if "confidence" in result else []
    return [*lines, "", f"**{leak}**"] if (leak := describe_leak(result)) else lines


def describe_pictures(result: ScoreRecord) -> str:
    """Return how many pictures were scored, and whether they are training or held-out pictures."""
    if "data" not in result:
        return f"{result['pictures']:,} pictures"
    kind = "training" if was_trained_on(result["signature"]) else "held-out"
    return f"{result['pictures']:,} {kind} pictures, captioned free-running"


def was_trained_on(signature: str) -> bool:
    """Return whether scores are of the train split, by their signature; such scores say nothing about new pictures."""
    return "split:train" in signature.split("|")


def describe_leak(result: ScoreRecord) -> str:
    """Return a sentence on scored pictures that are also in the train split; empty if there are none."""
    leaked = result.get("also_in_training", 0)
    if not leaked or was_trained_on(result["signature"]):
        return ""
    return f"{leaked:,} of these pictures are identical to pictures of the train split: the scores are too good"


def _formatted(name: str, value: float) -> str:
    """Return a statistic of `DESCRIPTIONS` as text: counts as numbers, shares in percent."""
    if name == "vocabulary":
        return f"{value:,.0f}"
    return f"{value:.1f}" if name.endswith("words") else f"{value:.1%}"


def _decoding_signature(decoding: Decoding) -> str:
    """Return the decoding settings for the signature: only those that the chosen search uses."""
    settings = {**vars(Decoding()), **vars(decoding)}  # the code saved in an older version may lack a setting
    names = {
        "beam": ("beam", "length_normalisation", *(("neighbours",) if settings["neighbours"] else ())),
        "sample": ("search", "temperature", "top_k", "top_p", "seed", "n_best"),
    }[settings["search"]]
    rules = [name for name in ("min_length", "no_repeat", "no_echo") if settings[name]]
    return "|".join(f"{name}:{settings[name]}" for name in (*names, "max_length", *rules))
