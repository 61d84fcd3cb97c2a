"""What a view shows of a photograph, and which views may stand for a picture in training.

A view is named DIGEST#NUMBER. What it shows is a function of that name and of `views.crop`, `flip` and `seed`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from models.vocabulary import Vocabulary
from tasks.config.schema import ViewsConfig
from tasks.data.captions import CaptionedPicture
from tasks.grids.reader import GridReader

# A mirrored picture makes a lie of a caption with one of these words.
SIDED = frozenset({"left", "right", "leftmost", "rightmost", "left-hand", "right-hand", "lefthand", "righthand"})


def names_of(digest: str, views: ViewsConfig) -> list[str]:
    """The names of a picture's views."""
    return [f"{digest}#{number}" for number in range(1, views.number + 1)]


def is_mirrored(name: str, views: ViewsConfig) -> bool:
    """Whether the view of this name shows its picture mirrored."""
    return views.flip and int(name.partition("#")[2]) % 2 == 1


def show(name: str, pixels: Tensor, views: ViewsConfig) -> Tensor:
    """What a view shows of a photograph, uint8 (3, H, W) -> (3, H', W')."""
    part = cropped(pixels, random.Random(f"{views.seed} {name}"), views.crop)
    return part.flip(2) if is_mirrored(name, views) else part


def cropped(pixels: Tensor, chance: random.Random, least: float) -> Tensor:
    """A part of a photograph (3, H, W), at random, at least `least` of each side."""
    height, width = (max(round(side * chance.uniform(least, 1.0)), 1) for side in pixels.shape[1:])
    top, left = chance.randint(0, pixels.shape[1] - height), chance.randint(0, pixels.shape[2] - width)
    return pixels[:, top : top + height, left : left + width]


def is_sided(picture: CaptionedPicture, vocabulary: Vocabulary) -> bool:
    """Whether a caption of the picture tells left from right."""
    return any(not SIDED.isdisjoint(vocabulary.decode(row)) for row in picture.tokens.tolist())


def choices(
    pictures: Sequence[CaptionedPicture], views: ViewsConfig, vocabulary: Vocabulary, there: GridReader
) -> dict[str, Sequence[str]]:
    """Digest -> the names of the grids that may stand for it in training: the picture's own, and its views'.

    there: the grids.
    """
    found: dict[str, Sequence[str]] = {}
    for picture in pictures:
        names = [name for name in names_of(picture.digest, views) if name in there]
        if is_sided(picture, vocabulary):
            names = [name for name in names if not is_mirrored(name, views)]
        found[picture.digest] = [picture.digest, *names]
    return found
