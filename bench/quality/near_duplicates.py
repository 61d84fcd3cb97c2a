"""How many planted near-duplicates are found among real photographs, and how many others are flagged.

    python -m bench.quality.near_duplicates PICTURES [--pictures 6000] [--planted 100] [--seed 0]

PICTURES is a folder of photographs. Of `--pictures` of them, drawn by the seed, `--planted` get a twin of each kind.
The photographs are read from their files, with nothing kept from before. Others that are flagged may be true near-
duplicates that the data set has of its own: their names are printed, to be looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from bench.machine import describe
from tasks.data.near_duplicates import near_duplicates

Change = Callable[[Image.Image, random.Random], Image.Image]


def main() -> None:
    given = _arguments()
    describe()
    print()
    names = sorted(path for path in given.pictures_folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    drawn = random.Random(given.seed)
    chosen = drawn.sample(names, given.pictures)
    originals = drawn.sample(chosen, given.planted * len(KINDS))
    with tempfile.TemporaryDirectory(prefix="attend-near-duplicates-") as folder:
        twins: dict[str, list[tuple[Path, Path]]] = {kind: [] for kind in KINDS}
        for number, original in enumerate(originals):
            kind = list(KINDS)[number % len(KINDS)]
            twin = Path(folder) / f"{number}.jpg"
            with Image.open(original) as picture:
                changed = KINDS[kind](picture.convert("RGB"), drawn)
            changed.save(twin, quality=30 if kind == "encoded again" else 90)
            twins[kind].append((original, twin))
        paths = [*chosen, *(twin for pairs in twins.values() for _, twin in pairs)]
        began = time.perf_counter()
        digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        pictures = {digest: path for path, digest in digests.items()}
        groups = near_duplicates(pictures, Path(folder) / "fingerprints.sqlite")
        seconds = time.perf_counter() - began
        near_duplicates(pictures, Path(folder) / "fingerprints.sqlite")
        again = time.perf_counter() - began - seconds
    group_of = {digest: number for number, group in enumerate(groups) for digest in group}
    _print(twins, digests, group_of)
    planted = {path for pairs in twins.values() for pair in pairs for path in pair}
    others = sorted(
        (group_of[digests[path]], path.name) for path in paths if path not in planted and digests[path] in group_of
    )
    print(f"\n| pictures | others flagged | seconds | seconds with fingerprints kept |\n{'| --- ' * 4}|")
    print(f"| {len(paths):,} | {len(others)} | {seconds:.1f} | {again:.1f} |")
    for group, name in others:
        alike = [pictures[digest].name for digest in groups[group] if pictures[digest].name != name]
        print(f"flagged: {name} ~ {', '.join(alike)}")


def _print(twins: dict[str, list[tuple[Path, Path]]], digests: dict[Path, str], group_of: dict[str, int]) -> None:
    """Print how many twins of each kind are in the group of their original."""
    print("| twin | planted | found | recall |\n| --- | --- | --- | --- |")
    counts = {}
    for kind, pairs in twins.items():
        groups = [(group_of.get(digests[original], -1), group_of.get(digests[twin], -2)) for original, twin in pairs]
        counts[kind] = sum(own == other for own, other in groups), len(pairs)
    counts["all"] = sum(found for found, _ in counts.values()), sum(planted for _, planted in counts.values())
    for kind, (found, planted) in counts.items():
        print(f"| {kind} | {planted} | {found} | {found / planted:.1%} |")


def _mirrored(picture: Image.Image, _: random.Random) -> Image.Image:
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _cropped(picture: Image.Image, drawn: random.Random) -> Image.Image:
    """Return a picture without a tenth of its width and height: from one end, from both alike, or anywhere between."""
    left, top = (drawn.choice([0.0, 0.5, 1.0, drawn.random()]) * side / 10 for side in picture.size)
    return picture.crop((round(left), round(top), round(left + picture.width * 0.9), round(top + picture.height * 0.9)))


def _same(picture: Image.Image, _: random.Random) -> Image.Image:
    return picture


def _resized(picture: Image.Image, drawn: random.Random) -> Image.Image:
    factor = drawn.choice([0.5, 2.0])
    return picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.Resampling.BICUBIC)


def _with_border(picture: Image.Image, drawn: random.Random) -> Image.Image:
    """Return a picture within a border of a plain colour, 5 to 10 % of each side wide."""
    share = drawn.uniform(0.05, 0.1)
    across, down = round(picture.width * share), round(picture.height * share)
    any_colour = (drawn.randrange(256), drawn.randrange(256), drawn.randrange(256))
    colour = drawn.choice([(0, 0, 0), (255, 255, 255), any_colour])
    framed = Image.new("RGB", (picture.width + 2 * across, picture.height + 2 * down), colour)
    framed.paste(picture, (across, down))
    return framed


KINDS: dict[str, Change] = {
    "mirrored": _mirrored,
    "cropped by a tenth": _cropped,
    "encoded again": _same,
    "resized": _resized,
    "with a border": _with_border,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pictures_folder", type=Path, metavar="PICTURES", help="a folder of photographs")
    parser.add_argument("--pictures", type=int, default=6000, help="photographs that are drawn from it")
    parser.add_argument("--planted", type=int, default=100, help="twins of each kind")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
