"""Measure what each ingredient of training and search adds: dev BLEU-4, METEOR, CIDEr and minutes.

    python -m bench.quality.ingredients DATA WEIGHTS [--backbone NAME] [--sizes 224 417] [--epochs 6] [ROW ...]

DATA is Flickr8k's folder and WEIGHTS the file of the backbone's weights, by default MobileNetV2's. The sizes are those
of the pictures of the plain row, and of finer pictures; with a single size, no finer pictures are tried. A row keeps
the settings of the rows before it, except of those marked `alone`. Stages that have already run are not run again, and
a killed run is resumed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from bench.machine import describe
from bench.pipelines import run_until
from tasks.config.schema import Config, validate
from tasks.pipeline.ledger import Artifact
from tasks.training.outputs import HISTORY

Settings = dict[str, dict[str, Any]]


class Row(NamedTuple):
    """name: the ingredient's. settings: section -> fields that it sets. alone: whether later rows leave it out."""

    name: str
    settings: Settings
    alone: bool = False


FINER = -1  # stands for the second of the sizes

PLAIN: Settings = {
    "decoder": {"name": "show_attend_tell", "output": "deep", "pca_dim": 512, "tie_weights": True},
    "training": {"select": "cider"},
    "evaluation": {"split": "dev", "beam": 5, "neighbours": "off"},
}
TUNING = {
    "epochs": 5,
    "first_block": 1,
    "backbone_learning_rate": 1e-4,
    "label_smoothing": 0.1,
    "unknown_words": 0.1,
    "averaging": 0.99,
    "select": "cider",
}
REWARDS = {"epochs": 5, "learning_rate": 1e-4, "averaging": 0.99, "select": "mean"}
TRANSFORMER = {"name": "transformer", "output": None, "layers": 2}
ROWS = (
    Row("plain", {}),
    Row("captions of up to 20 tokens", {"captions": {"max_tokens": 20}}),
    Row("label smoothing 0.1", {"training": {"label_smoothing": 0.1}}),
    Row("dropout 0.3 on words and grid", {"decoder": {"dropout_words": 0.3, "dropout_grid": 0.3}}),
    Row("a tenth of the words replaced by UNK", {"training": {"unknown_words": 0.1}}),
    Row("averaged weights", {"training": {"averaging": 0.999}}),
    Row("scheduled sampling to 0.25", {"training": {"scheduled_sampling": 0.25}}, alone=True),
    Row("finer pictures, all positions", {"grids": {"image_size": FINER}}, alone=True),
    Row("finer pictures, 7x7 positions", {"grids": {"image_size": FINER, "grid": 7}}),
    Row("length normalisation 0.7", {"evaluation": {"length_normalisation": 0.7}}),
    Row("no repeated trigram", {"evaluation": {"no_repeat": 3}}),
    Row("neighbours and a beam of 20", {"evaluation": {"beam": 20, "neighbours": "fitted"}}, alone=True),
    Row("three decoders together", {"decoder": {"members": 3}}, alone=True),
    Row("Up-Down instead", {"decoder": {"name": "up_down", "output": None}}, alone=True),
    Row("Transformer instead", {"decoder": TRANSFORMER}, alone=True),
    Row("Transformer with an encoder layer", {"decoder": {**TRANSFORMER, "encoder_layers": 1}}, alone=True),
    Row("chosen by the mean of scores", {"training": {"select": "mean"}}, alone=True),
    Row("the backbone fine-tuned", {"tuning": TUNING}, alone=True),
    Row("fine-tuned with jitter 0.2", {"tuning": {**TUNING, "jitter": 0.2}}),
    Row("rewarded by CIDEr-D", {"self_critical": REWARDS}, alone=True),
    Row("rewarded by METEOR too", {"self_critical": {**REWARDS, "meteor": 3.0}}),
)


def main() -> None:
    args = _arguments()
    describe()
    print("\n| ingredient | seed | BLEU-4 | METEOR | ROUGE-L | CIDEr | words per caption | minutes |")
    print("| --- " * 8 + "|")
    rows = ROWS if len(args.sizes) == 2 else tuple(row for row in ROWS if "grids" not in row.settings)
    for row, settings in chained(rows):
        if not args.rows or row.name in args.rows:
            for seed in args.seeds:
                print(_line(row.name, seed, _config(settings, seed, args)), flush=True)


def chained(rows: tuple[Row, ...]) -> list[tuple[Row, Settings]]:
    """Return each row with all settings that apply to it."""
    found, settings_so_far = [], PLAIN
    for row in rows:
        settings = _over(settings_so_far, row.settings)
        found.append((row, settings))
        settings_so_far = settings_so_far if row.alone else settings
    return found


def _over(under: Settings, over: Settings) -> Settings:
    merged = {name: {**under.get(name, {}), **over.get(name, {})} for name in {**under, **over}}
    return {name: {key: value for key, value in fields.items() if value is not None} for name, fields in merged.items()}


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=6, help="of the training from cached grids")
    parser.add_argument("--backbone", default="mobilenet_v2")
    parser.add_argument("--sizes", type=int, nargs="+", default=(224, 417), metavar="PX")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_intermixed_args()
    unknown = set(args.rows) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are: {', '.join(row.name for row in ROWS)}")
    return args


def _config(settings: Settings, seed: int, args: Any) -> Config:
    own: Settings = {
        "data": {"adapter": "flickr8k", "path": str(args.data)},
        "grids": {
            "backbone": args.backbone,
            "weights": str(args.weights),
            "image_size": args.sizes["grids" in settings],
        },
        "training": {"seed": seed, "epochs": args.epochs},
        "machine": {"workspace": str(args.workspace), "threads": args.threads},
    }
    return validate({"name": "ingredients", **_over(settings, own)}, "ingredients")


def _line(name: str, seed: int, config: Config) -> str:
    artifacts = run_until(config, "evaluate")
    record = json.loads((artifacts["evaluate"].path / "scores.json").read_text(encoding="utf-8"))
    scores = [f"{record['scores'][score]:.1f}" for score in ("bleu4", "meteor", "rouge_l", "cider")]
    minutes = sum(_minutes(artifacts[kind]) for kind in ("train", "self_critical", "tune") if kind in artifacts)
    return f"| {name} | {seed} | {' | '.join(scores)} | {record['language']['words']:.1f} | {minutes:.0f} |"


def _minutes(trained: Artifact) -> float:
    seconds: float = sum(row["seconds"] for row in pq.read_table(trained.path / HISTORY).to_pylist())
    return seconds / 60


if __name__ == "__main__":
    main()
