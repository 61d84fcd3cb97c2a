"""A survey of a data set before any stage runs: its rows, their faults, and their splits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import regex

from models.vocabulary import SPACELESS
from tasks.common.errors import AttendError
from tasks.data.fingerprints import DATABASE as FINGERPRINTS
from tasks.data.manifest import valid_rows
from tasks.data.near_duplicates import near_duplicates
from tasks.data.splits import divide, divides, joined
from tasks.datasets.base import SPLITS, DatasetOptions, PictureFile, Row, paths_of, pictures_of
from tasks.datasets.faults import Faults
from tasks.pipeline.file_digests import Digests

_WORD = regex.compile(r"[\w\p{M}]+(?:['\u2019-][\w\p{M}]+)*")
_MOST_UNPACKED = 1000  # rows read of a data set whose pictures are inside other files
_MOST_BYTES = 4 << 30  # bytes of pictures to hash, which takes seconds
_MOST_COMPARED = 120_000  # pictures searched for near-duplicates, which takes about five minutes

Compare = Literal["to divide", "few", "all"]  # when: if the splits depend on it, also if there are not many, or always


@dataclass(frozen=True)
class Survey:
    """The result of a survey of a data set.

    rows: the valid ones. paths: of their pictures, by name. pictures: all files, captioned or not; those unpacked by
    an adapter are in a temporary folder that no longer exists. splits: of each row, or None if the pictures were too
    large to read for it. note: how the rows were divided. faults: of rows that are not valid. left_out: notes on rows
    whose picture another source has in another split. whole: whether all rows were read. digests: of the rows'
    pictures, if they were read. alike: groups of digests of near-duplicates; None if they were not compared.
    """

    rows: list[Row]
    paths: dict[str, Path]
    pictures: list[PictureFile]
    splits: list[str] | None
    note: str
    faults: list[str]
    left_out: list[str]
    whole: bool
    digests: dict[str, str]
    alike: list[list[str]] | None

    @property
    def sizes(self) -> dict[str, int]:
        """Return the number of distinct pictures of each split, in the order train, dev, test."""
        of_rows = zip(self.rows, self.splits or [], strict=False)
        counts = Counter(
            split for split, _ in {(split, self.digests.get(row.name, row.name)) for row, split in of_rows}
        )
        return {split: counts[split] for split in SPLITS if counts[split]}

    @property
    def distinct(self) -> int:
        """Return the number of pictures that differ in content, or by name if their contents were not read."""
        return len({self.digests.get(row.name, row.name) for row in self.rows})

    @property
    def captions(self) -> int:
        return sum(len(row.captions) for row in self.rows)

    def divided(self, data: DatasetOptions) -> Survey:
        """Return the survey with rows without a given split divided by the shares in `data`."""
        alike = self.alike or [] if data.near_duplicates == "together" else []
        divided = divide([(row.split, self.digests.get(row.name, "")) for row in self.rows], data, alike)
        return replace(self, splits=divided.splits, note=divided.note)

    def of_split(self, split: str) -> list[Row]:
        """Return the rows of a split; all rows if they are not divided."""
        if self.splits is None:
            return self.rows
        return [row for row, own in zip(self.rows, self.splits, strict=True) if own == split]


def uncaptioned(survey: Survey, data: DatasetOptions) -> list[str]:
    """Return the names of the picture files that no row of any source names; sources may share a folder."""
    parts = data.parts()
    names = [item.name for item in survey.pictures if parts[data.prefix_of(item.name)].expects_captions]
    if data.unpacks:  # into separate folders
        return [name for name in names if name not in survey.paths]
    captioned = {path.absolute() for path in survey.paths.values()}
    paths = paths_of(data, names, Path())
    left = {path.absolute(): name for name, path in paths.items() if path.absolute() not in captioned}
    return sorted(left.values())


def approximate_words(text: str) -> list[str]:
    """Return the words of a caption approximately as the tokenisers do, without loading NLTK, which takes seconds.

    In scripts without spaces between words, each character is a word.
    """
    words: list[str] = _WORD.findall(text.lower())
    if SPACELESS.search(text):
        return [part for word in words for part in (word if SPACELESS.search(word) else [word])]
    return words


def survey(data: DatasetOptions, generated: Path, digests: Path, compare: Compare = "to divide") -> Survey:
    """Return the content of a data set; its pictures are decoded only to find near-duplicates.

    generated: an empty folder for pictures that the adapter unpacks or generates. digests: the database that caches
    digests, of the workspace or in another folder; fingerprints are cached in the same folder. compare: when to search
    for near-duplicates; `all` searches any number of pictures. Raises AttendError if no row can be read.
    """
    faults = Faults(gather=True)
    rows = list(islice(data.rows(generated, faults), _MOST_UNPACKED + 1 if data.unpacks else None))
    whole = not data.unpacks or len(rows) <= _MOST_UNPACKED
    pictures = pictures_of(data, generated)
    rows = valid_rows(rows, data, generated, pictures, faults)
    paths = paths_of(data, [row.name for row in rows], generated)
    size = sum(picture.size for picture in pictures if picture.name in paths)
    of_rows = None if size > _MOST_BYTES and compare != "all" else _digests(paths, digests)
    alike = None
    is_divided = divides((row.split for row in rows), data)
    is_needed = data.near_duplicates == "together" and is_divided
    is_wanted = compare == "all" or (compare == "few" and len(rows) <= _MOST_COMPARED)
    if of_rows is not None and not data.has_grids and (is_needed or is_wanted):
        alike = near_duplicates(
            {digest: paths[name] for name, digest in of_rows.items()}, digests.with_name(FINGERPRINTS)
        )
    notes: list[str] = []
    if of_rows is not None:
        rows, notes = joined(rows, of_rows, data, faults, alike or [] if data.near_duplicates == "together" else [])
    result = Survey(rows, paths, pictures, None, "", faults.found, notes, whole, of_rows or {}, alike)
    return result if of_rows is None and is_divided else result.divided(data)


def _digests(paths: dict[str, Path], database: Path) -> dict[str, str]:
    """Return the digest of each picture by name. paths: of the pictures, by name."""
    try:
        digests = Digests(database).of(paths.values())
    except AttendError:
        raise
    except OSError as error:
        raise AttendError(
            f"{error.filename}: {error.strerror}: change its permissions, or remove its captions"
        ) from None
    return {name: digests[path] for name, path in paths.items()}
