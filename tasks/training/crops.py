"""Random crops of photographs for training, and which photographs must not be mirrored."""

from __future__ import annotations

import random
import re

from models.encoded_pictures import Pixels
from models.vocabulary import Vocabulary
from tasks.data.caption_files import CaptionedPicture

# A caption with one of these words is wrong for the mirrored picture.
SIDED = frozenset({"left", "right", "leftmost", "rightmost", "left-hand", "right-hand", "lefthand", "righthand"})


def random_crop(pixels: Pixels, generator: random.Random, minimum: float) -> Pixels:
    """Return a random crop of a photograph (H, W, 3). minimum: the least share of each side that is kept."""
    height, width = (max(round(side * generator.uniform(minimum, 1.0)), 1) for side in pixels.shape[:2])
    top, left = generator.randint(0, pixels.shape[0] - height), generator.randint(0, pixels.shape[1] - width)
    return pixels[top : top + height, left : left + width]


def mentions_side(picture: CaptionedPicture, vocabulary: Vocabulary) -> bool:
    """Return whether a caption of the picture has a word in `SIDED`, so that the picture must not be mirrored.

    The words are taken from the caption's text, because a tokeniser may keep capitals and punctuation, or split words.
    """
    captions = (vocabulary.text(row).lower() for row in picture.tokens.tolist())
    return any(not SIDED.isdisjoint(re.findall(r"[\w-]+", caption)) for caption in captions)
