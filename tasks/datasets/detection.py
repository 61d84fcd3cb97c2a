"""Detecting how to read a folder or a file of captions: the adapter, and the settings that it needs.

All files that may hold captions are examined, and the one that looks most like captions is used.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from tasks.common.errors import AttendError
from tasks.common.wording import counted, listed, shortened
from tasks.datasets.base import (
    OTHER_PICTURES,
    PICTURE_SUFFIXES,
    file_splits,
    folder_split,
    refuse_address,
    require_file,
    shown_files,
)
from tasks.datasets.candidates import Folder, Reading, of_rows, of_tars
from tasks.datasets.caption_columns import NO_TEXTS, OBJECTS
from tasks.datasets.coco_tensor_file import is_coco_tensors
from tasks.datasets.embedded_descriptions import descriptions_in
from tasks.datasets.huggingface import table_files
from tasks.datasets.image_folder import METADATA
from tasks.datasets.object_array import array_header
from tasks.datasets.picture_finder import is_copy
from tasks.datasets.sources import with_source
from tasks.datasets.table import TABLE_SUFFIXES, is_table
from tasks.datasets.table_columns import Options
from tasks.datasets.texts import TEXT_SUFFIXES
from tasks.datasets.webdataset import is_tar

_MOST_SUBFOLDERS = 20  # examined below a folder without captions
_CLOSE = 0.75  # share of the best score from which the choice between two files is unclear
_ONE_WORD, _KINDS = 1.5, 3  # mean words of texts below which they are classes, and how many kinds of them are shown
_NEARLY_ALL = 0.9
_FEW = 0.5  # share of the pictures below which a note says that the captions may be elsewhere
_LISTS = (".txt", ".csv", ".tsv")  # of names of pictures
_LISTED = 3  # files of one kind in one folder that are listed by name
# Names of folders of captions that are next to the pictures.
_NEXT_TO = re.compile("annotation|caption|metadata|label|text|split", re.IGNORECASE)
# Names of files and folders of what is not to be trained on.
_SET_ASIDE = re.compile(
    r"(?<![a-z])(rejected|discarded|deleted|trash|unused|excluded|predictions?|predicted|sample_submission)(?![a-z])|"
    r"(^|[ _.-])(old|backup)$",
    re.IGNORECASE,
)
# What to do with files that may hold captions or pictures, and are not read.
_CONVERT = {
    ".zip": "unpack it first: unzip {name} -d FOLDER",
    ".7z": "unpack it first",
    ".rar": "unpack it first",
    ".gz": "unpack it first: gunzip {name}",
    ".bz2": "unpack it first: bunzip2 {name}",
    ".xz": "unpack it first: unxz {name}",
    ".zst": "unpack it first: unzstd {name}",
    ".arrow": 'write it as Parquet: uv pip install datasets; python -c "from datasets import Dataset; '
    "Dataset.from_file({path!r}).to_parquet('captions.parquet')\"",
    ".xlsx": 'save it as CSV: uv pip install openpyxl; python -c "import pandas; '
    "pandas.read_excel({path!r}).to_csv('captions.csv', index=False)\"",
    ".xls": "save it as CSV",
    ".xlsm": "save it as CSV",
    ".ods": "save it as CSV",
    ".numbers": "save it as CSV",
    ".heic": "convert it to JPEG: heif-convert {name} {stem}.jpg",
    ".heif": "convert it to JPEG: heif-convert {name} {stem}.jpg",
}


class Detection(NamedTuple):
    """How a folder or file is read: the settings of `data`.

    unread: a line for each file that is not read. notes: what a person should check.
    """

    options: Options
    unread: list[str]
    notes: tuple[str, ...] = ()


def detect(path: Path, captions: Path | None = None) -> Detection:
    """Return the settings of `data` that read a folder or file.

    captions: the file of captions to read in a folder, whose path may be relative to the folder; None for the one that
    looks most like captions. Raises AttendError if there are no captions of pictures in any known form, or if several
    files look like captions.
    """
    original, path = path, path.expanduser().absolute()
    if path.is_dir() and captions is None:
        return _of_folder(path)
    if not path.exists():
        refuse_address(original, "FOLDER|FILE")
        raise AttendError(f"{path}: no such file or folder")
    if captions is not None and path.is_dir() and not captions.exists() and (path / captions).is_file():
        captions = path / captions
    file = path if captions is None else require_file(captions, "--captions").absolute()
    detection = _of_file(file, path if path.is_dir() else file.parent)
    unread = _unread(Folder(path), {file, *detection.read}, None) if path.is_dir() else []
    return Detection(detection.options, unread, detection.notes)


class _KnownForm(NamedTuple):
    """How files of a known form are read, and which files. notes: what a person should check."""

    options: Options
    read: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def _of_folder(path: Path) -> Detection:
    folder = Folder(path)
    published = _published(path)
    if published is not None:
        return Detection(published.options, _unread(folder, set(published.read), {}), published.notes)
    candidates, errors = folder.candidates()
    if candidates:
        return _best(folder, candidates, errors)
    tensors = _of_tensors(path)
    if tensors is not None:
        return Detection(tensors.options, _unread(folder, set(tensors.read), errors))
    raise _without_captions(folder, errors)


def _best(folder: Folder, candidates: list[Reading], errors: dict[Path, str]) -> Detection:
    """Return the candidate that looks most like captions, with other parts of the same data set."""
    pictures = max(len(folder.finder.names), 1)
    groups = _groups(candidates)

    def score(group: list[Reading]) -> float:
        named = len(frozenset().union(*(item.found.pictures for item in group)))
        return group[0].score * (0.5 + 0.5 * min(named / pictures, 1.0))

    groups.sort(key=score, reverse=True)
    whole = groups[0]
    groups.sort(key=lambda group: not _divides(group, whole))  # the parts, before a table of all of them
    _refuse_classes(groups[0][0], folder.path)
    parts, rest = groups[0], [item for group in groups[1:] for item in group]
    texts = {text for part in parts for text in part.found.texts}
    copies = [item for item in rest if set(item.found.texts) <= texts]
    close = [group[0] for group in groups[1:] if score(group) > _CLOSE * score(parts) and group[0] not in copies]
    if close:
        shown = "; ".join(f"{item.file.relative_to(folder.path)} ({item})" for item in (parts[0], *close))
        raise AttendError(
            f"{folder.path}: several files look like captions: {shown}: name one with --captions FILE, or all "
            "in data.sources (docs/data-formats.md)"
        )
    ordered = sorted(parts, key=lambda part: part.file)
    options = parts[0].options if len(parts) == 1 else _joined(folder.path, ordered)
    reasons = errors | {file: str(item) for item in rest for file in item.read}
    read = {file for part in parts for file in part.read}
    lists = _split_lists(folder.path, read)
    reasons = dict.fromkeys(lists, "may list a split") | reasons
    reasons |= {item.file: f"{item}: the same captions as {parts[0].file.name}" for item in copies}
    unread = _unread(folder, read, reasons)
    seen = _given_otherwise(parts, rest, errors, lists, folder.path)
    names = list(options["sources"]) if len(parts) > 1 else [""]
    notes = [
        with_source(f"{name}/" if name else "", note)
        for name, part in zip(names, ordered, strict=True)
        for note in part.notes
    ]
    return Detection(options, unread, (*seen, *notes, *_few_named(folder, parts), *_set_aside(folder.path, read)))


def _set_aside(folder: Path, read: Collection[Path]) -> Iterator[str]:
    """Yield a note on files that are read although their names, or their folders', say that they were set aside."""
    places = {path.relative_to(folder).with_suffix("") for path in read if path.is_relative_to(folder)}
    named = sorted({part for parent in places for part in parent.parts if _SET_ASIDE.search(part)})
    if named:
        yield f"{folder}: {listed(named)} is read too: move it out of the folder if it is not to be trained on"


