"""Find the file of a picture by its name in a table or a document.

Names were often written on another machine: with other leading folders, Windows' backslashes, `%20` for a space, other
letter case, or no suffix. All adapters that read names find their pictures here.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import takewhile
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from tasks.common.errors import AttendError
from tasks.datasets.base import OTHER_PICTURES, PICTURE_SUFFIXES, find_pictures, named_splits

_ADDRESS = re.compile("(https?|s3|gs)://[^?#]*", re.IGNORECASE)
_ADDRESSES = re.compile(r"[\s,;|](https?|s3|gs)://", re.IGNORECASE)  # in a cell that has several
_ITS_ADDRESS = re.compile(r" \(https?://[^()]*\)$", re.IGNORECASE)  # after a name, as in Airtable
# Paths of small copies: folders with such names, or file names with a size at the end, as in WordPress.
_COPIES = re.compile(
    r"(thumb|preview|vorschau|vignette|miniat|resized|lowres)[^/]*/|-\d{2,4}x\d{2,4}\.\w+$", re.IGNORECASE
)
_NUMBER = re.compile(r"\d{1,15}(\.0)?")  # a picture's number, which a table may have written as a float
_LAST_NUMBER = re.compile(r"^(.*?)(\d{1,15})$")
_CAPTION_NUMBER = re.compile(r"#\d{1,3}$")  # after a name, as in Flickr8k
_UPLOADED = re.compile(r"(?<![^/])[0-9a-f]{8}-(?=[^/]+$)")  # Label Studio puts it before the names of uploaded files
_HEX_LETTER = re.compile("[a-f]")  # in that prefix: without it, the prefix may be a date
_SHOWN = 3  # files listed for an ambiguous name


class PictureFinder:
    """The pictures below a folder, by the end of their path.

    A name means the file whose path ends with it, including folders. Letter case and the encoding of accents do not
    matter, and a name without a suffix matches any picture's suffix. Leading folders common to all names may be missing
    in the path; others may not: `b/1.jpg` is never `a/1.jpg`. For a web address, all folders may be missing, unless
    another address ends in the same name.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        """Initialize. names: the pictures' paths relative to `folder`, with `/`."""
        self.folder = folder
        self._below: dict[Path, PictureFinder] = {}
        self.names = frozenset(names)
        self._by_end: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        self._by_stem: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for name in sorted(self.names):
            parts = tuple(_folded(name).split("/"))
            stem = PurePosixPath(parts[-1]).stem
            self._by_end.setdefault(parts[-1], []).append((name, parts))
            self._by_stem.setdefault(stem, []).append((name, (*parts[:-1], stem)))

    @classmethod
    def of(cls, folder: Path, suffixes: tuple[str, ...] = PICTURE_SUFFIXES) -> PictureFinder:
        """Return the finder of all pictures below a folder."""
        return cls(folder, (picture.name for picture in find_pictures(folder, suffixes)))

    def below(self, folder: Path) -> PictureFinder:
        """Return the finder of the pictures in a folder below this one."""
        if folder == self.folder:
            return self
        if folder not in self._below:
            prefix = f"{folder.relative_to(self.folder).as_posix()}/"
            names = (name.removeprefix(prefix) for name in self.names if name.startswith(prefix))
            self._below[folder] = PictureFinder(folder, names)
        return self._below[folder]

    def find(self, names: Collection[str], any_ending: bool = False) -> dict[str, list[str]]:
        """Return, for each of the names of a data set, the pictures that it may mean: one, none, or several.

        any_ending: whether, if no name matches, names match pictures of other suffixes: `1.jpeg` then matches `1.jpg`.
        """
        parts = {name: _parts(name) for name in names}
        if any("%" in name for name in names) and not any("%" in name for name in self.names):
            parts = {name: tuple(_folded(unquote(part)) for part in own) for name, own in parts.items()}
        common = _common(folders[:-1] for folders in parts.values())
        ends = Counter(folders[-1] for name, folders in parts.items() if is_address(name))
        fewest = {
            name: 1 if ends[folders[-1]] == 1 else max(len(folders) - common, 1) for name, folders in parts.items()
        }
        uploaded = any(_HEX_LETTER.search(found[0]) for found in map(_UPLOADED.search, names) if found)
        meant = {
            name: [name] if name in self.names else self._meant(name, parts[name], fewest[name], uploaded)
            for name in names
        }
        exact = {name for name in names if meant[name] == [name]}
        for name in meant.keys() - exact:  # the picture belongs to the name in the same letter case
            if len(meant[name]) == 1 and meant[name][0] in exact and name.lower() == meant[name][0].lower():
                meant[name] = []
        if any_ending and not any(meant.values()):
            for name, name_parts in parts.items():
                if name_parts[-1].endswith(PICTURE_SUFFIXES):
                    stem = PurePosixPath(name_parts[-1]).stem
                    meant[name] = self._meant(name, (*name_parts[:-1], stem), fewest[name], uploaded)
        if not any(meant.values()) and all(_NUMBER.fullmatch(name.strip()) for name in names):
            meant = self._by_number(names)
        return _in_one_place(_without_copies(meant), parts) | {name: [name] for name in exact}

    def named(self, name: str) -> list[str]:
        """Return the pictures of this name in any folder. name: without folders, with or without suffix."""
        last = _folded(name)
        stem = PurePosixPath(last).stem if last.endswith(OTHER_PICTURES) else last  # there may be a JPEG of this name
        return [picture for picture, _ in self._by_end.get(last) or self._by_stem.get(stem, [])]

    def doubt(self, name: str, picture: str) -> str | None:
        """Return why a name may mean another picture, if it does not include the picture's folder; None if clear."""
        folders, picture_folders = _parts(name)[:-1], _parts(picture)[:-1]
        if (
            not picture_folders
            or picture_folders[-1] in (*folders[-1:], *_parts(unquote(name))[-2:-1])
            or is_address(name)
        ):
            return None
        same_stem = [] if folders else self.named(PurePosixPath(picture).stem)
        elsewhere = [other for other in same_stem if _parts(other)[:-1] != picture_folders and not is_copy(other)]
        addition = f", not {elsewhere[0]}" if elsewhere else ""
        return f"{name} is read from {picture}{addition}" if folders or elsewhere else None

    def _by_number(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the pictures that numbers mean: `COCO_val2014_000000000042.jpg` is 42.

        They mean none if names in one folder begin differently, such as `market-1.jpg` and `garden-2.jpg`.
        """
        numbers = {name: int(float(name)) for name in names}
        pictures: dict[int, list[str]] = {number: [] for number in numbers.values()}
        beginnings: dict[str, set[str]] = {}
        for picture in sorted(self.names):
            folder, _, file = picture.rpartition("/")
            number = _LAST_NUMBER.match(PurePosixPath(file).stem)
            if number is not None and int(number[2]) in pictures:
                pictures[int(number[2])].append(picture)
                beginnings.setdefault(folder, set()).add(number[1])
        is_mixed = any(len(own) > 1 for own in beginnings.values())
        return {name: [] if is_mixed else pictures[number] for name, number in numbers.items()}

    def _meant(self, name: str, parts: tuple[str, ...], fewest: int, uploaded: bool) -> list[str]:
        """Return the pictures that a name may mean.

        fewest: how many parts of the paths must be equal. uploaded: whether names may begin as those of uploaded files.
        """
        if parts[-1].endswith(OTHER_PICTURES):  # there may be a JPEG of the same name
            parts = (*parts[:-1], PurePosixPath(parts[-1]).stem)
        is_page = is_address(name) and (not parts[-1].endswith(PICTURE_SUFFIXES) or _ADDRESSES.search(name) is not None)
        candidates = [] if is_page else self._candidates(parts)
        upload = _UPLOADED.sub("", name) if uploaded else name
        for other in (_CAPTION_NUMBER.sub("", name), upload, unquote(upload)):
            if not candidates and other != name:
                parts = _parts(other)
                candidates = self._candidates(parts)
        best: list[str] = []
        best_rank = (fewest, False, False)
        splits = named_splits(parts[:-1])
        file = _without_query(name).rpartition("/")[2]
        for candidate, own in candidates:
            same = _common_end(parts, own)
            own_splits = named_splits(own[:-1]) if splits else set()
            other_split = bool(own_splits) and splits.isdisjoint(own_splits)
            rank = (same, same == len(own), candidate.endswith(file))
            if other_split or rank < best_rank:
                continue
            best = [candidate] if rank > best_rank else [*best, candidate]
            best_rank = rank
        return best

    def _candidates(self, parts: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
        last = parts[-1]
        candidates = self._by_end.get(last, [])
        return candidates if candidates or last.endswith(PICTURE_SUFFIXES) else self._by_stem.get(last, [])

    def one(self, name: str, meant: list[str], where: str) -> str:
        """Return the picture that a name means; AttendError if there is none or several. meant: as `find` returns."""
        if len(meant) == 1:
            return meant[0]
        if meant:
            shown = ", ".join(meant[:_SHOWN]) + (", ..." if len(meant) > _SHOWN else "")
            raise AttendError(
                f"{where}: {name} may be any of {len(meant)} pictures in {self.folder}: {shown}: name it with its "
                "folder, or set data.images to the folder of one of them"
            )
        if _ADDRESSES.search(name):
            raise AttendError(f"{where}: {name}: are several addresses: write a row for each picture")
        if is_address(name):
            raise AttendError(
                f"{where}: {name} is an address, and no picture in {self.folder} has its name: download the pictures"
            )
        raise AttendError(
            f"{where}: {name} is captioned, but there is no such picture in {self.folder}: {self._advice(name)}"
        )

    def _advice(self, name: str) -> str:
        """Return what to do about a name without a picture."""
        if not self.names:
            return "no picture is in this folder: set data.images to the folder of the pictures"
        last = _parts(name)[-1]
        near = self.named(last) or self.named(PurePosixPath(last).stem)
        if near:
            return f"{near[0]} is there: correct the name"
        return "add it or remove its captions"


def _without_copies(meant: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return `meant` without small copies, unless there is nothing else."""
    originals = {name: [own for own in pictures if not is_copy(own)] for name, pictures in meant.items()}
    return originals if any(originals.values()) else meant


def is_copy(picture: str) -> bool:
    """Return whether a picture is a small copy of another, by its path."""
    return _COPIES.search(picture) is not None


def _in_one_place(meant: dict[str, list[str]], parts: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Return `meant`, where names with folders keep only pictures below the base folder that most of them share."""
    below = {
        name: _base(parts[name][:-1], _parts(pictures[0])[:-1])
        for name, pictures in meant.items()
        if len(pictures) == 1 and len(parts[name]) > 1
    }
    most = Counter(below.values()).most_common(1)
    return {name: [] if name in below and below[name] != most[0][0] else own for name, own in meant.items()}


def _base(folders: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the leading folders of a picture that are missing in a name. folders: the name's. own: the picture's."""
    return own[: len(own) - _common_end(folders, own)]


def _folded(name: str) -> str:
    """Return a name normalised for letter case and the encoding of accents."""
    return name.casefold() if name.isascii() else unicodedata.normalize("NFC", name).casefold()


def _parts(name: str) -> tuple[str, ...]:
    """Return the parts of a name from any system, folded."""
    whole = _folded(_without_query(name.strip())).replace("\\", "/")
    parts = tuple(part for part in whole.split("/") if part not in ("", "."))
    return parts or ("",)


def _without_query(name: str) -> str:
    """Return a web address without its query and fragment; any other name without an address that follows it."""
    address = _ADDRESS.match(name)
    return _ITS_ADDRESS.sub("", name) if address is None else address[0]


def is_address(name: str) -> bool:
    """Return whether a picture's name is an address on the web or in object storage."""
    return _ADDRESS.match(name) is not None


def _common(folders: Iterable[tuple[str, ...]]) -> int:
    """Return how many folders all paths begin with."""
    levels = zip(*set(folders), strict=False)
    return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))


def _common_end(parts: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many parts two paths have in common at their end."""
    number = 0
    while number < min(len(parts), len(other)) and parts[-1 - number] == other[-1 - number]:
        number += 1
    return number
