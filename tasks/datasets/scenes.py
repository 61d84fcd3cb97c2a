"""Adapter `scenes`: generated small pictures of shapes, five true captions each, and the facts they show.

A picture and its captions depend only on the seed and the picture's number, so that a larger data set begins with the
pictures of a smaller one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypedDict

from PIL import Image, ImageDraw
from pydantic import Field

from tasks.common.section import NotInKey
from tasks.datasets.base import DatasetOptions, Row
from tasks.datasets.faults import REFUSE, Faults

COLOURS = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (38, 84, 208),
    "yellow": (244, 208, 36),
    "purple": (138, 56, 172),
    "white": (250, 250, 250),
}
SHAPES = ("square", "triangle", "cross", "ring")
SIZES = {"small": 0.11, "large": 0.16}  # half the side of a shape, as a share of the picture's side
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
_SAME_LINE = 0.10  # centres closer than this along an axis, as a share of the side, have no relation along it
_CELLS = [(column, row) for column in range(3) for row in range(3)]
_JITTER = 0.02  # greatest distance of a shape from its cell's middle along an axis, as a share of the side
_BACKGROUNDS = ((24, 26, 32), (58, 62, 70), (92, 84, 76))


class SceneObject(TypedDict):
    """An object of a picture. x, y: its centre, as shares of the picture's side."""

    size: str
    colour: str
    shape: str
    x: float
    y: float


class Scenes(DatasetOptions):
    """Generated pictures of one to three coloured shapes, with captions; nothing is downloaded or read."""

    has_facts: ClassVar[bool] = True
    adapter: Literal["scenes"] = "scenes"
    path: Annotated[Path, NotInKey()] = Field(Path(), exclude=True, description="not used: the pictures are generated")
    pictures: int = Field(1000, ge=10, le=1_000_000, description="pictures to generate")
    side: int = Field(96, ge=32, le=1024, description="side of a picture, in pixels")
    seed: int = Field(0, description="random seed of the scenes")

    @property
    def unpacks(self) -> bool:
        return True

    def annotation_files(self) -> list[Path]:
        return []

    def image_folder(self, generated: Path) -> Path:
        return generated

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        generated.mkdir(parents=True, exist_ok=True)
        for number in range(self.pictures):
            rng = random.Random(f"scene {self.seed} {number}")
            objects = place_objects(rng)
            name = f"scene_{number:06d}.png"
            draw(objects, rng, self.side).save(generated / name, compress_level=1)
            yield Row(name, tuple(captions_of(objects, rng)), None, name, {"things": objects})


def place_objects(rng: random.Random) -> list[SceneObject]:
    """Return one to three objects, each in a cell of a 3x3 lattice, a little off the cell's middle.

    No two have both colour and shape in common. Each has size, colour, shape, and centre x, y as shares of the
    picture's side.
    """
    objects: list[SceneObject] = []
    kinds = [(colour, shape) for colour in sorted(COLOURS) for shape in SHAPES]
    count = rng.choice((1, 2, 2, 3))
    for (colour, shape), (column, row) in zip(rng.sample(kinds, count), rng.sample(_CELLS, count), strict=True):
        x, y = (round((cell + 0.5) / 3 + rng.uniform(-_JITTER, _JITTER), 3) for cell in (column, row))
        objects.append({"size": rng.choice(sorted(SIZES)), "colour": colour, "shape": shape, "x": x, "y": y})
    return objects


def relations(one: SceneObject, other: SceneObject) -> list[str]:
    """Return the relations of `one` to `other`, such as "left of", in the words of the captions."""
    dx, dy = one["x"] - other["x"], one["y"] - other["y"]
    names = []
    if abs(dx) >= _SAME_LINE:
        names.append("left of" if dx < 0 else "right of")
    if abs(dy) >= _SAME_LINE:
        names.append("above" if dy < 0 else "below")
    return names


def draw(objects: list[SceneObject], rng: random.Random, side: int) -> Image.Image:
    """Return the picture, RGB, `side` x `side` px, drawn four times as large for antialiasing."""
    scale = 4 * side
    image = Image.new("RGB", (scale, scale), rng.choice(_BACKGROUNDS))
    pen = ImageDraw.Draw(image)
    for item in objects:
        x, y, half = item["x"] * scale, item["y"] * scale, SIZES[item["size"]] * scale
        fill = COLOURS[item["colour"]]
        if item["shape"] == "ring":
            pen.ellipse((x - half, y - half, x + half, y + half), outline=fill, width=round(half / 3))
        elif item["shape"] == "square":
            pen.rectangle((x - half, y - half, x + half, y + half), fill=fill)
        elif item["shape"] == "triangle":
            pen.polygon(((x, y - half), (x + half, y + half), (x - half, y + half)), fill=fill)
        else:
            arm = half / 4
            pen.rectangle((x - half, y - arm, x + half, y + arm), fill=fill)
            pen.rectangle((x - arm, y - half, x + arm, y + half), fill=fill)
    return image.resize((side, side), Image.Resampling.BOX)


def captions_of(objects: list[SceneObject], rng: random.Random) -> list[str]:
    """Return five true captions with different wording."""
    objects = list(objects)
    rng.shuffle(objects)
    if len(objects) == 1:
        (one,) = objects
        return [
            f"a {_full_name(one)} .",
            f"there is a {_full_name(one)} in the picture .",
            f"the {_short_name(one)} is {one['size']} .",
            f"a picture of one {_full_name(one)} .",
            f"only a {_short_name(one)} is shown .",
        ]
    one, other = objects[:2]
    relation = rng.choice(relations(one, other))
    last = objects[-1]
    next_to_last = objects[-2]
    opposite = OPPOSITE[rng.choice(relations(next_to_last, last))]
    return [
        f"a {_full_name(one)} {relation} a {_full_name(other)} .",
        f"there is a {_short_name(last)} {opposite} a {_short_name(next_to_last)} .",
        f"the {_short_name(one)} is {one['size']} and the {_short_name(last)} is {last['size']} .",
        f"a picture of a {_full_name(next_to_last)} with a {_short_name(last)} .",
        f"a {_full_name(last)} and a {_full_name(next_to_last)} are shown .",
    ]


def _full_name(item: SceneObject) -> str:
    return f"{item['size']} {item['colour']} {item['shape']}"


def _short_name(item: SceneObject) -> str:
    return f"{item['colour']} {item['shape']}"