def _few_named(folder: Folder, parts: list[Reading]) -> Iterator[str]:
    """Yield a note if captions name few of the pictures of a folder, not counting small copies."""
    if any(len(part.read) > 1 and part.options["adapter"] != "texts" for part in parts):
        return  # of several files of one form, only the first was examined
    originals = {folder.path / name for name in folder.finder.names if not is_copy(name)}
    named = len(originals.intersection(picture for part in parts for picture in part.found.pictures))
    if 0 < named < _FEW * len(originals):  # none are named if the pictures are inside the files
        yield (
            f"{folder.path}: {named:,} of {len(originals):,} pictures have a caption in {parts[0].file.name}: if the "
            "captions are in another file, name it with --captions FILE"
        )


def _divides(group: list[Reading], whole: list[Reading]) -> bool:
    """Return whether a group of tables, one for each split, has the pictures of the table `whole`."""
    names = {folder_split([file.stem]) for item in group for file in item.read}
    is_divided = len(names) > 1 and None not in names
    if group is whole or not is_divided or len(whole) > 1:
        return False
    pictures = frozenset(picture for item in group for picture in item.found.pictures)
    return len(pictures & whole[0].found.pictures) >= _NEARLY_ALL * len(whole[0].found.pictures)


def _refuse_classes(item: Reading, folder: Path) -> None:
    """Raise AttendError if the likeliest captions are single words of a few kinds."""
    kinds = sorted(set(item.found.texts))
    if item.found.words < _ONE_WORD and len(kinds) <= max(_KINDS, len(item.found.texts) // 10):
        shown = ", ".join(map(repr, kinds[:_KINDS]))
        raise AttendError(
            f"{folder}: no captions of several words: {item.file.relative_to(folder)} has "
            f"{counted(len(kinds), 'word')}, such as {shown}: name the file of the captions with --captions FILE"
        )


def _given_otherwise(
    parts: list[Reading], unread: list[Reading], errors: dict[Path, str], lists: list[Path], folder: Path
) -> Iterator[str]:
    """Yield notes on files that name pictures, or their splits, in a way that is not read.

    lists: the files named like lists of splits.
    """
    tables = [path for path, error in errors.items() if NO_TEXTS in error]
    lists = lists + [path for path in tables if path not in lists and folder_split([path.stem]) is not None]
    has_splits = len(parts) > 1 or {"split_column", "splits"} & parts[0].options.keys() or parts[0].found.has_splits
    if lists and not has_splits:
        shown = ", ".join(path.relative_to(folder).as_posix() for path in lists)
        how = f"add a column `split` to {parts[0].file.name}"
        if parts[0].options["adapter"] in ("texts", "webdataset"):
            how = "put the pictures into folders train, dev and test"
        yield f"{folder}: the splits that {shown} may list are not used: {how}"
    unused = [path for path in tables if path not in lists]
    unused += [item.file for item in unread if not item.found.by_number]
    if unused and parts[0].found.by_number:
        yield (
            f"{parts[0].file}: names pictures by numbers, and {unused[0].relative_to(folder)} by names: if its rows "
            "say which number is which picture, write the names into the table of captions"
        )


def _split_lists(folder: Path, read: Collection[Path]) -> list[Path]:
    """Return the files below a folder that are named like lists of splits: train.txt and test.txt, or split.csv."""
    files = [path for path in _files(folder) if path not in read and is_table(path)]
    named = [path for path in files if path.suffix.lower() in _LISTS and folder_split([path.stem]) is not None]
    one = [path for path in files if re.search("split|fold|hold.?out", path.stem.lower())]
    return one or (named if len({folder_split([path.stem]) for path in named}) > 1 else [])


def _groups(candidates: list[Reading]) -> list[list[Reading]]:
    """Return candidates grouped by data set: those of one form and similar score, with different pictures, are one."""
    groups: list[list[Reading]] = []
    for item in sorted(candidates, key=lambda item: (-item.score, len(item.file.name))):
        for group in groups:
            if item.score > _CLOSE * group[0].score and all(item.has_form_of(part) for part in group):
                group.append(item)
                break
        else:
            groups.append([item])
    return groups


def _joined(folder: Path, parts: list[Reading]) -> Options:
    """Return the settings of several files as one data set, each with the split in its name or folder."""
    sources: dict[str, Options] = {}
    for part, split in zip(parts, file_splits(folder, [part.file for part in parts]), strict=True):
        relative = part.file.relative_to(folder)
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(relative.with_suffix("").parts))
        while name in sources or not name.strip("-_"):  # names in other scripts may become such
            name = f"{name.strip('-_') or 'captions'}-{len(sources) + 1}"
        split_setting = part.options.get("split_column") or part.options.get("splits")
        sources[name] = part.options if split is None or split_setting else {**part.options, "split": split}
    return {"adapter": "sources", "sources": sources}


