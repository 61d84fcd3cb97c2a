"""The report of an evaluation: one self-contained HTML page, which needs no network and no server."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.options import Decoding
from tasks.evaluation.caption_and_score import describe_leak, read_predictions
from tasks.evaluation.cards import cards_of, is_grid
from tasks.evaluation.page_files import page_of_data
from tasks.evaluation.score_record import ConfidenceScores, ScoreRecord, confidence_lines, describe_neighbours
from tasks.grids.reader import GridReader
from tasks.metrics import NAMES, ScoredCaption
from tasks.metrics.bleu import sentence_bleu4
from tasks.metrics.bootstrap import ScoreComparison

REPORT = "report.html"
_GROUP_SIZE = 16  # pictures shown as cards per group
_MAX_ROWS = 2000  # captions listed, so that the page with its cards stays below 5 MB


@dataclass(frozen=True)
class ComparedModel:
    """Another model that was scored on the same pictures.

    scores: its scores (first) compared with those of the reported model (second).
    """

    name: str
    scores: list[ScoreComparison]


@dataclass(frozen=True)
class EarlierVersion:
    """The scores of an earlier version.

    same: whether it was scored on the same pictures with the same settings. reviewed: how many of its captions people
    accepted, in words; empty if nobody reviewed them.
    """

    name: str
    scores: dict[str, float]
    same: bool
    reviewed: str


def write_report(
    path: Path,
    title: str,
    result: ScoreRecord,
    predictions: Path,
    captioner: Any,
    files: Mapping[str, Path],
    grids: GridReader | None,
    decoding: Decoding,
    history: Sequence[dict[str, float]] = (),
    compared: Iterable[ComparedModel] = (),
    earlier: Iterable[EarlierVersion] = (),
    remembered: Sequence[str] = (),
) -> None:
    """Write the report of an evaluation as an HTML page.

    result: the contents of scores.json. predictions: the file of scored captions. captioner: the bundle's, for the
    attention maps. files: digest -> photograph, or the .npy file of a grid. grids: the grids that the captioner reads
    in place of these files; None if it reads the files. decoding: the settings that the captions were decoded with.
    history: rows of history.parquet; if empty, training plots are left out. compared: other models on the same
    pictures. earlier: the scores of earlier versions. remembered: the digests of the pictures in the captioner's
    memory, in its order; if empty, neighbours are shown without photographs.
    """
    corpus = read_predictions(predictions)
    bleu = {digest: sentence_bleu4(item) for digest, item in corpus.items()}
    groups = _groups(bleu)
    on_cards = list(dict.fromkeys(digest for group in groups.values() for digest in group))
    listed = list(dict.fromkeys([*on_cards, *corpus]))[: max(_MAX_ROWS, len(on_cards))]
    left_out = "all are listed" if len(listed) == len(corpus) else f"of {len(corpus):,} evaluated"
    data = {
        "signature": result["signature"],
        "scores": [
            {
                "name": NAMES.get(name, name),
                "value": value,
                **dict(zip(("low", "high"), result["intervals"][name], strict=True)),
            }
            for name, value in result["scores"].items()
        ],
        "compared": [
            {"name": rival.name, "scores": [comparison_data(item) for item in rival.scores]} for rival in compared
        ],
        "earlier": [
            {**vars(version), "scores": {NAMES.get(name, name): value for name, value in version.scores.items()}}
            for version in earlier
        ],
        "language": " ".join(filter(None, [_language(result["language"], len(corpus)), describe_leak(result)])),
        "attends": captioner.attends,
        "groups": groups,
        "shows": not any(is_grid(path) for path in files.values()),
        "cards": cards_of(on_cards, captioner, files, grids, decoding, remembered),
        "rows": [
            [" ".join(corpus[digest].caption), [" ".join(words) for words in corpus[digest].references], bleu[digest]]
            for digest in listed
        ],
        "left_out": left_out,
        "confidence": " ".join(confidence_lines(result)),
        "neighbours": describe_neighbours(result),
        "copied": [{**copied, "name": NAMES.get(name, name)} for name, copied in result.get("copied", {}).items()],
    }
    plots = [_length_plot(list(corpus.values()))]
    scores = result.get("confidence")
    certainty = [] if scores is None or isinstance(scores, str) else [_reliability_plot(scores), _coverage_plot(scores)]
    if history:
        plots = [*_training_plots(history), *plots]
    page = page_of_data(
        "report",
        title,
        data,
        plots="".join(f"<figure>{plot}</figure>" for plot in plots),
        certainty="".join(f"<figure>{plot}</figure>" for plot in certainty),
    )
    path.write_text(page, encoding="utf-8")


def comparison_data(item: ScoreComparison) -> dict[str, object]:
    """Return a comparison in the form that the pages' scripts read: the interval's ends are `low` and `high`."""
    return {**vars(item), "score": NAMES.get(item.score, item.score), "low": item.interval[0], "high": item.interval[1]}


def _groups(scores: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the digests of some random pictures, of the best and of the worst; the same ones every time.

    scores: digest -> score of one picture's caption.
    """
    ranked = sorted(scores, key=lambda digest: (-scores[digest], digest))
    drawn = random.Random(0).sample(sorted(scores), min(_GROUP_SIZE, len(scores)))
    return {"at random": drawn, "best": ranked[:_GROUP_SIZE], "worst": ranked[::-1][:_GROUP_SIZE]}


