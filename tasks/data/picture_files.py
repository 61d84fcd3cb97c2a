"""Checks of picture files without a backbone: the headers of all, and the pixels of a sample."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from models.encoded_pictures import decode
from models.out_of_memory import is_out_of_memory
from models.picture_formats import FORMATS, MAX_PIXELS, not_a_picture
from tasks.common.threads import map_in_threads

_SMALLEST = 16  # pixels of a side, below which there is nothing to describe
_ONE_COLOUR = 4.0  # standard deviation of all values, of 255, below which a picture shows nothing

Kind = Literal["header", "pixels", "one colour"]


class PictureFaults(NamedTuple):
    """Faults of pictures, by path.

    headers: pictures that are unreadable by their header, among all. pixels: pictures whose pixels cannot be decoded,
    and one_colour: pictures of nearly one colour, both among a sample.
    """

    headers: dict[Path, str]
    pixels: dict[Path, str]
    one_colour: dict[Path, str]


def picture_faults(paths: Sequence[Path], sample: int) -> PictureFaults:
    """Return the faults of pictures: the headers of all are read, and the pixels of a random sample.

    sample: the size of the sample; all if there are fewer pictures. A picture that is unreadable here is also
    unreadable for extraction.
    """
    drawn = set(random.Random(0).sample(range(len(paths)), min(sample, len(paths))))
    numbered = [(path, number in drawn) for number, path in enumerate(paths)]
    faults: dict[Kind, dict[Path, str]] = {"header": {}, "pixels": {}, "one colour": {}}
    for path, fault in zip(paths, map_in_threads(_fault, numbered), strict=True):
        if fault is not None:
            faults[fault[0]][path] = fault[1]
    return PictureFaults(*faults.values())


def _fault(picture: tuple[Path, bool]) -> tuple[Kind, str] | None:
    """Return the kind of fault of a picture, and the fault as part of a sentence; None if there is no fault.

    picture: its path, and whether to read its pixels too.
    """
    path, whole = picture
    kind: Kind = "header"
    try:
        reason = _fault_of_header(path)
        if reason is None and whole:
            kind = "pixels"
            reason = _colour_alone(decode(path.read_bytes()))
            kind = "one colour"
    except UnidentifiedImageError:
        with path.open("rb") as file:
            reason = f"{not_a_picture(file.read(200))}: convert it, or remove it"
    except PermissionError as error:
        reason = f"cannot be read: {error.strerror}: change its permissions"
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        if is_out_of_memory(error):
            raise
        text = str(error) or type(error).__name__
        reason = f"cannot be decoded: {text.removeprefix('cannot be decoded: ')}: replace it, or remove it"
    return None if reason is None else (kind, reason)


def _fault_of_header(path: Path) -> str | None:
    """Return the fault of a picture's header; None if there is no fault. Raises what Pillow raises."""
    with Image.open(path, formats=FORMATS) as image:
        width, height = image.size
    if width * height > MAX_PIXELS:
        return f"has {width} x {height} pixels, over the limit of {MAX_PIXELS:,}: make it smaller"
    if min(width, height) < _SMALLEST:
        return f"has {width} x {height} pixels: too small to describe: remove it"
    return None


def _colour_alone(pixels: npt.NDArray[np.uint8]) -> str | None:
    """Return a message if a picture (H, W, 3) is nearly of one colour; None otherwise."""
    some = pixels[:: max(1, len(pixels) // 128), :: max(1, pixels.shape[1] // 128)].reshape(-1, 3).astype(np.float32)
    colour = some.mean(axis=0)
    if float(np.sqrt(np.mean((some - colour) ** 2))) >= _ONE_COLOUR:
        return None
    return f"is nearly one colour, RGB ({', '.join(f'{value:.0f}' for value in colour)}): look at it"
