"""The report of an evaluation: one HTML page that needs nothing beside it, no network and no server."""

from __future__ import annotations

import base64
import html
import importlib.resources
import io
import json
import random
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from models.photographs import decode, seen
from models.vocabulary import WORD_END
from tasks.evaluation.predictions import read_predictions
from tasks.grids.encoding import read_photograph
from tasks.metrics import Scored
from tasks.metrics.bleu import of_one
from tasks.metrics.bootstrap import Compared

REPORT = "report.html"
_CARDS = 16  # of each group
_ROWS = 2000  # captions listed; with the cards the page stays below 5 MB
_SIDE = 240  # longest side of a photograph shown, px


@dataclass(frozen=True)
class Rival:
    """Another model on the same pictures; the scores are its (first) and those of the model reported (second)."""

    name: str
    scores: list[Compared]


@dataclass(frozen=True)
class Earlier:
    """What a version scored. same: on the same pictures with the same settings."""

    name: str
    scores: dict[str, float]
    same: bool


def write_report(
    path: Path,
    title: str,
    told: dict[str, Any],
    predictions: Path,
    captioner: Any,
    files: Mapping[str, Path],
    decoding: dict[str, Any],
    history: Sequence[dict[str, float]] = (),
    compared: Iterable[Rival] = (),
    earlier: Iterable[Earlier] = (),
) -> None:
    """Write the page.

    told: scores.json. captioner: of the bundle; it tells where it looked. files: digest -> photograph. decoding: as the
    captions were found. history: rows of history.parquet.
    """
    corpus = read_predictions(predictions)
    scored = {digest: of_one(item) for digest, item in corpus.items()}
    groups = _groups(scored)
    chosen = list(dict.fromkeys(digest for group in groups.values() for digest in group))
    shown = set(chosen)
    listed = [*chosen, *(digest for digest in corpus if digest not in shown)][: max(_ROWS, len(chosen))]
    left_out = "all are listed" if len(listed) == len(corpus) else f"of {len(corpus):,} evaluated"
    data = {
        "signature": told["signature"],
        "scores": [
            {"name": name, "value": value, "low": told["intervals"][name][0], "high": told["intervals"][name][1]}
            for name, value in told["scores"].items()
        ],
        "compared": [{"name": rival.name, "scores": [_as_json(item) for item in rival.scores]} for rival in compared],
        "earlier": [vars(version) for version in earlier],
        "language": _language(told["language"], len(corpus)),
        "attends": captioner.attends,
        "groups": groups,
        "cards": _cards(chosen, captioner, files, decoding),
        "rows": [
            [" ".join(corpus[digest].caption), [" ".join(words) for words in corpus[digest].references], scored[digest]]
            for digest in listed
        ],
        "left_out": left_out,
    }
    plots = [_lengths(list(corpus.values()))]
    if history:
        plots.insert(0, _curves(history))
    page = string.Template(page_file("report.html")).substitute(
        title=html.escape(title),
        look=page_file("look.css"),
        plots="".join(f"<figure>{plot}</figure>" for plot in plots),
        data=json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),  # a caption cannot end the script
        heat=page_file("heat.js"),
        script=page_file("report.js"),
    )
    path.write_text(page, encoding="utf-8")


def page_file(name: str) -> str:
    """A file that pages are made of."""
    return (importlib.resources.files("tasks.evaluation") / "pages" / name).read_text(encoding="utf-8")


def _as_json(item: Compared) -> dict[str, Any]:
    return {**vars(item), "low": item.interval[0], "high": item.interval[1]}


def _groups(scored: Mapping[str, float]) -> dict[str, list[str]]:
    """The best, the worst and some at random; the same pictures each time."""
    ranked = sorted(scored, key=lambda digest: (-scored[digest], digest))
    drawn = random.Random(0).sample(sorted(scored), min(_CARDS, len(scored)))
    return {"best": ranked[:_CARDS], "worst": ranked[::-1][:_CARDS], "at random": drawn}


def _language(told: Mapping[str, float], captions: int) -> str:
    """What the captions are like, in a sentence or two."""
    text = (
        f"{told['different']:.1%} different captions of {captions:,}; {told['words']:.1f} words a caption, "
        f"{told['reference_words']:.1f} a reference. {told['vocabulary']:,.0f} different words are said; "
        f"{told['distinct_2']:.1%} of the pairs of words are different."
    )
    if "novel" in told:
        text += f" {told['novel']:.1%} of the captions are no training caption."
    if "unknown" in told:
        text += f" {told['unknown']:.1%} of the words of the references are unknown (UNK); captions never hold UNK."
    return text


def _cards(
    digests: Sequence[str], captioner: Any, files: Mapping[str, Path], decoding: dict[str, Any]
) -> dict[str, Any]:
    photographs = [read_photograph(digest, files[digest]) for digest in digests]
    captioned = captioner.caption(photographs, attention=captioner.attends, **decoding)
    cards = {}
    for row, (digest, photograph, item) in enumerate(zip(digests, photographs, captioned, strict=True)):
        shown = Image.fromarray(seen(decode(photograph), captioner.config["backbone"]["fit"]).permute(1, 2, 0).numpy())
        shown.thumbnail((_SIDE, _SIDE))
        file = io.BytesIO()
        shown.save(file, "JPEG", quality=75)
        maps, side = b"", (0, 0)
        if item.attention is not None and len(item.attention):
            most = item.attention.amax(dim=(1, 2), keepdim=True).clamp_min(1e-9)
            maps, side = (item.attention / most * 255).round().byte().numpy().tobytes(), item.attention.shape[1:]
        cards[digest] = {
            "row": row,
            "photograph": base64.b64encode(file.getvalue()).decode(),
            "width": shown.width,
            "height": shown.height,
            "tokens": [token.replace(WORD_END, "") for token in item.tokens],
            "maps": base64.b64encode(maps).decode(),
            "side": list(side),
        }
    return cards


def _curves(history: Sequence[dict[str, float]]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    epochs = [row["epoch"] for row in history]
    named = {"loss": "training loss", "dev_bleu4": "dev BLEU-4, greedy"}
    if "reward" in history[0]:
        named = {"reward": "mean reward", "dev_cider": "dev CIDEr, greedy"}
    for axis, (name, label) in zip(figure.subplots(1, 2), named.items(), strict=True):
        axis.plot(epochs, [row[name] for row in history], marker="o", markersize=3, color="#b3411e")
        axis.set(xlabel="epoch", title=label)
        axis.grid(alpha=0.25)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return _svg(figure)


def _lengths(corpus: Sequence[Scored]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    axis = figure.subplots()
    said = [len(item.caption) for item in corpus]
    written = [len(words) for item in corpus for words in item.references]
    bins = [edge - 0.5 for edge in range(max([*said, *written, 1]) + 2)]
    axis.hist([said, written], bins=bins, density=True, label=["captions", "references"], color=["#b3411e", "#8c867c"])
    axis.set(xlabel="words", ylabel="share", title="lengths")
    axis.legend(frameon=False)
    return _svg(figure)


def _svg(figure: Any) -> str:
    import matplotlib as mpl

    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "attend", "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
