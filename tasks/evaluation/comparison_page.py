"""The comparison of several captioners on one HTML page, which needs no network and no server."""

from __future__ import annotations

import html
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.common.wording import listed
from tasks.evaluation.cards import Card
from tasks.evaluation.page_files import page_of_data
from tasks.evaluation.report import as_svg, comparison_data, plot
from tasks.metrics import ScoredCaption
from tasks.metrics.bleu import sentence_bleu4
from tasks.metrics.bootstrap import ScoreComparison

_PICTURES = 12  # shown at random, and as many again on which the captioners differ the most
_COLOURS = ("#b3411e", "#2f6f8f", "#8a6d1f", "#5b7f3a", "#7a4a8f", "#8c867c")
CURVES = {"dev_bleu4": "dev BLEU-4, greedy", "dev_cider": "dev CIDEr, greedy"}


@dataclass(frozen=True)
class Column:
    """A captioner on the page.

    name: such as `photos/3`. cards: digest of each picture shown -> its card. scores: its scores (second) against those
    of the first captioner; empty for the first. curves: name of a dev score -> (epoch, value) of each training epoch.
    """

    name: str
    cards: Mapping[str, Card]
    scores: Sequence[ScoreComparison]
    curves: Mapping[str, Sequence[tuple[int, float]]]


def write_comparison(
    path: Path, columns: Sequence[Column], references: Mapping[str, Sequence[Sequence[str]]], pictures: str
) -> None:
    """Write the page: the captions of some pictures side by side, scores with intervals, and learning curves.

    references: digest of each picture shown -> the words of its reference captions. pictures: a description of the
    captioned pictures.
    """
    data = {
        "names": [column.name for column in columns],
        "scores": [[comparison_data(score) for score in column.scores] for column in columns],
        "pictures": [
            {
                "references": [" ".join(words) for words in captions],
                "cards": [column.cards[digest] for column in columns],
            }
            for digest, captions in references.items()
        ],
    }
    plots = "".join(f"<figure>{plot}</figure>" for plot in _plots(columns))
    page = page_of_data(
        "comparison",
        listed([column.name for column in columns]),
        data,
        pictures=html.escape(pictures),
        plots=f'<h2>Learning curves</h2><div class="plots">{plots}</div>' if plots else "",
    )
    path.write_text(page, encoding="utf-8")


def pictures_to_show(captions: Sequence[tuple[str, Sequence[ScoredCaption]]]) -> list[str]:
    """Return the digests of the pictures to show: some at random, then those whose sentence BLEU-4 differs the most.

    captions: (digest, the caption of each captioner).
    """
    by_digest = dict(sorted(captions))
    drawn = random.Random(0).sample(list(by_digest), min(_PICTURES, len(by_digest)))
    scores = {digest: [sentence_bleu4(one) for one in own] for digest, own in by_digest.items() if digest not in drawn}
    ranked = sorted(scores, key=lambda digest: (min(scores[digest]) - max(scores[digest]), digest))
    return [*drawn, *ranked[:_PICTURES]]


def _plots(columns: Sequence[Column]) -> list[str]:
    """Return a plot for each dev score, with the learning curve of every captioner that has one, as SVG."""
    plots = []
    for score, title in CURVES.items():
        figure, axis = plot(xlabel="epoch", title=title)
        for number, item in enumerate(columns):
            if item.curves.get(score):
                epochs, values = zip(*item.curves[score], strict=True)
                colour, style = _COLOURS[number % len(_COLOURS)], ("-", "--", ":")[number // len(_COLOURS) % 3]
                axis.plot(epochs, values, marker="o", markersize=3, color=colour, linestyle=style, label=item.name)
        axis.xaxis.get_major_locator().set_params(integer=True)
        if axis.lines:
            axis.legend(frameon=False)
            plots.append(as_svg(figure))
    return plots
