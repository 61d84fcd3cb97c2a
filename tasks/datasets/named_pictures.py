"""The pictures that names in a table refer to, in the usual folder of its pictures or anywhere."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tasks.datasets.base import folder_split
from tasks.datasets.picture_finder import PictureFinder
from tasks.datasets.table import only, usual_images

_FEW = 200  # names that are examined
_SOME = 0.2
_SLASH = re.compile(r"[/\\]")


class Matches(NamedTuple):
    """The pictures that names refer to.

    base: the folder that `found` is relative to. found: name -> picture. unclear: names with several possible pictures.
    total: how many names there are. is_converted: whether the pictures have other suffixes than the names.
    """

    base: Path
    found: dict[str, str]
    unclear: dict[str, list[str]]
    total: int
    is_converted: bool = False

    @property
    def share(self) -> float:
        """Return the share of names that refer to a picture."""
        return len(self.found) / max(self.total, 1)

    @property
    def images(self) -> Path:
        """Return the folder that contains all pictures."""
        parents = {picture.rpartition("/")[0] for picture in self.found.values()}
        return self.base if "" in parents or not parents else self.base / os.path.commonpath(parents)


def match_names(names: Collection[str], file: Path, finder: PictureFinder, any_ending: bool = False) -> Matches | None:
    """Return the pictures that names refer to, in the usual folder of a file's pictures or anywhere; None if none.

    any_ending: whether the pictures may have other suffixes; if no picture is found otherwise, they may in any case.
    """
    best: Matches | None = None
    usual = usual_images(file.parent)
    named = [file.parent / file.stem, usual / file.stem]  # folders with the name of the file
    split = folder_split([file.stem])
    if split is not None:
        named += [path for path in usual.iterdir() if path.is_dir() and folder_split([path.name]) == split]
    for base in dict.fromkeys((*named, usual, finder.folder)):
        if not base.is_relative_to(finder.folder) or (base in named and not base.is_dir()):
            continue
        meant = finder.below(base).find(names, any_ending)
        found = {name: pictures[0] for name, pictures in meant.items() if len(pictures) == 1}
        unclear = {name: pictures for name, pictures in meant.items() if len(pictures) > 1}
        if (found or unclear) and (best is None or len(found) > len(best.found)):
            best = Matches(base, found, unclear, len(names), any_ending)
    if best is None and any(name.startswith("/") and Path(name).is_file() for name in itertools.islice(names, _FEW)):
        folder = Path(os.path.commonpath([Path(name).parent for name in names if name.startswith("/")]))
        outside = PictureFinder.of(folder).find(names)
        found = {name: pictures[0] for name, pictures in outside.items() if len(pictures) == 1}
        return Matches(folder, found, {}, len(names)) if found else None
    return match_names(names, file, finder, any_ending=True) if best is None and not any_ending else best


def other_folders(records: list[dict[str, Any]], image: str, columns: list[str], matches: Matches) -> Iterator[str]:
    """Yield a note on each column of picture folders if pictures were found by name in other folders."""
    named = ((str(only(record.get(image))), record) for record in records)
    files = [(name, record) for name, record in named if name in matches.found and not _SLASH.search(name)]
    for column in columns:
        rows = [(name, str(record.get(column)).strip("/")) for name, record in files]
        others = [(name, folder) for name, folder in rows if f"/{folder}/" not in f"/{matches.found[name]}"]
        if others and len(rows) - len(others) > _SOME * len(rows):
            name, folder = others[0]
            yield (
                f"its column {column} says the folders of pictures and is not used: in {len(others):,} of "
                f"{len(rows):,} rows the picture is in another, such as {matches.found[name]} for {folder} and {name}: "
                f"write both into column {image}: {folder}/{name}"
            )


def doubts(matches: Matches, file: Path, finder: PictureFinder) -> Iterator[str]:
    """Yield a note on pictures whose names do not include their folder."""
    inner = (
        finder.below(matches.base) if matches.base.is_relative_to(finder.folder) else PictureFinder(matches.base, ())
    )
    messages = [doubt for name, picture in matches.found.items() if (doubt := inner.doubt(name, picture))]
    if messages:
        yield (
            f"{file}: {len(messages):,} of {len(matches.found):,} names do not say the folder of their picture: "
            f"{messages[0]}: for another, set data.images or correct the names"
        )
