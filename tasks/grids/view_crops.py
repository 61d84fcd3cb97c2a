"""Views: cropped and mirrored parts of photographs, and which of them may replace a picture in training.

A view is named DIGEST#NUMBER. Its pixels are a function of that name and of `views.crop`, `flip` and `seed`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from models.resizing import Pixels
from models.vocabulary import Vocabulary
from tasks.config.stages import ViewsConfig
from tasks.data.caption_files import CaptionedPicture
from tasks.grids.reader import GridReader

# A caption with one of these words is wrong of the mirrored picture.
SIDED = frozenset({"left", "right", "leftmost", "rightmost", "left-hand", "right-hand", "lefthand", "righthand"})


def names_of(digest: str, views: ViewsConfig) -> list[str]:
    """Return the names of a picture's views."""
    return [f"{digest}#{number}" for number in range(1, views.number + 1)]


def is_mirrored(name: str, views: ViewsConfig) -> bool:
    """Return whether the view of this name is mirrored: with `views.flip`, those of odd number are."""
    return views.flip and int(name.partition("#")[2]) % 2 == 1


def view_pixels(name: str, pixels: Pixels, views: ViewsConfig) -> Pixels:
    """Return the view of this name of a photograph: uint8 (H, W, 3) -> (H', W', 3)."""
    part = random_crop(pixels, random.Random(f"{views.seed} {name}"), views.crop)
    return part[:, ::-1] if is_mirrored(name, views) else part


def random_crop(pixels: Pixels, generator: random.Random, minimum: float) -> Pixels:
    """Return a random part of a photograph (H, W, 3); minimum: the least share of each side that is kept."""
    height, width = (max(round(side * generator.uniform(minimum, 1.0)), 1) for side in pixels.shape[:2])
    top, left = generator.randint(0, pixels.shape[0] - height), generator.randint(0, pixels.shape[1] - width)
    return pixels[top : top + height, left : left + width]


def mentions_side(picture: CaptionedPicture, vocabulary: Vocabulary) -> bool:
    """Return whether a caption of the picture has a word of `SIDED`, so that the picture must not be mirrored.

    The words are those of the written caption, because a tokeniser may keep capitals and punctuation, or cut words up.
    """
    captions = (vocabulary.text(row).lower() for row in picture.tokens.tolist())
    return any(not SIDED.isdisjoint(re.findall(r"[\w-]+", caption)) for caption in captions)


def grid_names_for_training(
    pictures: Sequence[CaptionedPicture], views: ViewsConfig, vocabulary: Vocabulary, grids: GridReader
) -> dict[str, Sequence[str]]:
    """Return digest -> names of the grids that training may use for the picture: the whole picture's, and its views'.

    Views without a grid in `grids` are left out, and so are mirrored views of a picture whose captions have a word for
    left or right.
    """
    names_by_digest: dict[str, Sequence[str]] = {}
    for picture in pictures:
        names = [name for name in names_of(picture.digest, views) if name in grids]
        if mentions_side(picture, vocabulary):
            names = [name for name in names if not is_mirrored(name, views)]
        names_by_digest[picture.digest] = [picture.digest, *names]
    return names_by_digest