def _unread(folder: Folder, read: Collection[Path], reasons: dict[Path, str] | None) -> list[str]:
    """Return a line for each file of a folder that is neither a picture nor read, with the reason.

    Many files of one kind in one folder share a line. reasons: why examined files are not read; None if the user named
    the file to read.
    """
    texts = {item.text: item for items in folder.texts.values() for item in items}
    named = {item.text.suffix.lower() for item in texts.values() if item.pictures}
    groups: dict[tuple[Path, str, bool], list[tuple[Path, str]]] = {}
    for path in _files(folder.path):
        if path in read or path.relative_to(folder.path).as_posix() in folder.finder.names:
            continue
        is_orphan = path in texts and not texts[path].pictures and path.suffix.lower() in named
        if reasons is None:
            why = "--captions names another file"
        else:
            why = "no picture has this name" if is_orphan else reasons.get(path, _why_unread(path, folder))
        key = (path.parent, path.suffix.lower(), is_orphan)
        groups.setdefault(key, []).append((path, why.removeprefix(f"{path}: ")))
    lines = []
    for (parent, suffix, _), files in groups.items():
        if len(files) > _LISTED:
            shown = (parent.relative_to(folder.path) / f"*{suffix}").as_posix()
            first, why = files[0]
            lines.append(f"{shown}: {len(files):,} files, such as {first.name}: {shortened(why, 160)}")
        else:
            lines += [f"{path.relative_to(folder.path)}: {shortened(why, 160)}" for path, why in files]
    return lines


