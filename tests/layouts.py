"""Layouts of captioned pictures as people have them, with the reading that is right, drawn by Hypothesis."""

from __future__ import annotations

import csv
import io
import json
import tarfile
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

from tasks.common.errors import AttendError
from tasks.datasets import ADAPTERS
from tasks.datasets.base import paths_of
from tasks.datasets.detection import detect
from tasks.datasets.faults import Faults

Outcome = Literal["right", "right, with a warning", "wrong, with a warning", "refused", "wrong"]
THINGS = ("dog", "cat", "boat", "kite", "horse", "bike", "lamp", "tree")
_COLOURS = ("red", "green", "blue", "grey", "brown", "white")
_PLACES = ("on the beach", "near a house", "in a field", "under a bridge", "beside the road", "at night")
_NUMBER = 24


def _encoded(number: int, form: str) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((20, 20)).save(file, form)
    return file.getvalue()


PICTURES = {form: [_encoded(number, form) for number in range(3 * _NUMBER)] for form in ("JPEG", "PNG")}


@dataclass
class Layout:
    """What is in a folder. captions: of each picture, by its number. splits: of each; None where there are none.

    is_clean: whether nothing in it deserves a warning. steps: how it was made, for the report of a failure.
    """

    captions: dict[int, list[str]]
    splits: dict[int, str] | None
    is_clean: bool = True
    steps: dict[str, Any] = field(default_factory=dict)


