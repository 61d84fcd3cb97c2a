"""How well captions that were swapped among pictures are found by a model that was trained on them.

    python -m bench.quality.swapped_captions DATA WEIGHTS [--workspace workspace] [--epochs 3] [--share 0.05]

DATA is Flickr8k's folder, WEIGHTS MobileNetV2's weights. `--share` of all captions are exchanged among each other, the
preset `flickr8k` is trained on the result for `--epochs`, and its doubts are ranked: on dev, and on part of train. What
has run already is not run again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from bench.machine import describe
from flows.pipeline import build_pipeline
from models.vocabulary import SPECIAL
from tasks.config.devices import device_of
from tasks.config.schema import load
from tasks.data.caption_files import read_captions, read_vocabulary
from tasks.data.manifest import read_pictures
from tasks.grids.index import open_grids
from tasks.inspection.doubtful_captions import doubts
from tasks.inspection.inspect import DOUBT
from tasks.pipeline.plan import artifacts, up_to
from tasks.pipeline.run import run_stage
from tasks.training.outputs import load_ensemble

_AVERAGED = 1024  # training pictures whose mean grid is what the decoder says without looking at one
_PICTURES = 1000  # of a split


def main() -> None:
    given = _arguments()
    describe()
    folder = given.workspace / "swapped"
    swapped = _swap(given.data, folder, given.share)
    settings = [f"grids.weights={given.weights}", f"machine.workspace={given.workspace}", "captions.max_tokens=20"]
    settings += [f"data.path={folder}", f"training.epochs={given.epochs}", "name=swapped"]
    config = load("flickr8k", settings)
    pipeline = up_to(build_pipeline(config), "train")
    for stage in pipeline.names():
        run_stage(pipeline, stage)
    made = artifacts(pipeline)
    grids, device = open_grids(made["extract"], config.machine), device_of(config.machine)
    decoder, _ = load_ensemble(made["train"].path, 1)
    decoder = decoder.to(device).eval()
    words = len(read_vocabulary(made["tensorise"].path).words) + len(SPECIAL)
    known = [item.digest for item in read_pictures(made["ingest"].path, "train") if item.digest in grids]
    mean = grids.read(random.Random(0).sample(known, min(len(known), _AVERAGED))).mean(axis=0, dtype=np.float32)
    print(
        "\n| split | captions | swapped | AUROC | of the first 100 | flagged | of them swapped | seconds |\n"
        f"{'| --- ' * 8}|"
    )
    for split in ("dev", "train"):
        names = {item.digest: item.name for item in read_pictures(made["ingest"].path, split)}
        captioned = [item for item in read_captions(made["tensorise"].path, split) if item.digest in grids]
        captioned = random.Random(0).sample(captioned, min(_PICTURES, len(captioned)))
        began = time.perf_counter()
        values = np.concatenate(doubts(decoder, torch.from_numpy(mean), grids, captioned, device, words))
        seconds = time.perf_counter() - began
        is_swapped = np.array(
            [(names[item.digest], row) in swapped for item in captioned for row in range(len(item.tokens))]
        )
        first = is_swapped[np.argsort(-values)[:100]].mean()
        flagged = values > DOUBT
        auroc = roc_auc_score(is_swapped, values)
        print(
            f"| {split} | {len(values):,} | {is_swapped.sum()} | {auroc:.3f} | {first:.0%} | "
            f"{flagged.sum()} | {is_swapped[flagged].mean():.0%} | {seconds:.0f} |",
            flush=True,
        )


def _swap(data: Path, folder: Path, share: float) -> set[tuple[str, int]]:
    """Write the data set with captions exchanged to a folder, and return the pictures' names and places of these."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "images").exists():
        (folder / "images").symlink_to((data / "images").absolute())
    for name in ("Flickr_8k.trainImages.txt", "Flickr_8k.devImages.txt"):
        shutil.copyfile(data / name, folder / name)
    lines = (data / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line]
    moved = random.Random(0).sample(range(len(rows)), round(share * len(rows)))
    texts = {to: rows[source][1] for to, source in zip(moved, moved[1:] + moved[:1], strict=True)}
    (folder / "Flickr8k.token.txt").write_text(
        "".join(f"{key}\t{texts.get(number, text)}\n" for number, (key, text) in enumerate(rows)), encoding="utf-8"
    )
    return {(key.partition("#")[0], int(key.partition("#")[2])) for key in (rows[number][0] for number in moved)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("weights", type=Path, metavar="WEIGHTS")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.05)
    return parser.parse_args()


if __name__ == "__main__":
    main()