def _files(folder: Path) -> Iterator[Path]:
    """Return the files below a folder, except hidden ones and those of workspaces."""
    return (path / name for path, files in shown_files(folder) for name in files)


def _how_to_convert(path: Path) -> str:
    """Return how to convert a file to a supported format."""
    return _CONVERT[path.suffix.lower()].format(name=shlex.quote(str(path)), stem=path.stem, path=str(path))


def _why_unread(path: Path, folder: Folder) -> str:
    """Return why a file without known captions is not read."""
    suffix = path.suffix.lower()
    if suffix in _CONVERT and not path.name.startswith("~$"):
        return _how_to_convert(path)
    if suffix in OTHER_PICTURES:
        return f"{suffix} pictures are not read: convert them to JPEG"
    if path.parent != folder.path and is_table(path):
        return f"is in a folder of its own, which may be a data set: attend init {path.parent.relative_to(folder.path)}"
    return "no captions were looked for in it"


def _without_captions(folder: Folder, errors: dict[Path, str]) -> AttendError:
    """Return the error for a folder without captions, which says what it has instead."""
    path = folder.path
    own_errors = [error for file, error in errors.items() if file.parent == path and NO_TEXTS not in error]
    seen = f" ({'; '.join(own_errors)})" if own_errors else ""
    below = [str(inner) for inner in itertools.islice(_subfolders(path), _MOST_SUBFOLDERS) if _holds_captions(inner)]
    if len(below) > 1:
        return AttendError(
            f"{path}: holds no captions itself{seen}, but {listed(below)} do: give one of them, or name each as one of "
            "data.sources (docs/data-formats.md)"
        )
    if below:
        return AttendError(f"{path}: holds no captions itself{seen}, but {below[0]} does: give that folder")
    orphans = [item.text for item in folder.texts[".txt"] if not item.pictures]
    if len(orphans) > _LISTED and not folder.finder.names:
        own = set(orphans)
        errors = {file: error for file, error in errors.items() if file not in own}
        has_others = any(file.suffix.lower() in (*_CONVERT, *OTHER_PICTURES) for file in _files(path))
        if not errors and not has_others:
            what = f"{len(orphans):,} .txt files and no pictures: give the folder that holds both"
            return AttendError(f"{path}: {what}")
    elif len(orphans) > _LISTED:
        named = folder.finder.named(orphans[0].stem)
        why = f"have the name of no picture, such as {orphans[0].name}"
        what = f"name each as its picture, such as {Path(min(folder.finder.names)).stem}.txt"
        if named:
            why = f"are in other folders than the pictures, such as {orphans[0].relative_to(path)} for {named[0]}"
            what = "put one of each name into the picture's folder"
        return AttendError(f"{path}: {len(orphans):,} .txt files {why}: {what}")
    if errors:
        unpacked = [file for file in _files(path) if file.suffix.lower() in _CONVERT]
        error = next(iter(errors.values()))
        hint = ": add a column of captions" if NO_TEXTS in error and OBJECTS not in error else ""
        hint = f"; {unpacked[0].name} is not read: {_how_to_convert(unpacked[0])}" if unpacked else hint
        return AttendError(error + hint)
    return AttendError(f"{path}: {_what_is_there(folder)}")


