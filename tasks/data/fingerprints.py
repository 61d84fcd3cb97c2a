"""Fingerprints of pictures for finding near-duplicates: small copies, cached by the digests of the files.

A fingerprint is uint8 (F, 1152), with F of 1 or 2 frames: the picture without its plain border, and the whole picture
unless that border is on all four sides. A frame is 32 x 32 of luma, then 8 x 8 of Cb and 8 x 8 of Cr, all squashed to
squares. A plain picture, which has nothing to compare, has F = 0.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from models.out_of_memory import is_out_of_memory
from models.picture_formats import FORMATS, MAX_PIXELS
from tasks.common.progress import Bar
from tasks.common.sqlite_cache import SqliteCache
from tasks.common.threads import map_in_threads

SIDE, CHROMA_SIDE = 32, 8
LENGTH = SIDE * SIDE + 2 * CHROMA_SIDE * CHROMA_SIDE  # bytes of a frame
VERSION = 1  # of fingerprints. When you increase it, also increase the version of stage `ingest`, which uses them.
DATABASE = "fingerprints.sqlite"  # beside the workspace's database of digests
_DECODED = 64  # least pixels of a side when decoding a JPEG, which is cheap at a fraction of its size
_PLAIN = 4.0  # standard deviation of luma (of 255) below which a frame has nothing to compare
_LINE_SPREAD, _LINE_DRIFT = 10.0, 12.0  # tolerances within a line of a border, and between lines, of 255, for JPEG
_WIDEST = 4  # a border is at most a quarter of a side, so that a plain part of a photograph does not count as one
_KEPT_AT_ONCE = 2048  # fingerprints, so that a check that is ended early loses only a few

Frames = npt.NDArray[np.uint8]
_NONE: Frames = np.zeros((0, LENGTH), np.uint8)


class Fingerprints:
    """Fingerprints by content digest, cached in an sqlite file of the workspace. Losing that file costs only time."""

    def __init__(self, database: Path) -> None:
        """database: path of the sqlite file; it is created when the first fingerprint is stored."""
        table = "fingerprint (digest text primary key, version, frames blob, checksum)"
        self._cache = SqliteCache(database, table)

    def of(self, pictures: Mapping[str, Path]) -> dict[str, Frames]:
        """Return the fingerprint of each picture by its digest; only missing ones are computed.

        pictures: digest of a file's content -> the file. A picture that cannot be decoded has a fingerprint without
        frames; a file that cannot be read is left out, and tried again the next time.
        """
        fingerprints = self._kept(list(pictures))
        new = [(digest, path) for digest, path in pictures.items() if digest not in fingerprints]
        with Bar(len(new), "fingerprints of pictures", "pictures", says_end=False) as bar:
            computed = zip(new, map_in_threads(_fingerprint_of_file, [path for _, path in new]), strict=True)
            while batch := list(islice(computed, _KEPT_AT_ONCE)):
                fresh = {digest: frames for (digest, _), frames in batch if frames is not None}
                self._keep(fresh)
                fingerprints |= fresh
                bar.advance(len(batch))
        return fingerprints

    def _kept(self, digests: list[str]) -> dict[str, Frames]:
        """Return the cached fingerprints, by digest."""
        rows = self._cache.read(
            "select digest, frames, checksum from fingerprint where digest = ? and version = ?",
            ((digest, VERSION) for digest in digests),
        )
        return {
            digest: np.frombuffer(content, np.uint8).reshape(-1, LENGTH)
            for digest, content, checksum in rows
            # SQLite detects damage to the structure of its pages, but not to their content.
            if isinstance(content, bytes) and len(content) % LENGTH == 0 and zlib.crc32(content) == checksum
        }

    def _keep(self, fingerprints: Mapping[str, Frames]) -> None:
        contents = {digest: frames.tobytes() for digest, frames in fingerprints.items()}
        rows = [(digest, VERSION, content, zlib.crc32(content)) for digest, content in contents.items()]
        self._cache.write("insert or replace into fingerprint values (?, ?, ?, ?)", rows)


def _fingerprint_of_file(path: Path) -> Frames | None:
    """Return the fingerprint of a picture file; None if the file cannot be read now."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return fingerprint(data)


def fingerprint(data: bytes) -> Frames:
    """Return the fingerprint of an encoded picture, upright by EXIF; without frames if it cannot be decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return _NONE
            image.draft("RGB", (_DECODED, _DECODED))
            picture = ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, EOFError, ...
        if is_out_of_memory(error):
            raise
        return _NONE
    whole, within = (0, 0, picture.width, picture.height), _within_border(np.asarray(picture))
    # A plain margin on all sides is a border, and whole pictures with borders look alike. On only some sides it may be
    # a sky, which is plain enough in one copy but not in another.
    around = all(edge != outer for edge, outer in zip(within, whole, strict=True))
    planes = picture.convert("YCbCr").split()
    frames = [_frame(planes, box) for box in dict.fromkeys([within] if around else [whole, within])]
    usable = [frame for frame in frames if frame[: SIDE * SIDE].std() >= _PLAIN]
    return np.stack(usable) if usable else _NONE


def _frame(planes: tuple[Image.Image, ...], box: tuple[int, int, int, int]) -> Frames:
    """Return a part of a picture as a frame. planes: Y, Cb and Cr. box: left, top, right, bottom, in pixels."""
    sides = (SIDE, CHROMA_SIDE, CHROMA_SIDE)
    small = [
        plane.resize(
            (side, side),
            Image.Resampling.BOX if min(box[2] - box[0], box[3] - box[1]) >= side else Image.Resampling.BILINEAR,
            box=box,
        )
        for plane, side in zip(planes, sides, strict=True)
    ]
    return np.concatenate([np.asarray(plane).ravel() for plane in small])


def _within_border(pixels: npt.NDArray[np.uint8]) -> tuple[int, int, int, int]:
    """Return the box (left, top, right, bottom) of a picture without its plain border. pixels: uint8 (H, W, 3)."""
    height, width = pixels.shape[:2]
    top, bottom = _plain_lines(pixels), height - _plain_lines(pixels[::-1])
    columns = pixels[top:bottom].transpose(1, 0, 2)
    return _plain_lines(columns), top, width - _plain_lines(columns[::-1]), bottom


def _plain_lines(lines: npt.NDArray[np.uint8]) -> int:
    """Return the number of leading lines that all have the same single colour. lines: uint8 (L, P, 3)."""
    colour, widest = lines[0].mean(axis=0), len(lines) // _WIDEST
    for number, line in enumerate(lines[:widest]):
        if line.std(axis=0).max() > _LINE_SPREAD or np.abs(line.mean(axis=0) - colour).max() > _LINE_DRIFT:
            return number
    return widest
