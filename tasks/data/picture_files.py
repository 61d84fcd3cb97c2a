"""Checks of picture files without a backbone: the headers of all, and the pixels of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from models.memory import is_out_of_memory
from models.picture_formats import FORMATS, MAX_PIXELS

_SMALLEST = 16  # pixels of a side, below which there is nothing to describe
_THREADS, _CHUNK = 8, 64


def unreadable(paths: Sequence[Path], sample: int) -> dict[Path, str]:
    """Return why each unreadable picture is, by path: the headers of all are read, and the pixels of every nth.

    sample: how many have their pixels read. What is not readable here, extraction cannot read either.
    """
    step = max(1, len(paths) // max(1, sample))
    numbered = [(path, number % step == 0) for number, path in enumerate(paths)]
    chunks = [numbered[start : start + _CHUNK] for start in range(0, len(numbered), _CHUNK)]
    with ThreadPoolExecutor(_THREADS) as pool:  # in chunks: a header takes less time than handing it to a thread
        found = [found for chunk in pool.map(_reasons, chunks) for found in chunk]
    return {path: reason for path, reason in found if reason}


def _reasons(pictures: Sequence[tuple[Path, bool]]) -> list[tuple[Path, str]]:
    """Return each path with why it cannot be read. pictures: paths, and whether to read the pixels."""
    return [(path, _reason(path, whole)) for path, whole in pictures]


def _reason(path: Path, whole: bool) -> str:
    """Return why a picture cannot be read, as part of a sentence; empty where it can. whole: read its pixels too."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                return f"has {width} x {height} pixels, over the limit of {MAX_PIXELS:,}: make it smaller"
            if min(width, height) < _SMALLEST:
                return f"has {width} x {height} pixels: too small to describe: remove it"
            if whole:
                image.load()
            return ""
    except UnidentifiedImageError:
        return f"is no picture of a known format ({', '.join(FORMATS)}): convert it, or remove it"
    except PermissionError as error:
        return f"cannot be read: {error.strerror}: change its permissions"
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        if is_out_of_memory(error):
            raise
        return f"cannot be decoded: {error or type(error).__name__}: replace it, or remove it"
