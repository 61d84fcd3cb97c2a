"""`scenes`, generated: small pictures of shapes, five true captions each, and the facts they were made from.

The pictures and captions are a function of the seed and a picture's number alone, so that a larger set
begins with the smaller one's pictures.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from PIL import Image, ImageDraw
from pydantic import Field

from tasks.common.section import NotInKey
from tasks.datasets.base import DatasetOptions, Row

COLOURS = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (38, 84, 208),
    "yellow": (244, 208, 36),
    "purple": (138, 56, 172),
    "white": (250, 250, 250),
}
SHAPES = ("square", "triangle", "cross", "ring")
SIZES = {"small": 0.11, "large": 0.16}  # half a side, as a share of the picture's
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
_SAME_LINE = 0.10  # centres nearer than this along an axis are neither left nor right, above nor below
_PLACES = [(column, row) for column in range(3) for row in range(3)]
_JITTER = 0.02
_BACKGROUNDS = ((24, 26, 32), (58, 62, 70), (92, 84, 76))

Thing = dict[str, Any]


class Scenes(DatasetOptions):
    """Generated pictures of one to three shapes; nothing is downloaded or read."""

    has_facts: ClassVar[bool] = True
    unpacks: ClassVar[bool] = True
    adapter: Literal["scenes"] = "scenes"
    path: Annotated[Path, NotInKey()] = Field(Path(), exclude=True, description="not used: the pictures are generated")
    pictures: int = Field(1000, ge=10, le=1_000_000)
    side: int = Field(96, ge=32, le=1024, description="side of a picture, px")
    seed: int = 0

    def annotation_files(self) -> list[Path]:
        return []

    def image_folder(self, generated: Path) -> Path:
        return generated

    def rows(self, generated: Path) -> Iterator[Row]:
        generated.mkdir(parents=True, exist_ok=True)
        for number in range(self.pictures):
            chance = random.Random(f"scene {self.seed} {number}")
            things = place_things(chance)
            name = f"scene_{number:06d}.png"
            draw(things, chance, self.side).save(generated / name, compress_level=1)
            yield Row(name, tuple(captions_of(things, chance)), None, name, {"things": things})


def place_things(chance: random.Random) -> list[Thing]:
    """One to three different shapes on the places of a 3x3 lattice, a little off their middles.

    Each has size, colour, shape, and centre x, y in shares of the picture's side.
    """
    things: list[Thing] = []
    kinds = [(colour, shape) for colour in sorted(COLOURS) for shape in SHAPES]
    count = chance.choice((1, 2, 2, 3))
    for (colour, shape), (column, row) in zip(chance.sample(kinds, count), chance.sample(_PLACES, count), strict=True):
        x, y = (round((place + 0.5) / 3 + chance.uniform(-_JITTER, _JITTER), 3) for place in (column, row))
        things.append({"size": chance.choice(sorted(SIZES)), "colour": colour, "shape": shape, "x": x, "y": y})
    return things


def relations(one: Thing, other: Thing) -> list[str]:
    """How `one` stands to `other`, as the captions say it."""
    across, down = one["x"] - other["x"], one["y"] - other["y"]
    found = []
    if abs(across) >= _SAME_LINE:
        found.append("left of" if across < 0 else "right of")
    if abs(down) >= _SAME_LINE:
        found.append("above" if down < 0 else "below")
    return found


def draw(things: list[Thing], chance: random.Random, side: int) -> Image.Image:
    """The picture, RGB, `side` px square, antialiased by drawing it four times as large."""
    scale = 4 * side
    image = Image.new("RGB", (scale, scale), chance.choice(_BACKGROUNDS))
    pen = ImageDraw.Draw(image)
    for thing in things:
        x, y, half = thing["x"] * scale, thing["y"] * scale, SIZES[thing["size"]] * scale
        fill = COLOURS[thing["colour"]]
        if thing["shape"] == "ring":
            pen.ellipse((x - half, y - half, x + half, y + half), outline=fill, width=round(half / 3))
        elif thing["shape"] == "square":
            pen.rectangle((x - half, y - half, x + half, y + half), fill=fill)
        elif thing["shape"] == "triangle":
            pen.polygon(((x, y - half), (x + half, y + half), (x - half, y + half)), fill=fill)
        else:
            arm = half / 4
            pen.rectangle((x - half, y - arm, x + half, y + arm), fill=fill)
            pen.rectangle((x - arm, y - half, x + arm, y + half), fill=fill)
    return image.resize((side, side), Image.Resampling.BOX)


def captions_of(things: list[Thing], chance: random.Random) -> list[str]:
    """Five true captions of different wording."""
    things = list(things)
    chance.shuffle(things)
    if len(things) == 1:
        (one,) = things
        return [
            f"a {_full(one)} .",
            f"there is a {_full(one)} in the picture .",
            f"the {_plain(one)} is {one['size']} .",
            f"a picture of one {_full(one)} .",
            f"only a {_plain(one)} is shown .",
        ]
    one, other = things[:2]
    relation = chance.choice(relations(one, other))
    last = things[-1]
    before = things[-2]
    turned = OPPOSITE[chance.choice(relations(before, last))]
    return [
        f"a {_full(one)} {relation} a {_full(other)} .",
        f"there is a {_plain(last)} {turned} a {_plain(before)} .",
        f"the {_plain(one)} is {one['size']} and the {_plain(last)} is {last['size']} .",
        f"a picture of a {_full(before)} with a {_plain(last)} .",
        f"a {_full(last)} and a {_full(before)} are shown .",
    ]


def _full(thing: Thing) -> str:
    return f"{thing['size']} {thing['colour']} {thing['shape']}"


def _plain(thing: Thing) -> str:
    return f"{thing['colour']} {thing['shape']}"