def _what_is_there(folder: Folder) -> str:
    """Describe what a folder without captions holds, and what to do."""
    files = list(_files(folder.path))
    suffixes = Counter(file.suffix.lower() for file in files)
    convertible = next((file for file in files if file.suffix.lower() in _CONVERT), None)
    pictures = len(folder.finder.names)
    if convertible is not None:
        number = suffixes[convertible.suffix.lower()]
        more = f" (and {number - 1:,} more such files)" if number > 1 else ""
        return f"{convertible.name} is not read{more}: {_why_unread(convertible, folder)}"
    others = {suffix: suffixes[suffix] for suffix in OTHER_PICTURES if suffixes[suffix]}
    if not pictures and others:
        kinds = ", ".join(sorted(others))
        return f"its {sum(others.values()):,} pictures are {kinds}, which are not read: convert them to JPEG or PNG"
    by_suffix = [(suffix or "without suffix", number) for suffix, number in suffixes.most_common()]
    unknown = [f"{number:,} {suffix}" for suffix, number in by_suffix if suffix not in PICTURE_SUFFIXES]
    seen = f" (its other files: {', '.join(unknown[:5])})" if unknown else ""
    if not pictures:
        return f"holds neither pictures nor captions{seen.replace('other ', '')}: give the folder that does"
    described = descriptions_in(folder.path / name for name in folder.finder.names)
    if described is not None:
        root, table = (shlex.quote(str(path)) for path in (folder.path, folder.path / "captions.csv"))
        return (
            f"has {pictures:,} pictures and no captions{seen}, but descriptions in the pictures' own metadata, such as "
            f"{shortened(described.example, 60)!r}: write them to a table: exiftool -csv -r -{described.field} {root} "
            f"> {table}"
        )
    return (
        f"has {pictures:,} pictures and no captions{seen}: add a metadata.jsonl with a line a picture, "
        '{"file_name": "a.jpg", "text": "a dog runs"}, or a .txt beside each picture, or name a file elsewhere with '
        "--captions FILE"
    )


def _subfolders(folder: Path) -> Iterator[Path]:
    """Yield the folders one and two levels below a folder that are not hidden."""
    children = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    yield from children
    for child in children:
        yield from sorted(path for path in child.iterdir() if path.is_dir() and not path.name.startswith("."))


def _holds_captions(folder: Path) -> bool:
    """Return whether a folder's own files are captions of pictures."""
    try:
        return bool(_published(folder)) or bool(Folder(folder).candidates()[0])
    except (AttendError, OSError):
        return False


