"""Checks of picture files without a backbone: the headers of all, and the pixels of a sample."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from models.memory import is_out_of_memory
from models.picture_formats import FORMATS, MAX_PIXELS
from tasks.common.threads import map_in_threads

_SMALLEST = 16  # pixels of a side, below which there is nothing to describe


class Unreadable(NamedTuple):
    """Why each unreadable picture is, by path: by its header, of all pictures, and by its pixels, of a sample."""

    headers: dict[Path, str]
    pixels: dict[Path, str]


def unreadable(paths: Sequence[Path], sample: int) -> Unreadable:
    """Return why pictures are unreadable: the headers of all are read, and the pixels of some, drawn at random.

    sample: how many have their pixels read; all where there are fewer. What is not readable here, extraction cannot
    read either.
    """
    drawn = set(random.Random(0).sample(range(len(paths)), min(sample, len(paths))))
    numbered = [(path, number in drawn) for number, path in enumerate(paths)]
    found = Unreadable({}, {})
    for path, (reason, is_header) in zip(paths, map_in_threads(_reason, numbered), strict=True):
        if reason:
            (found.headers if is_header else found.pixels)[path] = reason
    return found


def _reason(picture: tuple[Path, bool]) -> tuple[str, bool]:
    """Return why a picture cannot be read, as part of a sentence, and whether its header says so; empty where it can.

    picture: its path, and whether to read its pixels too.
    """
    path, whole = picture
    is_header = True
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                return f"has {width} x {height} pixels, over the limit of {MAX_PIXELS:,}: make it smaller", True
            if min(width, height) < _SMALLEST:
                return f"has {width} x {height} pixels: too small to describe: remove it", True
            is_header = False
            if whole:
                image.load()
            return "", False
    except UnidentifiedImageError:
        return f"is no picture of a known format ({', '.join(FORMATS)}): convert it, or remove it", is_header
    except PermissionError as error:
        return f"cannot be read: {error.strerror}: change its permissions", is_header
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        if is_out_of_memory(error):
            raise
        return f"cannot be decoded: {error or type(error).__name__}: replace it, or remove it", is_header
