"""Alarms of drift on halves of one world and of changed ones, and how sure a model is of pictures unlike any.

    python -m bench.quality.drift_and_confidence PICTURES [--model NAME] [--workspace workspace] [--pictures 1000]

PICTURES is a folder of held-out photographs, such as those of dev, of which `--pictures` are drawn. Their pooled grids
come from the model's own backbone. One half of them is tested against the other half as it is, blurred, grey or dark,
and against generated scenes.
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from torch import Tensor
from torch.nn import functional

from bench.machine import describe
from models.neighbours import pool
from tasks.common.progress import Bar
from tasks.datasets.faults import Faults
from tasks.datasets.scenes import Scenes
from tasks.inspection.drift import drift_between
from tasks.registry.logged_model import load_captioner
from tasks.registry.versions import find

_HALVES, _CHANGED = 200, 100  # tests of the same world, and of each other one
_BATCH = 32
_NO_PHOTOGRAPHS = 60  # pictures of each kind that are none
CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "blurred": lambda picture: picture.filter(ImageFilter.GaussianBlur(4)),
    "grey": lambda picture: picture.convert("L").convert("RGB"),
    "dark": lambda picture: ImageEnhance.Brightness(picture).enhance(0.25),
}


def main() -> None:
    given = _arguments()
    describe()
    captioner = load_captioner(*find(given.model, given.workspace.absolute()), runtime="torch")
    names = sorted(path for path in given.pictures_folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    chosen = random.Random(0).sample(names, min(given.pictures, len(names)))
    photographs = [path.read_bytes() for path in chosen]
    own = _pooled(captioner, photographs)
    worlds = {
        name: _pooled(captioner, [_changed(data, change) for data in photographs]) for name, change in CHANGES.items()
    }
    worlds["scenes"] = _pooled(captioner, _scenes(len(photographs)))
    print(f"\n| half tested against | tests | alarms |\n{'| --- ' * 3}|")
    print(f"| the other half, as it is | {_HALVES} | {_alarms(own, own, _HALVES)} |")
    for name, other in worlds.items():
        print(f"| the other half, {name} | {_CHANGED} | {_alarms(own, other, _CHANGED)} |", flush=True)

    print(f"\n| pictures | median confidence | greatest |\n{'| --- ' * 3}|")
    for name, pictures in {"photographs": photographs, **_no_photographs()}.items():
        values = [result.confidence for result in captioner.caption(pictures)]
        print(f"| {name} | {np.median(values):.3f} | {max(values):.3f} |", flush=True)


def _alarms(own: Tensor, other: Tensor, tests: int) -> int:
    """Return how many random halves of `own` differ from the other half as it is in `other`, rows (N, C) alike."""
    alarms = 0
    for seed in range(tests):
        order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
        half = len(own) // 2
        alarms += drift_between(own[order[:half]], other[order[half:]], seed).is_alarm
    return alarms


def _pooled(captioner: Any, photographs: Sequence[bytes]) -> Tensor:
    parts = []
    with Bar(len(photographs), "grids", "pictures") as bar:
        for start in range(0, len(photographs), _BATCH):
            pooled = torch.from_numpy(pool(captioner.grids(photographs[start : start + _BATCH])))
            parts.append(functional.normalize(pooled))
            bar.advance(len(parts[-1]))
    return torch.cat(parts)


def _changed(photograph: bytes, change: Callable[[Image.Image], Image.Image]) -> bytes:
    with Image.open(io.BytesIO(photograph)) as picture:
        return _png(change(picture.convert("RGB")))


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _scenes(count: int) -> list[bytes]:
    with tempfile.TemporaryDirectory(prefix="attend-scenes-") as folder:
        rows = Scenes(pictures=count, side=224).rows(Path(folder), Faults(gather=False))
        return [(Path(folder) / row.name).read_bytes() for row in rows]


def _no_photographs() -> dict[str, list[bytes]]:
    """Return pictures that are no photographs: plain grey, noise, and drawings of a few lines and shapes."""
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, (_NO_PHOTOGRAPHS, 224, 224, 3), dtype=np.uint8)
    levels = [round(value) for value in np.linspace(0, 255, _NO_PHOTOGRAPHS)]
    return {
        "plain grey": [_png(Image.new("RGB", (224, 224), (level, level, level))) for level in levels],
        "noise": [_png(Image.fromarray(pixels)) for pixels in noise],
        "drawn": [_png(picture) for picture in _drawings(_NO_PHOTOGRAPHS)],
    }


def _drawings(count: int) -> Iterator[Image.Image]:
    for seed in range(count):
        drawn = random.Random(seed)
        picture = Image.new("RGB", (224, 224), "white")
        pen = ImageDraw.Draw(picture)
        for _ in range(drawn.randint(3, 12)):
            left, right = sorted(drawn.sample(range(224), 2))
            top, bottom = sorted(drawn.sample(range(224), 2))
            colour = (drawn.randrange(256), drawn.randrange(256), drawn.randrange(256))
            place, fill = (left, top, right, bottom), drawn.choice([colour, (0, 0, 0)])
            match drawn.randrange(3):
                case 0:
                    pen.ellipse(place, fill=fill)
                case 1:
                    pen.rectangle(place, fill=fill)
                case _:
                    pen.line(place, fill=fill)
        yield picture


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pictures_folder", type=Path, metavar="PICTURES", help="a folder of photographs")
    parser.add_argument("--pictures", type=int, default=1000, help="photographs that are drawn from it")
    parser.add_argument("--model", help="a registered model; by default the champion promoted last")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
