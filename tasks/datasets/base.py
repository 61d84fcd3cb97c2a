"""The base class of the adapters, which turn a data set's files into rows of picture, captions and split.

An adapter is registered by its name in `Format`, in this folder's `formats.py`.
"""

from __future__ import annotations

import codecs
import itertools
import os
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from tasks.common.errors import AttendError
from tasks.common.files import check_name, check_text
from tasks.common.section import NotInKey, Section
from tasks.datasets.faults import REFUSE, Faults

LONGEST_CAPTION = 10_000  # characters: the time to learn byte pairs grows with the square of a word's length
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Pictures that are not read.
OTHER_PICTURES = (".heic", ".heif", ".svg", ".avif", ".raw", ".cr2", ".nef", ".dng", ".psd", ".jxl")
WORKSPACE_FILE = "digests.sqlite"  # a folder with this file is a workspace
SPLITS = ("train", "dev", "test")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trainset", "trn", "restval"), "train"),
    **dict.fromkeys(("dev", "val", "valid", "validation", "validate", "valset", "devset"), "dev"),
    **dict.fromkeys(("eval", "evaluation", "validierung", "publictest"), "dev"),
    **dict.fromkeys(("test", "testing", "testset", "holdout", "privatetest", "tst"), "test"),
}


@dataclass(frozen=True)
class Row:
    """A picture of a data set with its captions.

    name: path of the picture relative to the image folder, with `/`. split: None if the data set has no splits.
    where: position of the row as `file:line`, for messages. facts: what the picture shows (generated data only).
    digest: SHA-256 (hex) of the captioned picture; None if the data set does not record it.
    """

    name: str
    captions: tuple[str, ...]
    split: str | None
    where: str
    facts: dict[str, Any] | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        """Raise AttendError for a name that no file can have, and for a caption that is not text or is too long."""
        try:
            check_name(self.name)
        except ValueError as error:
            raise AttendError(f"{self.where}: {reprlib.repr(self.name)}: the picture's name {error}") from None
        for caption in self.captions:
            try:
                check_text(caption)
            except ValueError as error:
                raise AttendError(f"{self.where}: caption: {error}") from None
            if len(caption) > LONGEST_CAPTION:
                raise AttendError(
                    f"{self.where}: caption: has {len(caption):,} characters, over the limit of {LONGEST_CAPTION:,}: "
                    "shorten it"
                )


class PictureFile(NamedTuple):
    """A picture file: its path relative to a folder, with `/`, its size in bytes, and its modification time in ns."""

    name: str
    size: int
    mtime_ns: int


class DatasetOptions(Section, ABC):
    """The settings and methods that all adapters share; each adapter adds `adapter`, its settings and `rows`."""

    has_facts: ClassVar[bool] = False  # whether each row has facts about its picture, to check captions against
    expects_captions: ClassVar[bool] = True  # whether to warn about pictures in its folder without a caption
    has_grids: ClassVar[bool] = False  # whether its pictures are precomputed grids, (h, w, C) in .npy files
    suffixes: ClassVar[tuple[str, ...]] = PICTURE_SUFFIXES  # suffixes of the pictures' names

    path: Annotated[Path, NotInKey()] = Field(description="folder of the data set, or its caption file")
    images: Annotated[Path | None, NotInKey()] = Field(
        None, description="folder of the pictures, if it is not where the format expects it"
    )
    dev_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of the pictures that becomes dev, if the data set has no splits; share of train, if only "
        "dev is missing",
    )
    test_share: float = Field(
        0.1, ge=0, lt=1, description="share of the pictures that becomes test, if the data set has no splits"
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop",
        description="`stop` at the first invalid row, or `skip` invalid rows, which are counted and listed",
    )
    near_duplicates: Literal["together"] | None = Field(
        None,
        description="`together` puts near-duplicates (mirrored, cropped, resized or re-encoded copies, or copies with "
        "a border) into one split, where attend assigns the splits; default: each picture is assigned by itself",
    )

    weight: int = Field(
        1,
        ge=1,
        le=100,
        description="only in `data.sources`: how many times each caption of this data set counts in training",
    )
    split: Literal["train", "dev", "test"] | None = Field(
        None, description="only in `data.sources`: split of the pictures of this data set that have none"
    )

    @model_validator(mode="after")
    def _refuse_near_duplicates_of_grids(self) -> Self:
        if self.near_duplicates is not None and self.has_grids:
            raise ValueError("near_duplicates: the data set has grids and no photographs: remove this setting")
        return self

    def given_words(self) -> list[str] | None:
        """Return the words of the data set's own vocabulary, in the order of their ids from 4; None if it has none."""
        return None

    @property
    def unpacks(self) -> bool:
        """Return whether `rows` writes pictures: it generates or unpacks them."""
        return False

    @property
    def place(self) -> str:
        """Return where the data set is, for messages."""
        return str(self.path)

    def parts(self) -> dict[str, DatasetOptions]:
        """Return the data sets that this one consists of, by the prefix of their pictures' names."""
        return {"": self}

    def prefix_of(self, name: str) -> str:
        """Return the key of `parts` for the picture of this name."""
        return ""

    @abstractmethod
    def annotation_files(self) -> list[Path]:
        """Return the files of captions and splits; raise AttendError if a required one is missing."""

    def image_folder(self, generated: Path) -> Path:
        """Return the folder of the pictures: `data.images`, or the usual one of the format.

        generated: the folder for pictures that an adapter writes.
        """
        return self.usual_folder() if self.images is None else require_folder(self.images, "data.images")

    def usual_folder(self) -> Path:
        """Return the folder of the pictures if `data.images` is not set."""
        return require_folder(self.path, "data.path")

    @abstractmethod
    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        """Yield a row for every captioned picture; an adapter that writes pictures writes them to `generated`.

        An invalid row is added to the `faults`, with a message that names file, line and field. Raise AttendError if no
        row can be read.
        """


