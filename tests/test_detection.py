"""What `attend init` takes of a folder with several files, and what it says of the others."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.common.errors import AttendError
from tasks.datasets import ADAPTERS
from tasks.datasets.base import Row
from tasks.datasets.detection import detect
from tasks.datasets.faults import Faults
from tests.test_cli import Capture, attend, refused
from tests.test_init import picture

COLOURS, THINGS = ("red", "green", "blue", "grey"), ("ring", "star", "cross", "square", "circle")


def caption(number: int) -> str:
    return f"a {COLOURS[number % 4]} {THINGS[number % 5]} is seen on a wall, number {number}"


def pictures(folder: Path, numbers: range = range(24), name: str = "{:03d}.png") -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [name.format(number) for number in numbers]
    for number, file in zip(numbers, names, strict=True):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        picture(folder / file, number)
    return names


def table(path: Path, *lines: list[Any], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(lines)


def captions_csv(folder: Path, name: str = "captions.csv") -> list[str]:
    names = pictures(folder)
    table(folder / name, ["image", "caption"], *([item, caption(at)] for at, item in enumerate(names)))
    return names


def read(folder: Path, captions: Path | None = None) -> list[Row]:
    options = detect(folder, captions).options
    return list(ADAPTERS[options["adapter"]].model_validate(options).rows(Path(), Faults(gather=True)))


def texts(rows: list[Row]) -> set[str]:
    return {text for row in rows for text in row.captions}


ALL = {caption(number) for number in range(24)}
Add = Callable[[Path, list[str]], None]


def keywords(folder: Path, names: list[str]) -> None:
    table(folder / "a_keywords.txt", ["image", "keyword"], *([name, "axial"] for name in names))


def classes(folder: Path, names: list[str]) -> None:
    table(folder / "annotations.csv", ["image", "class"], *([name, THINGS[at % 5]] for at, name in enumerate(names)))


def labels_named_text(folder: Path, names: list[str]) -> None:
    table(folder / "a_labels.csv", ["image", "label", "text"], *([name, at, "dog"] for at, name in enumerate(names)))


def tags(folder: Path, names: list[str]) -> None:
    table(
        folder / "a_tags.csv", ["image", "tags"], *([name, f"{THINGS[at % 5]}, wall"] for at, name in enumerate(names))
    )


@pytest.mark.parametrize("add", [keywords, classes, labels_named_text, tags])
def test_the_file_that_looks_like_captions_is_read_and_the_other_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, add: Add
) -> None:
    add(tmp_path / "photos", captions_csv(tmp_path / "photos"))
    assert texts(read(tmp_path / "photos")) == ALL
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    code, out, err = attend(monkeypatch, capsys, "init", "photos", "--weights", "w.safetensors")
    (other,) = {path.name for path in (tmp_path / "photos").iterdir() if path.suffix != ".png"} - {"captions.csv"}
    assert code == 0 and re.search(rf"not read: {other}: .*(one word|2 words) each", out), out + err


def test_two_files_that_look_alike_are_listed_and_one_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder = tmp_path / "photos"
    names = captions_csv(folder, "captions_en.csv")
    others = [[name, f"il y a {caption(at)}"] for at, name in enumerate(names)]
    table(folder / "captions_fr.csv", ["image", "caption"], *others)
    monkeypatch.chdir(tmp_path)
    line = refused(monkeypatch, capsys, "init", "photos")
    assert "several files look like captions" in line and "--captions FILE" in line
    assert "captions_en.csv (24 pictures" in line and "captions_fr.csv (24 pictures" in line
    assert texts(read(folder, folder / "captions_fr.csv")) == {row[1] for row in others}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_for_each_split_is_one_data_set(tmp_path: Path, form: str) -> None:
    names = pictures(tmp_path / "images")
    for file, part in (("my_train", names[:14]), ("my_val", names[14:20]), ("my_test", names[20:])):
        rows = [[name, caption(int(name[:3]))] for name in part]
        path = tmp_path / f"{file}.{form}"
        if form == "csv":
            table(path, ["image", "caption"], *rows)
        else:
            path.write_text("\n".join(json.dumps({"image": name, "caption": text}) for name, text in rows))
    found = read(tmp_path)
    assert texts(found) == ALL
    assert [sum(row.split == split for row in found) for split in ("train", "dev", "test")] == [14, 6, 4]


def test_files_in_folders_for_each_split_are_one_data_set_also_without_header_and_endings(tmp_path: Path) -> None:
    """ROCO's layout: keywords beside the captions, and the first line is a caption."""
    for split, numbers in (("train", range(14)), ("validation", range(14, 20)), ("test", range(20, 24))):
        folder = tmp_path / "data" / split / "radiology"
        names = pictures(folder / "images", numbers, "ROCO_{:05d}.png")
        rows = [[name.removesuffix(".png"), f" {caption(at)}"] for at, name in zip(numbers, names, strict=True)]
        table(folder / "captions.txt", *rows, delimiter="\t")
        table(folder / "keywords.txt", *([row[0], "axial", "ring"] for row in rows), delimiter="\t")
        (folder / "images" / names[0]).unlink()  # could not be downloaded
    found = read(tmp_path / "data")
    assert texts(found) == ALL - {caption(at) for at in (0, 14, 20)}
    assert [sum(row.split == split for row in found) for split in ("train", "dev", "test")] == [13, 5, 3]


