"""Measure what neighbours add to the captions of dev: copied, decoded, and decoded and ranked by neighbours.

    python -m bench.quality.neighbours DATA WEIGHTS [--workspace FOLDER] [--backbone lite2|mobilenet_v2]
        [--decoder transformer|show_attend_tell] [--seed 0] [--pictures N] [--captions N] [--dev N] [--epochs N]

DATA is Flickr8k's folder and WEIGHTS the file of the backbone's weights. `best` is trained without fine-tuning on
--pictures training pictures, drawn at random, with --captions captions each; by default on all of them. The settings of
neighbours are fitted on each half of dev and used for the other half. The gain is that of ranking, with its 95 %
interval by the paired bootstrap. Stages that have already run are not run again.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import describe
from bench.pipelines import run_until
from tasks.config.schema import Config, load
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions
from tasks.metrics import ScoredCaption, measure
from tasks.metrics import load as load_metric
from tasks.metrics.bootstrap import compare

_SCORES = ("bleu4", "meteor", "cider")
_METRICS = ("bleu", "meteor", "cider")
_SMALL = frozenset(
    "a an the in on of with at by from to into over near through and is are his her their".split()  # noqa: SIM905
)
_BACKBONES = {
    "lite2": [],
    "mobilenet_v2": ["grids.backbone=mobilenet_v2", "grids.image_size=224"],
}
_DECODERS = {
    "transformer": [],
    "show_attend_tell": [
        "decoder={name: show_attend_tell, output: deep, layers: null, pca_dim: null, tie_weights: null}"
    ],
}


def main() -> None:
    args = _arguments()
    describe()
    print("\n| captions | BLEU-4 | METEOR | CIDEr | with a repeated word | ending with a small word |")
    print("| --- " * 6 + "|", flush=True)
    data = _draw(args) if args.pictures or args.captions or args.dev else args.data.absolute()
    off, fitted = (predictions_of(_config(args, data, neighbours)) for neighbours in ("off", "fitted"))
    plain, ranked = captions_in(off), captions_in(fitted)
    _print_row("copied", captions_in(fitted, "copied"))
    _print_row("the likeliest of a beam", plain)
    _print_row("ranked by neighbours", ranked)
    print(f"| the gain, from and to | {' | '.join(_gains(plain, ranked))} | | |")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--backbone", choices=_BACKBONES, default="lite2")
    parser.add_argument("--decoder", choices=_DECODERS, default="transformer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=int)
    parser.add_argument("--captions", type=int)
    parser.add_argument("--dev", type=int, help="pictures of dev, by default all")
    parser.add_argument("--epochs", type=int, help="by default those of `best`")
    return parser.parse_args()


def _config(args: Any, data: Path, neighbours: str) -> Config:
    overrides = [
        f"data.path={data}",
        f"grids.weights={args.weights.absolute()}",
        "tuning=null",
        f"training.seed={args.seed}",
        *([f"training.epochs={args.epochs}"] if args.epochs else []),
        f"evaluation.neighbours='{neighbours}'",
        f"machine.workspace={args.workspace}",
        *_BACKBONES[args.backbone],
        *_DECODERS[args.decoder],
    ]
    return load("best", overrides)


def _draw(args: Any) -> Path:
    """Return a folder like DATA with some of its pictures, and only the first captions of the training pictures."""
    data = args.data.absolute()
    names = sorted((data / "Flickr_8k.trainImages.txt").read_text(encoding="utf-8").split())
    pictures, captions = args.pictures or len(names), args.captions or 5
    folder: Path = args.workspace / "drawn" / f"{pictures}x{captions}"
    folder.mkdir(parents=True, exist_ok=True)
    train = set(random.Random(7).sample(names, pictures))
    dev = (data / "Flickr_8k.devImages.txt").read_text(encoding="utf-8").split()[: args.dev]
    kept = set(dev)
    lines = []
    for line in (data / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines(keepends=True):
        name, number = line.partition("\t")[0].rsplit("#", 1)
        if name in kept or (name in train and int(number) < captions):
            lines.append(line)
    (folder / "Flickr8k.token.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "Flickr_8k.trainImages.txt").write_text("\n".join(sorted(train)) + "\n", encoding="utf-8")
    (folder / "Flickr_8k.devImages.txt").write_text("\n".join(dev) + "\n", encoding="utf-8")
    if not (folder / "images").exists():
        (folder / "images").symlink_to(data / "images")
    return folder


def predictions_of(config: Config) -> Path:
    """Run a config up to its captions of dev, and return their file."""
    return run_until(config, "evaluate")["evaluate"].path / PREDICTIONS


def captions_in(path: Path, column: str = "caption") -> list[ScoredCaption]:
    """Return the captions of a column, in the order of the pictures' digests."""
    rows = read_predictions(path, column)
    return [rows[digest] for digest in sorted(rows)]


def _print_row(name: str, corpus: Sequence[ScoredCaption]) -> None:
    print(f"| {name} | {' | '.join(cells_of(corpus))} |", flush=True)


def cells_of(corpus: Sequence[ScoredCaption]) -> list[str]:
    """Return the scores of captions, the share with a repeated word, and the share ending with a small word."""
    scores: dict[str, float] = {}
    for metric in _METRICS:
        scores |= measure(metric, corpus)
    said = [item.caption for item in corpus]
    repeat = [any(words.count(word) > 1 for word in words if word not in _SMALL) for words in said]
    ends = [bool(_SMALL.intersection(words[-1:])) for words in said]
    return [*(f"{scores[score]:.1f}" for score in _SCORES), *(f"{sum(of) / len(said):.1%}" for of in (repeat, ends))]


def _gains(plain: Sequence[ScoredCaption], ranked: Sequence[ScoredCaption]) -> list[str]:
    gains = {item.score: item for metric in _METRICS for item in compare(load_metric(metric), plain, ranked)}
    return [
        "{:+.1f} ({:+.1f} to {:+.1f})".format(gains[score].second - gains[score].first, *gains[score].interval)
        for score in _SCORES
    ]


if __name__ == "__main__":
    main()