def refuse_address(path: Path, field: str) -> None:
    """Raise AttendError for the address of an object store or a web page that was turned into a `Path`."""
    before, _, rest = str(path).partition(":/")
    scheme = before.rpartition("/")[2]  # a path in a YAML file was joined to the file's folder
    if rest and len(scheme) > 1 and scheme.isalnum():
        address = f"{scheme}://{rest.lstrip('/')}"
        raise AttendError(
            f"{field}: {address}: is an address: pictures and captions are read from folders: copy them into one first"
        )


def require_folder(path: Path, field: str) -> Path:
    """Return `path` with `~` expanded; raise AttendError, which names the config field, unless it is a folder."""
    folder = path.expanduser()
    if not folder.is_dir():
        refuse_address(path, field)
        problem = "is a file, not a folder" if folder.exists() else "no such folder"
        raise AttendError(f"{field}: {folder}: {problem}: give an existing folder")
    return folder


def require_file(path: Path, field: str) -> Path:
    """Return `path` with `~` expanded; raise AttendError, which names the config field, unless it is a file."""
    file = path.expanduser()
    if not file.is_file():
        refuse_address(path, field)
        problem = (
            "is a folder, not a file" if file.is_dir() else "is no regular file" if file.exists() else "no such file"
        )
        raise AttendError(f"{field}: {file}: {problem}: give an existing file")
    return file


def parse_split(value: str, where: str) -> str:
    """Return `train`, `dev` or `test` for any of their usual names; raise AttendError for other values."""
    split = folder_split([value])
    if split is None:
        raise AttendError(f"{where}: split: {value!r} is none of train, dev and test, or of their other usual names")
    return split


def folder_split(folders: Iterable[str]) -> str | None:
    """Return the split in the first of these names, of folders or of files without suffix, that has one, or None.

    `train`, `val2017` and `test_images` name a split; `test train` does not.
    """
    for folder in folders:
        words = [word for word in re.split(r"[^a-z]+", folder.lower()) if word]
        splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        if len(splits) == 1:
            return splits.pop()
    return None


def named_splits(folders: Iterable[str]) -> set[str]:
    """Return the splits that these folders are named after, each by itself."""
    return {split for folder in folders if (split := folder_split([folder])) is not None}


def split_level(paths: Iterable[Sequence[str]]) -> int:
    """Return the first level at which folders of these paths are named after several splits; 0 if there is none.

    It is 1 for `training_data/train` and `training_data/val`. paths: the folders of each path.
    """
    levels = itertools.zip_longest(*set(map(tuple, paths)), fillvalue="")
    return next((number for number, level in enumerate(levels) if len(named_splits(set(level))) > 1), 0)