def _language(statistics: Mapping[str, float], captions: int) -> str:
    """Return the statistics of the captions' language as a few sentences.

    statistics: as `caption_statistics` returns them. captions: the number of captions.
    """
    words, distinct = (statistics["words"], statistics["reference_words"]), statistics["vocabulary"]
    text = (
        f"Of {captions:,} captions, {statistics['different']:.1%} are distinct. Captions have {words[0]:.1f} words on "
        f"average, references {words[1]:.1f}. The captions use {distinct:,.0f} distinct words, and "
        f"{statistics['distinct_2']:.1%} of their bigrams are distinct."
    )
    if "novel" in statistics:
        text += f" {statistics['novel']:.1%} of the captions do not occur in the training data."
    if "unknown" in statistics:
        unknown = f"{statistics['unknown']:.1%}"
        text += f" {unknown} of the references' words are not in the vocabulary."
    return text


def plot(size: tuple[float, float] = (5.2, 3.2), **labels: Any) -> tuple[Any, Any]:
    """Return a figure and its axis with these labels and limits. size: width and height, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    axis.set(**labels)
    axis.grid(alpha=0.25)
    return figure, axis


def _training_plots(history: Sequence[dict[str, float]]) -> list[str]:
    """Return a plot of each training curve as SVG: the loss or the reward, the dev loss and two dev scores."""
    first = {"reward": "mean reward"} if "reward" in history[0] else {"loss": "training loss"}
    labels = {**first, "dev_loss": "dev loss", "dev_bleu4": "dev BLEU-4, greedy", "dev_cider": "dev CIDEr, greedy"}
    plots = []
    for name, label in labels.items():
        if name in history[0]:
            figure, axis = plot(xlabel="epoch", title=label)
            values = [row[name] for row in history]
            axis.plot([row["epoch"] for row in history], values, marker="o", markersize=3, color="#b3411e")
            axis.xaxis.get_major_locator().set_params(integer=True)
            plots.append(as_svg(figure))
    return plots


def _length_plot(corpus: Sequence[ScoredCaption]) -> str:
    """Return a histogram of the lengths of captions and references, in words, as SVG."""
    figure, axis = plot(xlabel="words", ylabel="share", title="lengths")
    lengths = [len(item.caption) for item in corpus]
    reference_lengths = [len(words) for item in corpus for words in item.references]
    bins = [edge - 0.5 for edge in range(max([*lengths, *reference_lengths, 1]) + 2)]
    labels, colors = ["captions", "references"], ["#b3411e", "#8c867c"]
    axis.hist([lengths, reference_lengths], bins=bins, density=True, label=labels, color=colors)
    axis.legend(frameon=False)
    return as_svg(figure)


def _reliability_plot(scores: ConfidenceScores) -> str:
    """Return a plot of the share of acceptable captions by their confidence, as SVG."""
    figure, axis = plot(
        xlabel="confidence", ylabel="share of acceptable captions", title="reliability", xlim=(0, 1), ylim=(0, 1)
    )
    mean, share, _ = zip(*scores["bins"], strict=True)
    axis.plot([0, 1], [0, 1], color="#8c867c", linestyle="--", label="perfect")
    axis.plot(mean, share, marker="o", color="#b3411e", label="bins of equal size")
    axis.legend(frameon=False)
    return as_svg(figure)


def _coverage_plot(scores: ConfidenceScores) -> str:
    """Return a plot of the risk-coverage curves, as SVG."""
    figure, axis = plot(
        xlabel="share of the captions that are shown",
        ylabel="share of those not acceptable",
        title="risk by coverage",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    coverage, by_confidence, by_log_probability = zip(*scores["curve"], strict=True)
    axis.plot(coverage, by_confidence, color="#b3411e", label="by confidence")
    axis.plot(coverage, by_log_probability, color="#d9a441", label="by log-probability")
    axis.axhline(scores["ranking"]["random"], color="#8c867c", linestyle="--", label="at random")
    axis.legend(frameon=False)
    return as_svg(figure)


def as_svg(figure: Any) -> str:
    """Return a figure as an <svg> element that is the same text every time: without a date, and with fixed ids."""
    import matplotlib as mpl

    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "attend", "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
