"""Captions of held-out pictures, found free-running, and their scores, taken from what was written.

predictions.parquet: digest, caption, tokens, log_probability, finished, alternatives (the next best captions), and
what they are scored against: references (cut into words, see metrics/ptb.py) and facts (JSON or null). scores.json:
the scores in percent with their intervals, what the captions are like, and a signature of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from models.captioner import key_of_digest
from models.options import Decoding
from models.search import Caption, decode
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.common.progress import Bar
from tasks.config.devices import device_of
from tasks.config.schema import EvaluationConfig, MachineConfig
from tasks.data.captions import read_vocabulary
from tasks.data.manifest import Picture, pictures_of
from tasks.evaluation.caption_statistics import TOLD, language
from tasks.grids.index import open_grids
from tasks.metrics import Scored, load
from tasks.metrics.bootstrap import intervals
from tasks.metrics.ptb import tokenize
from tasks.pipeline import distributed as processes
from tasks.pipeline.ledger import Artifact, Outcome, digest_of
from tasks.training.batches import captioned_at_once, grids_in_order
from tasks.training.outputs import load_ensemble

PREDICTIONS, SCORES = "predictions.parquet", "scores.json"
_SCHEMA = pa.schema(
    [
        ("digest", pa.string()),
        ("caption", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("log_probability", pa.float64()),
        ("finished", pa.bool_()),
        ("alternatives", pa.list_(pa.string())),
        ("references", pa.list_(pa.string())),
        ("facts", pa.string()),
    ]
)


@dataclass(frozen=True)
class ScoreSources:
    """What a decoder is scored on: artifacts of the stages before, and its own."""

    manifest: Artifact
    captions: Artifact
    grids: Artifact
    decoder: Artifact


def evaluate_decoder(evaluation: EvaluationConfig, machine: MachineConfig, sources: ScoreSources, out: Path) -> Outcome:
    """Caption the pictures of `evaluation.split` and score the captions against all their references."""
    vocabulary = read_vocabulary(sources.captions.path)
    pictures = pictures_of(sources.manifest.path, evaluation.split)
    predict(pictures, vocabulary, evaluation, machine, sources, out / PREDICTIONS)
    trained_on = pictures_of(sources.manifest.path, "train")
    scores = score(out / PREDICTIONS, pictures, trained_on, vocabulary, evaluation)
    (out / SCORES).write_text(json.dumps(scores, indent=1, sort_keys=True), encoding="utf-8")
    counts: dict[str, int | float] = {"captions": scores["pictures"]}
    counts |= {name: round(value, 2) for name, value in scores["scores"].items()}
    return Outcome(
        {"scores": digest_of(scores), "decoding": digest_of([evaluation.decoding(), evaluation.ensemble])}, counts
    )


def predict(
    pictures: list[Picture],
    vocabulary: Vocabulary,
    evaluation: EvaluationConfig,
    machine: MachineConfig,
    sources: ScoreSources,
    path: Path,
) -> None:
    """Write a caption for every picture that has a grid. float32 always: reported scores come from it."""
    device = device_of(machine)
    grids = open_grids(sources.grids, machine)
    decoder, _ = load_ensemble(sources.decoder.path, evaluation.ensemble)
    speaking = decoder.to(device).for_inference()
    digests = [picture.digest for picture in pictures if picture.digest in grids]
    if not digests:
        raise AttendError(f"evaluate: no picture of the split {evaluation.split!r} could be read")
    own: list[dict[str, Any]] = []
    shared = processes.part(digests)
    decoding = Decoding(**evaluation.decoding())
    label = f"captions, beam {decoding.beam}" if decoding.search == "beam" else "captions, sampled"
    with Bar(len(shared), label, "pictures") as bar:
        size = captioned_at_once(machine, grids.shape, decoding.beam if decoding.search == "beam" else decoding.n_best)
        for part, grid in grids_in_order(shared, grids, size):
            found = decode(speaking, grid.to(device), decoding, [key_of_digest(digest) for digest in part])
            own += [_row(digest, best, vocabulary) for digest, best in zip(part, found, strict=True)]
            bar.advance(len(part))
    rows = processes.gathered(own, len(digests))
    write_predictions(rows, pictures, path)


def write_predictions(rows: list[dict[str, Any]], pictures: list[Picture], path: Path) -> None:
    """Write captions (digest, caption, and what else is known of them) as Parquet, to be scored from there."""
    by_digest = {picture.digest: picture for picture in pictures}
    for row in rows:
        picture = by_digest[row["digest"]]
        row["references"] = [" ".join(tokenize(text)) for text in picture.captions]
        row["facts"] = json.dumps(picture.facts) if picture.facts is not None else None
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)


def read_predictions(path: Path) -> dict[str, Scored]:
    """Digest -> caption and references, in the file's order; AttendError for a file of a version without references."""
    try:
        columns = pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise AttendError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())}") from None
    if not {"digest", "caption", "references", "facts"} <= set(columns):
        raise AttendError(f"{path}: has no references: it is no predictions.parquet, or of an older version")
    return {
        row["digest"]: Scored(
            tokenize(row["caption"]),
            [text.split() for text in row["references"]],
            json.loads(row["facts"]) if row["facts"] is not None else None,
        )
        for row in pq.read_table(path, columns=["digest", "caption", "references", "facts"]).to_pylist()
    }


