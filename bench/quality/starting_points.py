"""Measure the gain from starting from a captioner, with few photographs of a topic that it has never seen.

    python -m bench.quality.starting_points DATA WEIGHTS [--workspace W] [--seed 0] [PICTURESxCAPTIONS ...]

DATA is Flickr8k's folder and WEIGHTS the file of EfficientNet-Lite2's weights. The preset `base` is trained for six
epochs on the training pictures whose captions never mention a dog. The own pictures are drawn from the remaining
training pictures, with one or five captions each, and 40 more for dev. Captions of the dev pictures of dogs are scored
with five references. The settings are those that `attend init` writes, with and without `--from`, on the base's grids.
Stages that have already run are not run again.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.machine import describe
from bench.pipelines import run_until
from bench.quality.neighbours import captions_in, cells_of, predictions_of
from flows.configs import load
from flows.registered.evaluate import evaluate_registered
from tasks.config.schema import Config

_DOG = re.compile(r"\b(dogs?|pupp(y|ies))\b", re.IGNORECASE)
_BACKBONE = "timm:tf_efficientnet_lite2.in1k"
_HELD_OUT = 40  # own pictures for dev
_SIZES = ["50x1", "300x1", "1000x1", "300x5"]


def main() -> None:
    args = arguments(__doc__, sizes=True)
    describe()
    print(
        "\n| own pictures x captions | captioner | BLEU-4 | METEOR | CIDEr"
        " | with a repeated word | ending with a small word |"
    )
    print("| --- " * 7 + "|", flush=True)
    workspace = args.workspace.absolute()
    flickr = Flickr(args.data.absolute())
    everywhere = [f"machine.workspace={workspace}", "evaluation.split=test"]
    weights = args.weights.absolute()
    grids = _grids(weights)
    train_base(flickr, weights, workspace)
    for size in args.sizes or _SIZES:
        pictures, captions = map(int, size.split("x"))
        rows = flickr.own(pictures, captions, args.seed)
        table = flickr.write(workspace / "tables" / f"own-{size}-{args.seed}", rows)
        beginning = _init(table, "beginning.yaml")
        started = started_config(table, workspace)
        alone = evaluate_registered(load(beginning, [*everywhere, grids]), "models:/base@champion")
        scores = " | ".join(f"{alone.scores['scores'][name]:.1f}" for name in ("bleu4", "meteor", "cider"))
        print(f"| {size} | the base alone | {scores} |  |  |", flush=True)
        for label, config, own in (("from scratch", beginning, [grids]), ("started from the base", started, [])):
            for ranked, neighbours in (("", "off"), (", with neighbours", "fitted")):
                settings = [*everywhere, *own, f"evaluation.neighbours='{neighbours}'"]
                cells = cells_of(captions_in(predictions_of(load(config, settings))))
                print(f"| {size} | {label}{ranked} | {' | '.join(cells)} |", flush=True)


def _init(table: Path, name: str, *options: str) -> str:
    """Return the config that `attend init` writes for a table."""
    config = table.with_name(name)
    command = [sys.executable, "-m", "flows.commands.cli", "init", str(table), "--out", str(config), "--force"]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return str(config)


def started_config(table: Path, workspace: Path) -> str:
    """Return the config that `attend init` writes for a table with `--from` the base."""
    return _init(table, "started.yaml", "--from", "models:/base@champion", "--store", str(workspace))


def train_base(flickr: Flickr, weights: Path, workspace: Path) -> Config:
    """Train the captioner without dogs and register it, unless that is done, and return its config."""
    table = flickr.write(workspace / "tables" / "base", flickr.base())
    data = f"data={{adapter: table, path: {table}, images: {flickr.images}}}"
    settings = [f"machine.workspace={workspace}", "evaluation.split=test"]
    config = load("base", ["name=base", data, _grids(weights), *settings])
    run_until(config)
    return config


def _grids(weights: Path) -> str:
    return f"grids={{backbone: '{_BACKBONE}', weights: {weights}, image_size: 260}}"


def arguments(description: str | None, sizes: bool = False) -> Any:
    """Return the command's arguments. sizes: with the numbers of own pictures and captions."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    if sizes:
        parser.add_argument("sizes", nargs="*", metavar="PICTURESxCAPTIONS", help=f"default: {' '.join(_SIZES)}")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    parser.add_argument("--seed", type=int, default=0, help="of the pictures that are drawn")
    return parser.parse_intermixed_args()


Row = tuple[str, str, str]


class Flickr:
    """Flickr8k's pictures, with and without dogs."""

    def __init__(self, folder: Path) -> None:
        self.images = folder / "images"
        self._folder = folder
        self._captions: dict[str, list[str]] = {}
        for line in (folder / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
            name, _, caption = line.partition("\t")
            self._captions.setdefault(name.partition("#")[0], []).append(caption.strip())
        self._train, self._dev = (self._by_topic(f"Flickr_8k.{split}Images.txt") for split in ("train", "dev"))

    def _by_topic(self, file: str) -> Mapping[bool, list[str]]:
        """Return the pictures of a split by whether a caption mentions a dog."""
        names = sorted((self._folder / file).read_text(encoding="utf-8").split())
        by_topic: dict[bool, list[str]] = {True: [], False: []}
        for name in names:
            if name in self._captions and (self.images / name).is_file():
                by_topic[any(map(_DOG.search, self._captions[name]))].append(name)
        return by_topic

    def captions(self) -> Iterable[str]:
        """Yield all captions of all splits."""
        for captions in self._captions.values():
            yield from captions

    def _rows(self, names: Iterable[str], split: str) -> Iterable[Row]:
        return ((name, caption, split) for name in names for caption in self._captions[name])

    def write(self, folder: Path, rows: Iterable[Row]) -> Path:
        """Write rows as a table into a folder with the pictures, and return the table's path."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "images").exists():
            (folder / "images").symlink_to(self.images)
        table = folder / "captions.csv"
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("image", "caption", "split"), *rows])
        return table

    def base(self) -> Iterable[Row]:
        """Yield the rows without dogs."""
        dev = self._dev[False]
        yield from self._rows(self._train[False], "train")
        yield from self._rows(dev[:255], "dev")
        yield from self._rows(dev[255:], "test")

    def some_of_base(self, pictures: int, seed: int) -> Iterable[Row]:
        """Yield the rows of some training pictures without dogs, one caption each."""
        chance = random.Random(seed)
        for name in chance.sample(self._train[False], pictures):
            yield name, chance.choice(self._captions[name]), "train"

    def own(self, pictures: int, captions: int, seed: int) -> Iterable[Row]:
        """Yield the rows of some pictures of dogs, and of all dev pictures of dogs, which are scored."""
        chance = random.Random(seed)
        order = chance.sample(self._train[True], len(self._train[True]))
        for names, split in ((order[:pictures], "train"), (order[-_HELD_OUT:], "dev")):
            for name in names:
                texts = self._captions[name]
                yield from ((name, text, split) for text in (texts if captions > 1 else [chance.choice(texts)]))
        yield from self._rows(self._dev[True], "test")


if __name__ == "__main__":
    main()