def _published(folder: Path) -> _KnownForm | None:
    """Return how a folder with the layout of a published data set is read; None for other folders."""
    tokens = next(iter(sorted(folder.glob("**/Flickr8k.token.txt"))), None)
    if tokens is not None:
        options: Options = {"adapter": "flickr8k", "path": tokens.parent}
        lists = tuple(tokens.parent.glob("Flickr_8k.*Images.txt"))
        return _KnownForm({**options, **_flickr_images(folder, tokens.parent)}, (tokens, *lists))
    tokens = next(iter(sorted(folder.glob("**/results_20130124.token"))), None)
    if tokens is not None:
        return _KnownForm({"adapter": "flickr30k", "path": tokens, **_flickr_images(folder, tokens.parent)}, (tokens,))
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        files = tuple(file.path for file in table_files(folder))
        saved = [
            path
            for path in folder.rglob("*.json")
            if path.name in ("dataset_dict.json", "state.json", "dataset_info.json")
        ]
        reading = of_rows(folder, files[0])
        return _KnownForm(reading.options, (*files, *saved), reading.notes)
    return None


def _flickr_images(folder: Path, own: Path) -> Options:
    """Return the setting of Flickr8k's or 30k's picture folder if it is not in the folder of the captions."""
    names = ("Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images", "images", "Images")
    if own == folder or any((own / name).is_dir() for name in names):
        return {}
    images = next((folder / name for name in names if (folder / name).is_dir()), None)
    return {} if images is None else {"images": images}


def _of_tensors(folder: Path) -> _KnownForm | None:
    """Return how a folder with a coco.pt, or with arrays of grids and captions, is read; None for other folders."""
    tensors = [path for path in sorted(folder.glob("*.pt")) if is_coco_tensors(path)]
    if len(tensors) == 1:
        return _KnownForm({"adapter": "coco_pt", "path": tensors[0]}, (tensors[0],))
    return _of_arrays(folder)


def _of_arrays(folder: Path) -> _KnownForm | None:
    """Return how a folder with one array of grids and one of their captions is read; None for other folders."""
    read = ((path, array_header(path)) for path in sorted(folder.glob("*.npy")))
    headers = [(path, header) for path, header in read if header is not None]
    pairs = [
        (grids, captions)
        for grids, header in headers
        for captions, other in headers
        if header.is_grids and other.is_texts and header.shape[0] == other.shape[0]
    ]
    if len(pairs) > 1:
        shown = "; ".join(f"{a.name} with {b.name}" for a, b in pairs)
        raise AttendError(
            f"{folder}: several arrays may be the grids and their captions: {shown}: leave one of each in the folder"
        )
    if not pairs:
        return None
    grids, captions = pairs[0]
    return _KnownForm({"adapter": "arrays", "path": grids, "captions": captions}, (grids, captions))


def _of_file(path: Path, root: Path) -> _KnownForm:
    """Return how a file of captions is read. root: the folder that contains the file and its pictures."""
    suffix = path.suffix.lower()
    if suffix in _CONVERT and not is_tar(path):
        raise AttendError(f"{path}: is not read: {_how_to_convert(path)}")
    if is_tar(path):
        reading = of_tars(path)
        return _KnownForm(reading.options, (path,), reading.notes)
    if suffix == ".npy":
        arrays = _of_arrays(path.parent)
        if arrays is None or path not in arrays.read:
            raise AttendError(
                f"{path}: an array of grids (N, C, h, w) and an array of N lists of captions are needed, in one folder"
            )
        return arrays
    if suffix in (".pt", ".token"):
        return _KnownForm({"adapter": "coco_pt" if suffix == ".pt" else "flickr30k", "path": path})
    if path.name == "Flickr8k.token.txt":
        return _KnownForm({"adapter": "flickr8k", "path": path.parent})
    if not is_table(path) and suffix not in TEXT_SUFFIXES:
        raise AttendError(
            f"{path}: is not a kind of caption file that is known: a table ends in {', '.join(TABLE_SUFFIXES)}"
        )
    folder = Folder(root)
    if not folder.finder.names and root == path.parent and _NEXT_TO.search(root.name):
        folder = Folder(root.parent)
    result = (folder.of_text(path) or folder.of_file(path)) if path.name not in METADATA else folder.of_metadata(path)
    return _KnownForm(result.options, result.read, result.notes)