@pytest.mark.parametrize("write", [json.dumps, str], ids=["JSON", "Python"])
def test_lists_in_cells_are_captions_each(tmp_path: Path, write: Callable[[list[str]], str]) -> None:
    names = pictures(tmp_path)
    rows = [[name, write([caption(at), f'one "{at}" more'])] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["image", "caption"], *rows)
    found = read(tmp_path)
    assert all(len(row.captions) == 2 for row in found) and texts(found) >= ALL


def test_bars_between_captions_divide_them_and_codes_stay(tmp_path: Path) -> None:
    names = pictures(tmp_path / "one")
    rows = [[name, f"{caption(at)} || and one more of it"] for at, name in enumerate(names)]
    table(tmp_path / "one" / "captions.csv", ["image", "caption"], *rows)
    assert texts(read(tmp_path / "one")) == ALL | {"and one more of it"}
    codes = [[name, f"O || E | {'O || E' if at % 2 else 'E'}"] for at, name in enumerate(pictures(tmp_path / "two"))]
    table(tmp_path / "two" / "captions.csv", ["image", "caption"], *codes)
    assert texts(read(tmp_path / "two")) == {code for _, code in codes}


@pytest.mark.parametrize("name", ["train/{:03d}.png", "train_images/{:03d}.png", "train2017/{:03d}.png"])
def test_folders_in_the_names_are_splits(tmp_path: Path, name: str) -> None:
    names = pictures(tmp_path, range(16), name)
    names += pictures(tmp_path, range(16, 24), name.replace("train", "test"))
    lines = [json.dumps({"file_name": item, "text": caption(at)}) for at, item in enumerate(names)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    found = read(tmp_path)
    assert [sum(row.split == split for row in found) for split in ("train", "test")] == [16, 8]


def test_a_column_is_one_of_splits_by_its_values(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    rows = [[name, caption(at), "eval" if at % 4 == 0 else "train"] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["image", "caption", "partition"], *rows)
    assert [sum(row.split == split for row in read(tmp_path)) for split in ("train", "dev")] == [18, 6]
    table(tmp_path / "captions.csv", ["image", "caption", "fold"], *([*row[:2], at % 5] for at, row in enumerate(rows)))
    assert {row.split for row in read(tmp_path)} == {None}
    (note,) = detect(tmp_path).notes
    assert "its column fold has values that are no splits (train, dev, test): it is not used" in note


@pytest.mark.parametrize(
    "document",
    [
        dict,
        lambda pairs: {name: [text] for name, text in pairs},
        lambda pairs: {"data": [{"image": name, "caption": text} for name, text in pairs]},
    ],
    ids=["names", "names and lists", "an object around"],
)
def test_json_objects_of_names_and_captions(tmp_path: Path, document: Callable[[list[tuple[str, str]]], Any]) -> None:
    pairs = [(name, caption(at)) for at, name in enumerate(pictures(tmp_path / "images"))]
    (tmp_path / "captions.json").write_text(json.dumps(document(pairs)))
    assert texts(read(tmp_path)) == ALL


def test_the_same_name_in_two_folders_is_refused(tmp_path: Path) -> None:
    names = pictures(tmp_path / "a")
    pictures(tmp_path / "b")
    table(tmp_path / "captions.csv", ["image", "caption"], *([name, caption(at)] for at, name in enumerate(names)))
    with pytest.raises(
        AttendError, match=r"000\.png may be any of 2 pictures in .*: a/000\.png, b/000\.png: name it with its folder"
    ):
        detect(tmp_path)
    rows = [[f"{'ab'[at % 2]}/{name}", caption(at)] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["image", "caption"], *rows)
    assert {row.name for row in read(tmp_path)} == {row[0] for row in rows}


def test_a_comma_in_a_caption_is_no_delimiter(tmp_path: Path) -> None:
    rows = [[name, f"{caption(at)}, and more"] for at, name in enumerate(pictures(tmp_path))]
    path = tmp_path / "captions.txt"
    path.write_text("\n".join("\t".join(row).replace(", number", " number") for row in rows))
    assert all(text.endswith(", and more") for text in texts(read(tmp_path))) and len(read(tmp_path)) == 24