def _sentence(draw: Callable[..., Any], number: int, style: str) -> str:
    thing, colour = THINGS[number % 8], _COLOURS[number % 6]
    place = _PLACES[(number // 3) % 6]
    text = f"a {colour} {thing} {place}"
    if style == "commas":
        text = f"a {colour} {thing}, number {number}, {place}, alone"
    elif style == "quotes":
        text = f'A sign says "{thing} {number}" {place}.'
    elif style == "accents":
        text = f"ein schöner {thing} fährt über die Straße Nr. {number} — {place}"
    elif style == "sentence":
        text = f"A {colour} {thing} is {place}, and picture {number} shows it."
    return text


@st.composite
def layouts(draw: Callable[..., Any], folder: Path) -> Layout:
    """Write a layout into an empty folder, and return it."""
    form = draw(st.sampled_from(_FORMS))
    ending = draw(st.sampled_from(["jpg", "png", "jpeg", "JPG", "PNG"]))
    style = draw(st.sampled_from(["plain", "commas", "quotes", "accents", "sentence"]))
    each = draw(st.sampled_from([1, 1, 3]))
    numbers = list(range(_NUMBER))
    captions = {
        number: [_sentence(draw, number + 100 * k, style) + (f" again {k}" if k else "") for k in range(each)]
        for number in numbers
    }
    shape = draw(st.sampled_from(["{:03d}", "IMG_{:04d}", "{:012d}", "photo ({})", "foto-ä{}", "a.b.{:03d}", "{:d}"]))
    names = [f"{shape.format(number)}.{ending}" for number in numbers]
    layout = Layout(captions, None, steps={"form": form, "names": names[0], "style": style, "each": each})
    _FORM_OF[form](draw, folder, layout, names)
    for distraction in draw(st.lists(st.sampled_from(sorted(_DISTRACTIONS)), max_size=3, unique=True)):
        layout.steps.setdefault("distractions", []).append(distraction)
        _DISTRACTIONS[distraction](folder, names)
    return layout


def _splits(draw: Callable[..., Any], layout: Layout) -> dict[int, str] | None:
    """Return a split of each picture, in the words of a data set, and note the right one; or None."""
    words = draw(
        st.sampled_from(
            [
                None,
                ("train", "val", "test"),
                ("train", "validation", "test"),
                ("Train", "Dev", "Test"),
                ("training", "eval", "testing"),
            ]
        )
    )
    if words is None:
        return None
    kinds = [0 if number % 6 < 4 else number % 6 - 3 for number in range(_NUMBER)]
    layout.splits = {number: ("train", "dev", "test")[kind] for number, kind in enumerate(kinds)}
    layout.steps["splits"] = words
    return {number: words[kind] for number, kind in enumerate(kinds)}


def save(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PICTURES["PNG" if path.suffix.lower() == ".png" else "JPEG"][number])


def _place_pictures(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> list[str]:
    """Save the pictures, and return their paths in the folder."""
    place = draw(st.sampled_from(["", "images", "Images", "photos", "data/originals", "train2017", "split folders"]))
    layout.steps["pictures in"] = place
    splits = None
    if place == "split folders":
        words = draw(st.sampled_from([("train", "val", "test"), ("train_images", "val_images", "test_images")]))
        kinds = [0 if number % 6 < 4 else number % 6 - 3 for number in range(_NUMBER)]
        splits = [words[kind] for kind in kinds]
        layout.splits = {number: ("train", "dev", "test")[kind] for number, kind in enumerate(kinds)}
    paths = []
    for number, name in enumerate(names):
        path = f"{splits[number] if splits else place}/{name}".lstrip("/")
        save(folder / path, number)
        paths.append(path)
    return paths


def _written(draw: Callable[..., Any], layout: Layout, paths: list[str]) -> list[str]:
    """Return the names of pictures as a table gives them."""
    ways: dict[str, Callable[[str], str]] = {
        "path": lambda path: path,
        "name": lambda path: path.rpartition("/")[2],
        "without ending": lambda path: path.rpartition("/")[2].rpartition(".")[0],
        "other machine": lambda path: f"/content/drive/MyDrive/set/{path}",
        "Windows": lambda path: "C:\\Users\\me\\set\\" + path.replace("/", "\\"),
        "other case": lambda path: path.rpartition(".")[0] + "." + path.rpartition(".")[2].swapcase(),
        "quoted": lambda path: path.replace(" ", "%20"),
        "dot": lambda path: f"./{path}",
        "NFD": lambda path: unicodedata.normalize("NFD", path),
    }
    way = draw(st.sampled_from(sorted(ways)))
    layout.steps["written"] = way
    return [ways[way](path) for path in paths]


def _records(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> list[dict[str, Any]]:
    """Save the pictures, and return records that name them, one for each caption."""
    paths = _place_pictures(draw, folder, layout, names)
    written = _written(draw, layout, paths)
    image = draw(st.sampled_from(["image", "file_name", "filename", "path", "img", "Bild", "image_path"]))
    caption = draw(st.sampled_from(["caption", "text", "description", "Beschriftung", "sentence", "comment"]))
    extra = draw(st.lists(st.sampled_from(["id", "width", "class", "url", "date", "source"]), max_size=3, unique=True))
    column = draw(st.sampled_from(["split", "partition", "subset", "set"]))
    splits = _splits(draw, layout) if layout.splits is None else None
    layout.steps |= {"columns": (image, caption, *extra)}
    values: dict[str, Callable[[int], Any]] = {
        "id": lambda number: number + 1,
        "width": lambda number: 20 + 0 * number,
        "class": lambda number: THINGS[number % 8],
        "url": lambda number: f"https://example.org/{number}",
        "date": lambda number: f"2026-05-{1 + number % 28:02d}",
        "source": lambda number: ("camera", "phone")[number % 2],
    }
    front = draw(st.booleans())
    records = []
    for number in range(_NUMBER):
        for text in layout.captions[number]:
            more = {name: values[name](number) for name in extra}
            own = {image: written[number], caption: text} if front else {caption: text, image: written[number]}
            records.append({**own, **more} | ({column: splits[number]} if splits else {}))
    layout.steps["caption column"] = caption
    return records


def _of_lists(records: list[dict[str, Any]], caption: str) -> list[dict[str, Any]]:
    """Return records with the captions of a picture as a list."""
    merged: dict[str, dict[str, Any]] = {}
    for record in records:
        key = json.dumps({name: value for name, value in record.items() if name != caption})
        merged.setdefault(key, {**record, caption: []})[caption].append(record[caption])
    return list(merged.values())


def _text_table(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    records = _records(draw, folder, layout, names)
    caption = layout.steps["caption column"]
    cells = draw(st.sampled_from(["rows", "rows", "json", "python", "bars"]))
    if cells != "rows":
        writers: dict[str, Callable[..., str]] = {"json": json.dumps, "python": str, "bars": " || ".join}
        write = writers[cells]
        if cells == "bars" and len(layout.captions[0]) == 1:
            write = json.dumps
        records = [{**record, caption: write(record[caption])} for record in _of_lists(records, caption)]
    delimiter = draw(st.sampled_from([",", ",", ";", "\t", "|"]))
    if cells == "bars" and delimiter == "|":
        delimiter = ","
    suffix = (
        draw(st.sampled_from([".csv", ".txt"]))
        if delimiter != "\t"
        else draw(st.sampled_from([".tsv", ".txt", ".csv"]))
    )
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "cp1252", "utf-16"]))
    if encoding == "cp1252" and layout.steps.get("written") == "NFD":
        encoding = "utf-8"  # it has no combining accents
    has_header = draw(st.sampled_from([True, True, True, False]))
    stem = draw(st.sampled_from(["captions", "annotations", "data", "results", "labels"]))
    layout.steps |= {
        "delimiter": delimiter,
        "encoding": encoding,
        "header": has_header,
        "cells": cells,
        "stem": stem + suffix,
    }
    with (folder / f"{stem}{suffix}").open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(records[0]), delimiter=delimiter)
        if has_header:
            writer.writeheader()
        writer.writerows(records)


def _json_table(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    records = _records(draw, folder, layout, names)
    caption = layout.steps["caption column"]
    if draw(st.booleans()):
        records = _of_lists(records, caption)
        layout.steps["cells"] = "lists"
    form = draw(st.sampled_from(["jsonl", "list", "data", "parquet"]))
    layout.steps["document"] = form
    if form == "jsonl":
        (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, records)))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(records), folder / "captions.parquet")
    else:
        (folder / "captions.json").write_text(json.dumps(records if form == "list" else {"data": records}))


