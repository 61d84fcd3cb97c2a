"""The comparison of several captioners on one HTML page, which needs no network and no server."""

from __future__ import annotations

import html
import json
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.common.wording import listed
from tasks.evaluation.cards import cards_of
from tasks.evaluation.page_files import page_file
from tasks.evaluation.report import as_svg
from tasks.metrics import ScoredCaption
from tasks.metrics.bleu import sentence_bleu4
from tasks.metrics.bootstrap import ScoreComparison

_PICTURES = 12  # drawn at random, and as many on which the captioners differ the most
_COLOURS = ("#b3411e", "#2f6f8f", "#8a6d1f", "#5b7f3a", "#7a4a8f", "#8c867c")
_CURVES = {"dev_bleu4": "dev BLEU-4, greedy", "dev_cider": "dev CIDEr, greedy"}


@dataclass(frozen=True)
class Compared:
    """A captioner that is compared.

    name: such as `photos/3`. captioner: a bundle's. captions: digest -> its caption and the references, of the pictures
    that all have. scores: its scores (second) against those of the first captioner; empty for that one. curves: name of
    a dev score -> (epoch, value) of each epoch of its training.
    """

    name: str
    captioner: Any
    captions: Mapping[str, ScoredCaption]
    scores: Sequence[ScoreComparison]
    curves: Mapping[str, Sequence[tuple[int, float]]]


def write_comparison(path: Path, compared: Sequence[Compared], files: Mapping[str, Path], pictures: str) -> None:
    """Write the page: scores with intervals, learning curves, and the captions of some pictures side by side.

    files: digest -> photograph, or the .npy file of a grid. pictures: which were captioned, in words.
    """
    shown = _chosen([item.captions for item in compared])
    cards = [cards_of(shown, item.captioner, files, None, item.captioner.decoding, ()) for item in compared]
    references = compared[0].captions
    data = {
        "names": [item.name for item in compared],
        "scores": [
            [{**vars(score), "low": score.interval[0], "high": score.interval[1]} for score in item.scores]
            for item in compared
        ],
        "pictures": [
            {
                "references": [" ".join(words) for words in references[digest].references],
                "cards": [own[digest] for own in cards],
            }
            for digest in shown
        ],
    }
    page = string.Template(page_file("comparison.html")).substitute(
        title=html.escape(listed([item.name for item in compared])),
        pictures=html.escape(pictures),
        look=page_file("look.css"),
        plots="".join(f"<figure>{plot}</figure>" for plot in _plots(compared)),
        data=json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),  # so that a caption cannot end the script
        heat=page_file("heat.js"),
        script=page_file("comparison.js"),
    )
    path.write_text(page, encoding="utf-8")


def _chosen(captions: Sequence[Mapping[str, ScoredCaption]]) -> list[str]:
    """Return the digests of the pictures to show: some at random, then those whose sentence BLEU-4 differs the most."""
    digests = sorted(captions[0])
    drawn = random.Random(0).sample(digests, min(_PICTURES, len(digests)))
    values = {digest: [sentence_bleu4(own[digest]) for own in captions] for digest in digests if digest not in drawn}
    ranked = sorted(values, key=lambda digest: (min(values[digest]) - max(values[digest]), digest))
    return [*drawn, *ranked[:_PICTURES]]


def _plots(compared: Sequence[Compared]) -> list[str]:
    """Return a plot for each dev score, with the learning curve of every captioner that has one, as SVG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    plots = []
    for score, title in _CURVES.items():
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        axis = figure.subplots()
        for number, item in enumerate(compared):
            if item.curves.get(score):
                epochs, values = zip(*item.curves[score], strict=True)
                colour = _COLOURS[number % len(_COLOURS)]
                axis.plot(epochs, values, marker="o", markersize=3, color=colour, label=item.name)
        axis.set(xlabel="epoch", title=title)
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axis.lines:
            axis.legend(frameon=False)
            plots.append(as_svg(figure))
    return plots