def path_split(folders: Sequence[str], level: int) -> str | None:
    """Return the split that a folder of a path is named after, starting at `split_level`; None if there is none."""
    return folder_split([*folders[level:], *folders[:level]])


def path_splits(paths: Sequence[Sequence[str]]) -> list[str | None]:
    """Return the split of each of these paths, by `path_split`. paths: the folders of each path."""
    level = split_level(paths)
    return [path_split(folders, level) for folders in paths]


def file_splits(folder: Path, files: Sequence[Path]) -> list[str | None]:
    """Return the split in each file's name, or else in a folder of its path below `folder`."""
    by_folder = path_splits([file.relative_to(folder).parts[:-1] for file in files])
    return [folder_split([file.stem]) or parent for file, parent in zip(files, by_folder, strict=True)]


def path_folders(name: str, picture: str) -> list[str]:
    """Return the folders in a picture's name, as the data set gives it, and in the path of its file."""
    return [*name.replace("\\", "/").split("/")[:-1], *picture.split("/")[:-1]]


def unicode_of(data: bytes) -> str:
    """Return the encoding of a text in Unicode: UTF-16 with a byte order mark or with ASCII first, or else UTF-8."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    zeros = data[:1] == b"\0", data[1:2] == b"\0"
    return {(True, False): "utf-16-be", (False, True): "utf-16-le"}.get(zeros, "utf-8-sig")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) and text of each non-blank line of a file; raise AttendError if one is not UTF-8."""
    with path.open("rb") as file:
        for number, encoded in enumerate(file, 1):
            try:
                if number == 1 and unicode_of(encoded) != "utf-8-sig":
                    raise UnicodeError
                line = encoded.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeError:
                raise AttendError(f"{path}:{number}: is not UTF-8 text: save it as UTF-8") from None
            if line.strip():
                yield number, line


def find_pictures(folder: Path, suffixes: tuple[str, ...] = PICTURE_SUFFIXES) -> list[PictureFile]:
    """Return all pictures below a folder, sorted by name: the files that end in `suffixes` or contain a picture.

    Follow links; skip hidden files and folders, and workspaces. Raise AttendError for a broken link, or for a link to a
    folder that contains the link.
    """
    pictures: list[PictureFile] = []
    # Folders still to read: the prefix of their files' names, their path, and the identities of all parent folders.
    pending = [("", str(folder), [_identity(folder.stat())])]
    while pending:
        prefix, path, ancestors = pending.pop()
        with os.scandir(path) as scanned:
            entries = [entry for entry in scanned if not entry.name.startswith(".")]
        if prefix and any(entry.name == WORKSPACE_FILE for entry in entries):
            continue
        for entry in entries:
            name = entry.name
            if entry.is_dir():
                identity = _identity(entry.stat())
                if identity in ancestors:
                    raise AttendError(f"{entry.path}: is a link to a folder that contains it: remove the link")
                pending.append((f"{prefix}{name}/", entry.path, [*ancestors, identity]))
            elif name.lower().endswith(suffixes) or (suffixes == PICTURE_SUFFIXES and _holds_picture(entry)):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    raise AttendError(f"{entry.path}: is a broken link: remove it") from None
                if not S_ISREG(stat.st_mode):  # reading a FIFO would wait for ever
                    raise AttendError(f"{entry.path}: is no regular file: move it out of the folder of pictures")
                pictures.append(PictureFile(f"{prefix}{name}", stat.st_size, stat.st_mtime_ns))
    return sorted(pictures, key=itemgetter(0))  # names are unique: whole tuples compare three times slower


