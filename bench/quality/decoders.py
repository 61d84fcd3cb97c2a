"""Compare all decoders on the same grids: parameters, epochs, minutes, dev BLEU with greedy search and beam 5.

    python -m bench.quality.decoders DATA WEIGHTS [--side 7|14] [--epochs N] [--workspace FOLDER] [PRESET ...]

DATA is Flickr8k's folder and WEIGHTS the file of MobileNetV2's weights. Its grids replace each system's own backbone,
and all decoders are trained in the same way. Stages that have already run are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import safetensors

from bench.machine import describe
from bench.pipelines import run_until
from tasks.config.schema import Config, load, validate
from tasks.training.outputs import HISTORY, WEIGHTS

PRESETS = ("rnn", "lstm", "regnet_attention", "captionnet", "googlenet", "show_attend_tell", "hard_attention")
BUFFERS = ("basis", "baseline")
PIXELS = {7: 224, 14: 417}
HEADER = "| decoder | preset | grid | parameters | epochs | minutes | greedy: BLEU-1..4 | beam 5: BLEU-1..4 |"


def main() -> None:
    args = _arguments()
    describe()
    print()
    print(HEADER)
    print("| --- " * 8 + "|")
    for preset in args.presets:
        print(_row(preset, args), flush=True)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--side", type=int, choices=PIXELS, default=7)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    return parser.parse_intermixed_args()


def _config(preset: str, args: Any, beam: int) -> Config:
    """Return the config of the preset's decoder on the common grids, with the common training settings."""
    decoder = load(preset, ["data={adapter: scenes}"]).decoder.model_dump(mode="json")
    regularised = {"dropout_words": 0.3, "dropout_grid": 0.3, "dropout_output": 0.5}
    values = {
        "name": f"bench-{preset}",
        "data": {"adapter": "flickr8k", "path": str(args.data)},
        "grids": {"backbone": "mobilenet_v2", "weights": str(args.weights), "image_size": PIXELS[args.side]},
        "decoder": {**{name: value for name, value in decoder.items() if value is not None}, **regularised},
        "training": {
            "epochs": args.epochs,
            "label_smoothing": 0.1,
            "unknown_words": 0.1,
            "averaging": 0.999,
        },
        "evaluation": {"split": "dev", "beam": beam},
        "machine": {"workspace": str(args.workspace)},
    }
    return validate(values, preset)


def _row(preset: str, args: Any) -> str:
    scores = []
    for beam in (1, 5):
        config = _config(preset, args, beam)
        artifacts = run_until(config, "evaluate")
        values = json.loads((artifacts["evaluate"].path / "scores.json").read_text(encoding="utf-8"))["scores"]
        scores.append(" ".join(f"{values[f'bleu{n}']:.1f}" for n in (1, 2, 3, 4)))
    history = pq.read_table(artifacts["train"].path / HISTORY).to_pylist()
    minutes = sum(row["seconds"] for row in history) / 60
    with safetensors.safe_open(artifacts["train"].path / WEIGHTS, "pt") as weights:
        learnt = [name for name in weights.keys() if name not in BUFFERS]  # noqa: SIM118
        parameters = sum(math.prod(weights.get_slice(name).get_shape()) for name in learnt)
    cells = [config.decoder.name, preset, f"{args.side}x{args.side}", f"{parameters / 1e6:.1f} M", str(len(history))]
    return "| " + " | ".join([*cells, f"{minutes:.0f}", *scores]) + " |"


if __name__ == "__main__":
    main()