def captions_in(path: Path) -> dict[str, str]:
    """Digest -> caption of a predictions file."""
    table = pq.read_table(path, columns=["digest", "caption"])
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _row(digest: str, captions: list[Caption], vocabulary: Vocabulary) -> dict[str, Any]:
    texts = [" ".join(vocabulary.decode(caption.tokens)) for caption in captions]
    return {
        "digest": digest,
        "caption": texts[0],
        "tokens": captions[0].tokens,
        "log_probability": captions[0].log_probability,
        "finished": captions[0].finished,
        "alternatives": texts[1:],
    }


def score(
    predictions: Path,
    pictures: list[Picture],
    trained_on: list[Picture],
    vocabulary: Vocabulary,
    evaluation: EvaluationConfig,
) -> dict[str, Any]:
    """Score a predictions file; the result carries its settings and a digest of the data it was taken on."""
    corpus = list(read_predictions(predictions).values())
    seen = {" ".join(tokenize(text)) for picture in trained_on for text in picture.captions}
    known = None if vocabulary.settings.get("units") == "bpe" else set(vocabulary.words)
    return {
        **score_corpus(corpus, evaluation.metrics, f"split:{evaluation.split}", _told(evaluation)),
        "language": language(corpus, seen, known),
        "data": digest_of([[picture.digest, picture.captions] for picture in pictures]),
    }


def score_corpus(corpus: Sequence[Scored], metrics: Sequence[str], *settings: str) -> dict[str, Any]:
    """Scores in percent with their intervals, and a signature of what they are of; settings: parts of it."""
    scores: dict[str, float] = {}
    doubt: dict[str, list[float]] = {}
    for name in metrics:
        metric = load(name)
        counted = metric.statistics(corpus)
        scores |= {score: float(value) for score, value in metric.scores(counted.sum(axis=0)).items()}
        doubt |= {name: list(interval) for name, interval in intervals(metric, counted).items()}
    counts = {len(item.references) for item in corpus}
    per_picture = str(counts.pop()) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
    signature = [
        f"pictures:{len(corpus)}",
        f"references:{per_picture}",
        "tokeniser:ptb",
        *settings,
        f"nltk:{metadata.version('nltk')}",
        f"attend:{metadata.version('attend')}",
    ]
    return {"scores": scores, "intervals": doubt, "signature": "|".join(signature), "pictures": len(corpus)}


def score_lines(told: dict[str, Any]) -> list[str]:
    """What `score` gave, as a table in Markdown."""
    lines = ["| score | % | 95 % interval |", "| --- | --- | --- |"]
    for name, value in told["scores"].items():
        low, high = told["intervals"][name]
        lines.append(f"| {name} | {value:.2f} | {low:.2f} to {high:.2f} |")
    lines += ["", "| captions | |", "| --- | --- |"]
    lines += [f"| {TOLD[name]} | {_figure(name, value)} |" for name, value in told["language"].items()]
    signature = told["signature"].replace("|", ", ")
    what = "held-out pictures, captioned free-running" if "data" in told else "pictures"
    return [*lines, "", f"{told['pictures']:,} {what}; `{signature}`."]


def _figure(name: str, value: float) -> str:
    if name == "vocabulary":
        return f"{value:,.0f}"
    return f"{value:.1f}" if name.endswith("words") else f"{value:.1%}"


def _told(evaluation: EvaluationConfig) -> str:
    """The settings of the search that ran, for the signature: those of the other one say nothing."""
    settings = evaluation.decoding()
    used = {
        "beam": ("beam", "length_normalisation"),
        "sample": ("search", "temperature", "top_k", "top_p", "seed", "n_best"),
    }[evaluation.search]
    rules = [name for name in ("min_length", "no_repeat") if settings[name]]
    return "|".join(f"{name}:{settings[name]}" for name in (*used, "max_length", *rules))