def shown_files(folder: Path, follow_links: bool = False) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and each folder below it, with the sorted names of its files.

    Hidden files and folders and workspaces are left out, as in `find_pictures`.
    """
    for path, subfolders, files in os.walk(folder, followlinks=follow_links):
        if path != str(folder) and WORKSPACE_FILE in files:
            subfolders.clear()
            continue
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield Path(path), sorted(name for name in files if not name.startswith("."))


def _holds_picture(entry: os.DirEntry[str]) -> bool:
    """Return whether a file without a picture's suffix holds a picture, by its first bytes.

    Phones and converters write JPEG files named .HEIC or .jfif, and downloads may have no suffix.
    """
    suffix = Path(entry.name).suffix.lower()
    if (suffix and suffix not in OTHER_PICTURES and not _is_odd(suffix)) or not entry.is_file():
        return False
    try:
        with Path(entry.path).open("rb") as file:
            start = file.read(12)
    except OSError:
        return False
    return start.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8")) or start[:4] + start[8:] == b"RIFFWEBP"


def _is_odd(suffix: str) -> bool:
    """Return whether a suffix is not a usual one: part of a name with dots, or a variant of .jpg."""
    return suffix.startswith((".jp", ".jf")) or not suffix[1:].isalpha()


def _identity(stat: os.stat_result) -> tuple[int, int]:
    """Return the device and inode of a folder, which do not depend on the link that leads to it."""
    return stat.st_dev, stat.st_ino


def pictures_of(data: DatasetOptions, generated: Path) -> list[PictureFile]:
    """Return all picture files of a data set, captioned or not, with the names that its rows use.

    generated: the folder of pictures that an adapter writes.
    """
    result: list[PictureFile] = []
    for prefix, part in data.parts().items():
        folder = part.image_folder(generated / prefix)
        pictures = find_pictures(folder, part.suffixes)
        result += [picture._replace(name=f"{prefix}{picture.name}") for picture in pictures] if prefix else pictures
    return result


def paths_of(data: DatasetOptions, names: Iterable[str], generated: Path) -> dict[str, Path]:
    """Return name in the rows -> path, for pictures of a data set. generated: as in `pictures_of`."""
    folders = {prefix: part.image_folder(generated / prefix) for prefix, part in data.parts().items()}
    prefixes = ((name, data.prefix_of(name)) for name in names)
    return {name: folders[prefix] / name.removeprefix(prefix) for name, prefix in prefixes}


def picture_files(folder: Path) -> list[Path]:
    """Return the paths of the pictures that `find_pictures` finds."""
    return [folder / picture.name for picture in find_pictures(folder)]


def needs_text(value: object, where: str, field: str) -> str:
    """Return `value` stripped; raise AttendError, which names row and field, unless it is a non-blank string."""
    if not isinstance(value, str) or not value.strip():
        raise AttendError(
            f"{where}: {field}: is {'empty' if value in (None, '') else reprlib.repr(value)}; a text is needed"
        )
    return value.strip()


def first_folder(candidates: list[Path], field: str) -> Path:
    """Return the first candidate that is a folder; raise AttendError, which lists them, if none is."""
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise AttendError(f"{field}: no image folder: looked for {', '.join(map(str, candidates))}; set data.images=FOLDER")


def known_encoding(encoding: str) -> str:
    """Return the usual name of an encoding; ValueError for one that Python does not know."""
    try:
        "".encode(encoding)
        return codecs.lookup(encoding).name  # the same for `utf8` and `UTF-8`
    except (LookupError, UnicodeError, ValueError):
        raise ValueError("is no encoding that Python knows, such as cp1252 or utf-16") from None


class NamedOptions(DatasetOptions):
    """The base class of adapters whose records name the files of pictures, which may be in a folder for each split."""

    splits: Literal["folders"] | None = Field(
        None,
        description="`folders`: the split of a picture is named by a folder in its path: train/, val_images/",
    )

    def level_of_splits(self, meant: Mapping[str, list[str]]) -> int:
        """Return the `split_level` of pictures if `splits` is set, else 0. meant: name -> paths of its files."""
        pictures = meant.items() if self.splits is not None else ()
        return split_level(path_folders(name, own[0]) for name, own in pictures if own)

    def split_in(self, name: str, picture: str, level: int, where: str) -> str | None:
        """Return the split by `path_split` if `splits` is set, else None; AttendError if no folder names a split."""
        if self.splits is None:
            return None
        split = path_split(path_folders(name, picture), level)
        if split is None:
            raise AttendError(f"{where}: {picture}: no folder of its path is named as a split, as data.splits asks for")
        return split


class UnpackedOptions(DatasetOptions):
    """The base class of adapters whose files contain the pictures, which are written to the manifest's artifact."""

    @property
    def unpacks(self) -> bool:
        return True

    @model_validator(mode="after")
    def _refuse_image_folder(self) -> UnpackedOptions:
        if self.images is not None:
            raise ValueError("images: the pictures are inside the data set's files: remove this setting")
        return self

    def image_folder(self, generated: Path) -> Path:
        return generated