def _mapping(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    written = _written(draw, layout, _place_pictures(draw, folder, layout, names))
    several = len(layout.captions[0]) > 1
    texts = {written[number]: own if several else own[0] for number, own in layout.captions.items()}
    (folder / "captions.json").write_text(json.dumps(texts))


def _conversations(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    layout.captions = {number: own[:1] for number, own in layout.captions.items()}
    written = _written(draw, layout, _place_pictures(draw, folder, layout, names))
    records = [
        {
            "id": f"x{number}",
            "image": written[number],
            "conversations": [
                {"from": "human", "value": "<image>\nWhat is this?"},
                {"from": "gpt", "value": own[0]},
            ],
        }
        for number, own in layout.captions.items()
    ]
    (folder / "train_data.json").write_text(json.dumps(records))


def _metadata(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    in_splits = draw(st.booleans())
    layout.steps["in splits"] = in_splits
    if not in_splits:
        paths = _place_pictures(draw, folder, layout, names)
        lines = [
            json.dumps({"file_name": paths[number], "text": own if len(own) > 1 else own[0]})
            for number, own in layout.captions.items()
        ]
        (folder / "metadata.jsonl").write_text("\n".join(lines))
        return
    splits = _splits(draw, layout) or dict.fromkeys(range(_NUMBER), "train")
    if layout.splits is None:
        layout.splits = dict.fromkeys(range(_NUMBER), "train")
    for word in set(splits.values()):
        members = [number for number in range(_NUMBER) if splits[number] == word]
        lines = [json.dumps({"file_name": names[number], "text": layout.captions[number]}) for number in members]
        for number in members:
            save(folder / word / names[number], number)
        (folder / word / "metadata.jsonl").write_text("\n".join(lines))


def _texts(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    way = draw(st.sampled_from([".txt", ".caption", ".json", "doubled", "folders"]))
    lines = draw(st.sampled_from(["captions", "wrapped"]))
    place = draw(st.sampled_from(["", "10_concept", "split folders"]))
    layout.steps |= {"texts": way, "lines": lines, "pictures in": place}
    if lines == "wrapped" or way == "json":
        layout.captions = {number: own[:1] for number, own in layout.captions.items()}
    splits = _splits(draw, layout) if place == "split folders" else None
    if place == "split folders" and splits is None:
        place = ""
    for number, name in enumerate(names):
        inside = f"{splits[number]}/" if splits else f"{place}/" if place else ""
        texts = layout.captions[number]
        picture = folder / inside / name
        text = picture.with_name(name.rpartition(".")[0] + (way if way.startswith(".") else ".txt"))
        if way == "doubled":
            text = picture.with_name(f"{name}.txt")
        if way == "folders":
            picture = folder / "images" / inside / name
            text = folder / "captions" / inside / f"{name.rpartition('.')[0]}.txt"
        save(picture, number)
        text.parent.mkdir(parents=True, exist_ok=True)
        if way == ".json":
            text.write_text(json.dumps({"caption": texts if len(texts) > 1 else texts[0], "score": 3}))
        elif lines == "wrapped":
            long = f"{texts[0][0].upper()}{texts[0][1:]} while the rest of the view\nis empty and quiet, and\nnothing else moves."
            layout.captions[number] = [long.replace("\n", " ")]
            text.write_text(long)
        else:
            text.write_text("\n".join(texts) + "\n")


def _coco(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    way = draw(st.sampled_from(["official", "annotations", "one file"]))
    layout.steps["coco"] = way

    def document(numbers: list[int]) -> str:
        images = [{"id": 1000 + number, "file_name": names[number]} for number in numbers]
        texts = [(number, text) for number in numbers for text in layout.captions[number]]
        notes = [{"id": at, "image_id": 1000 + number, "caption": text} for at, (number, text) in enumerate(texts)]
        return json.dumps({"images": images, "annotations": notes})

    if way == "one file":
        place = draw(st.sampled_from(["", "images", "pics"]))
        for number, name in enumerate(names):
            save(folder / place / name, number)
        (folder / "coco_captions.json").write_text(document(list(range(_NUMBER))))
        return
    layout.splits = {number: "dev" if number % 4 == 3 else "train" for number in range(_NUMBER)}
    (folder / "annotations").mkdir()
    for split, word in (("train", "train"), ("dev", "val")):
        members = [number for number, own in layout.splits.items() if own == split]
        place = f"{word}2017" if way == "official" else word
        file = f"captions_{word}2017.json" if way == "official" else f"{word}.json"
        (folder / "annotations" / file).write_text(document(members))
        for number in members:
            save(folder / place / names[number], number)


def _karpathy(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    place = draw(st.sampled_from(["", "images", "Flicker8k_Dataset"]))
    layout.splits = {number: ("train", "dev", "test")[max(number % 6 - 3, 0)] for number in range(_NUMBER)}
    words = {"train": "train", "dev": "val", "test": "test"}
    images = []
    for number, name in enumerate(names):
        save(folder / place / name, number)
        sentences = [{"raw": text, "sentid": 0} for text in layout.captions[number]]
        images.append({"filename": name, "split": words[layout.splits[number]], "sentences": sentences})
    (folder / "dataset_own.json").write_text(json.dumps({"images": images, "dataset": "own"}))


def _tars(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    way = draw(st.sampled_from(["plain", "mac", "gz"]))
    text = draw(st.sampled_from(["txt", "caption", "json"]))
    dots = draw(st.booleans())
    layout.steps |= {"tar": way, "text": text, "dots": dots}
    suffix, mode = (".tar.gz", "w:gz") if way == "gz" else (".tar", "w")
    with tarfile.open(folder / f"00000{suffix}", mode) as tar:  # type: ignore[call-overload]
        for number in range(_NUMBER):
            key = f"cam1.v2.{number:06d}" if dots else f"{number:06d}"
            own = layout.captions[number]
            content = json.dumps({"caption": own[0] if len(own) == 1 else own}) if text == "json" else "\n".join(own)
            for ending, data in (("jpg", PICTURES["JPEG"][number]), (text, content.encode())):
                if way == "mac":
                    _add(tar, f"./._{key}.{ending}", bytes(40))
                _add(tar, f"{'./' if way == 'mac' else ''}{key}.{ending}", data)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _hub(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    caption = draw(st.sampled_from(["text", "caption", "captions", "sentence"]))
    as_lists = draw(st.booleans()) or len(layout.captions[0]) > 1
    split_files = draw(st.booleans())
    layout.steps |= {"column": caption, "lists": as_lists, "split files": split_files}
    if split_files:
        layout.splits = {number: "test" if number % 4 == 3 else "train" for number in range(_NUMBER)}
    else:
        layout.splits = dict.fromkeys(range(_NUMBER), "train")
    (folder / "data").mkdir()
    for split in sorted(set(layout.splits.values())):
        members = [number for number, own in layout.splits.items() if own == split]
        rows = [
            {
                "image": {"bytes": PICTURES["JPEG"][number], "path": names[number]},
                caption: layout.captions[number] if as_lists else layout.captions[number][0],
            }
            for number in members
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / "data" / f"{split}-00000-of-00001.parquet")


def _split_tables(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    """A table for each split, all of one form."""
    place = draw(st.sampled_from(["", "images", "pics"]))
    stems = draw(st.sampled_from(["{}", "captions_{}", "my_{}", "{}_annotations"]))
    suffix = draw(st.sampled_from([".csv", ".jsonl", ".json", ".tsv"]))
    words = draw(st.sampled_from([("train", "val", "test"), ("train", "dev", "test"), ("train", "validation", "test")]))
    layout.steps |= {"pictures in": place, "stems": stems, "suffix": suffix}
    kinds = [0 if number % 6 < 4 else number % 6 - 3 for number in range(_NUMBER)]
    layout.splits = {number: ("train", "dev", "test")[kind] for number, kind in enumerate(kinds)}
    for number, name in enumerate(names):
        save(folder / place / name, number)
    for kind, word in enumerate(words):
        members = [number for number in range(_NUMBER) if kinds[number] == kind]
        records = [{"image": names[number], "caption": text} for number in members for text in layout.captions[number]]
        path = folder / f"{stems.format(word)}{suffix}"
        if suffix == ".jsonl":
            path.write_text("\n".join(map(json.dumps, records)))
        elif suffix == ".json":
            path.write_text(json.dumps(records))
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, ["image", "caption"], delimiter="\t" if suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(records)


def _two_folders(draw: Callable[..., Any], folder: Path, layout: Layout, names: list[str]) -> None:
    """The same names in two folders, which the table names."""
    half = _NUMBER // 2
    suffix = draw(st.sampled_from([".csv", ".jsonl"]))
    paths = [f"{'ab'[number >= half]}/{names[number % half]}" for number in range(_NUMBER)]
    for number, path in enumerate(paths):
        save(folder / path, number)
    gone = draw(st.booleans())  # some pictures of b/ were not copied: those of a/ are not theirs
    layout.steps["gone"] = gone
    if gone:
        layout.is_clean = False
        for number in range(_NUMBER - 4, _NUMBER):
            (folder / paths[number]).unlink()
    records = [{"image": path, "caption": text} for n, path in enumerate(paths) for text in layout.captions[n]]
    if gone:
        layout.captions = {number: own for number, own in layout.captions.items() if number < _NUMBER - 4}
    if suffix == ".jsonl":
        (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, records)))
        return
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["image", "caption"])
        writer.writeheader()
        writer.writerows(records)


_FORM_OF: dict[str, Callable[[Callable[..., Any], Path, Layout, list[str]], None]] = {
    "text table": _text_table,
    "JSON table": _json_table,
    "mapping": _mapping,
    "conversations": _conversations,
    "metadata": _metadata,
    "texts": _texts,
    "COCO": _coco,
    "Karpathy": _karpathy,
    "tars": _tars,
    "hub": _hub,
    "split tables": _split_tables,
    "two folders": _two_folders,
}
_FORMS = ["text table", "text table", "text table", "JSON table", *_FORM_OF]


def _keywords(folder: Path, names: list[str]) -> None:
    rows = [f"{name.rpartition('.')[0]}\taxial\tcolour" for name in names]
    (folder / "a_keywords.txt").write_text("\n".join(rows), encoding="utf-8")


def _classes(folder: Path, names: list[str]) -> None:
    rows = [f"{name},{THINGS[number % 8]}" for number, name in enumerate(names)]
    (folder / "a_classes.csv").write_text("\n".join(["image,class", *rows]), encoding="utf-8")


def _readme(folder: Path, names: list[str]) -> None:
    (folder / "README.md").write_text("# My pictures\n\nTaken in 2026, with captions.\n")
    (folder / "LICENSE.txt").write_text("These pictures are free to use for everybody, everywhere.\n")


def _notes(folder: Path, names: list[str]) -> None:
    (folder / "notes.txt").write_text("remember to sort these\nand to write more captions, later\n")


def _licences(folder: Path, names: list[str]) -> None:
    rows = [f"{name},CC BY,A. Author" for name in names]
    (folder / "licences.csv").write_text("\n".join(["file,licence,author", *rows]), encoding="utf-8")


def _hidden(folder: Path, names: list[str]) -> None:
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / "Thumbs.db").write_bytes(bytes(64))


def _script(folder: Path, names: list[str]) -> None:
    (folder / "make.py").write_text("print('made')\n")
    (folder / "config.json").write_text('{"size": 20, "source": "camera"}')
    (folder / "requirements.txt").write_text("pillow==12\nnumpy==2\n")


def _unused(folder: Path, names: list[str]) -> None:
    for number in range(5):
        save(folder / "extra" / f"unused {number}.jpg", 2 * _NUMBER + number)


def _masks(folder: Path, names: list[str]) -> None:
    (folder / "masks").mkdir()
    for name in names:
        (folder / "masks" / f"{name.rpartition('.')[0]}.npy").write_bytes(b"\x93NUMPY" + bytes(40))


def _copy(folder: Path, names: list[str]) -> None:
    """A table once more, as a spreadsheet's backup."""
    for path in (folder / "captions.csv", folder / "captions.jsonl"):
        if path.is_file():
            path.with_name(f"captions (copy){path.suffix}").write_bytes(path.read_bytes())


_DISTRACTIONS = {
    "unused pictures": _unused,
    "masks": _masks,
    "copy": _copy,
    "keywords": _keywords,
    "classes": _classes,
    "readme": _readme,
    "notes": _notes,
    "licences": _licences,
    "hidden": _hidden,
    "script": _script,
}


def outcome(layout: Layout, folder: Path, out: Path) -> tuple[Outcome, str]:
    """Return how a layout is read, and what was said of it. out: an empty folder for unpacked pictures."""
    try:
        options, _, notes = detect(folder)
        data = ADAPTERS[options["adapter"]].model_validate(options)
        faults = Faults(gather=True)
        rows = list(data.rows(out, faults))
        paths = paths_of(data, [row.name for row in rows], out)
    except AttendError as error:
        return "refused", str(error)
    text = "; ".join([*notes, *faults.found])
    known = {content: number for contents in PICTURES.values() for number, content in enumerate(contents)}
    captions = {known[paths[row.name].read_bytes()]: row.captions for row in rows}
    splits = {known[paths[row.name].read_bytes()]: row.split for row in rows}
    is_right = {number: sorted(own) for number, own in captions.items()} == {
        number: sorted(own) for number, own in layout.captions.items()
    } and splits == (layout.splits or dict.fromkeys(layout.captions))
    if is_right:
        return ("right, with a warning" if text else "right"), text
    first = next((n for n in layout.captions if list(captions.get(n, ())) != layout.captions[n]), None)
    detail = f"{options}; {first}: {captions.get(first or 0)} is not {layout.captions.get(first or 0)}; {splits} {text}"
    return ("wrong, with a warning" if text else "wrong"), detail
