"""What `attend init` takes of a folder with several files, and what it says of the others."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.registered.caption_rows import SCHEMA
from tasks.common.errors import AttendError
from tasks.data.caption_text import markup, repeated
from tasks.datasets import ADAPTERS
from tasks.datasets.base import WORKSPACE_FILE, Row
from tasks.datasets.detection import detect
from tasks.datasets.faults import Faults
from tasks.datasets.odd_texts import odd_texts
from tasks.datasets.webdataset import tar_files
from tests.cli import Capture, attend, refused
from tests.photographs import picture, tar_of

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


def test_a_workspace_in_the_folder_is_no_data(tmp_path: Path) -> None:
    names = captions_csv(tmp_path)
    inner = tmp_path / "workspace" / "artifacts" / "ingest" / "0"
    inner.mkdir(parents=True)
    (tmp_path / "workspace" / WORKSPACE_FILE).touch()
    captions = [f"a longer caption that {caption(number)}" for number in range(24)]
    pq.write_table(pa.table({"image": names, "caption": captions}), inner / "manifest.parquet")
    (inner / "ledger.json").write_text(json.dumps([{"image": name, "caption": "a wall"} for name in names]))
    assert texts(read(tmp_path)) == ALL
    assert not any("workspace" in line for line in detect(tmp_path).notes)


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


@pytest.mark.parametrize("files", [("кошки", "собаки"), ("captions (1)", "captions-1-"), ("--", "captions-1")])
def test_files_whose_names_become_the_same_source_are_distinguished(tmp_path: Path, files: tuple[str, str]) -> None:
    names = pictures(tmp_path)
    for file, numbers in zip(files, (range(12), range(12, 24)), strict=True):
        table(tmp_path / f"{file}.csv", ["image", "caption"], *([names[at], caption(at)] for at in numbers))
    assert texts(read(tmp_path)) == ALL and len(detect(tmp_path).options["sources"]) == 2


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


@pytest.mark.parametrize(
    "write",
    [json.dumps, str, lambda texts: str([{"tokens": text.split(), "raw": text, "sentid": 7} for text in texts])],
    ids=["JSON", "Python", "objects"],
)
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


def test_a_folder_of_all_names_that_is_named_as_a_split_is_not_noted(tmp_path: Path) -> None:
    names = pictures(tmp_path / "photos")
    table(
        tmp_path / "c.csv", ["image", "caption"], *([f"/test/photos/{name}", caption(int(name[:3]))] for name in names)
    )
    assert not detect(tmp_path).notes and {row.split for row in read(tmp_path)} == {None}


@pytest.mark.parametrize("form", ["names", "names of another machine", "texts", "tables", "parquet"])
def test_a_folder_above_those_of_splits_says_no_split(tmp_path: Path, form: str) -> None:
    rows = []
    for split, numbers in (("train", range(14)), ("val", range(14, 20)), ("test", range(20, 24))):
        folder = tmp_path / "training_data" / split
        names = pictures(folder, numbers)
        rows += [[f"/home/me/training/birds/{split}/{name}", caption(int(name[:3]))] for name in names]
        own = [[name, caption(int(name[:3]))] for name in names]
        if form == "texts":
            for name, text in own:
                (folder / name).with_suffix(".txt").write_text(text)
        elif form == "tables":
            table(folder / "captions.csv", ["image", "caption"], *own)
        elif form == "parquet":
            records = [{"image": {"bytes": (folder / name).read_bytes()}, "caption": text} for name, text in own]
            pq.write_table(pa.Table.from_pylist(records), folder / "0.parquet")
            for name in names:
                (folder / name).unlink()
    if form == "names":
        rows = [[name.replace("/home/me/training/birds", "training_data"), text] for name, text in rows]
    if form.startswith("names"):
        table(tmp_path / "captions.csv", ["image", "caption"], *rows)
    options = detect(tmp_path).options
    found = list(ADAPTERS[options["adapter"]].model_validate(options).rows(tmp_path / "out"))
    assert [sum(row.split == split for row in found) for split in ("train", "dev", "test")] == [14, 6, 4]


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


@pytest.mark.parametrize("is_there", [True, False], ids=["both folders", "one folder"])
def test_a_column_of_the_folders_of_pictures_is_noted(tmp_path: Path, is_there: bool) -> None:
    names = pictures(tmp_path / "birds", range(12))
    others = pictures(tmp_path / "boats", range(12, 24)) if is_there else names[:6]
    rows = [[folder, name, f"{folder} {caption(at)}"] for folder in ("birds", "boats") for at, name in enumerate(names)]
    rows += [["boats", name, f"boats {caption(at)}"] for at, name in enumerate(others)]
    table(tmp_path / "captions.csv", ["folder", "file", "caption"], *rows)
    (note,) = detect(tmp_path).notes
    assert "its column folder says the folders of pictures and is not used: " in note
    assert (
        "the picture is in another, such as birds/000.png for boats and 000.png: write both into column file: boats/000.png"
        in note
    )


def test_a_comma_in_a_caption_is_no_delimiter(tmp_path: Path) -> None:
    rows = [[name, f"{caption(at)}, and more"] for at, name in enumerate(pictures(tmp_path))]
    path = tmp_path / "captions.txt"
    path.write_text("\n".join("\t".join(row).replace(", number", " number") for row in rows))
    assert all(text.endswith(", and more") for text in texts(read(tmp_path))) and len(read(tmp_path)) == 24


def numbered(folder: Path) -> list[int]:
    """Save pictures that are named by numbers, and return another order of these."""
    pictures(folder, name="{}.png")
    return [(7 * at + 5) % 24 for at in range(24)]


@pytest.mark.parametrize(
    "columns",
    [
        ("id", "image_id"),
        ("caption_id", "photo"),
        ("index", "img"),
        ("Unnamed: 0", "filename"),
        ("sentid", "Bildnummer"),
    ],
)
def test_an_index_that_happens_to_name_pictures_is_not_their_column(tmp_path: Path, columns: tuple[str, str]) -> None:
    order = numbered(tmp_path)
    table(tmp_path / "captions.csv", [*columns, "caption"], *([at, order[at], caption(order[at])] for at in range(24)))
    assert {row.name: row.captions for row in read(tmp_path)} == {f"{at}.png": (caption(at),) for at in range(24)}


def test_names_without_an_ending_come_before_numbers_of_rows(tmp_path: Path) -> None:
    names = pictures(tmp_path, name="p{}.png")
    rows = [[at, name.removesuffix(".png"), caption(23 - at)] for at, name in enumerate(reversed(names))]
    table(tmp_path / "captions.csv", ["", "name", "caption"], *rows)
    assert {row.name: row.captions[0] for row in read(tmp_path)} == {name: caption(at) for at, name in enumerate(names)}


@pytest.mark.parametrize(("ending", "column"), [(".jpeg", "id"), (".tif", "year")])
def test_numbers_do_not_name_pictures_where_names_have_another_ending(tmp_path: Path, ending: str, column: str) -> None:
    pictures(tmp_path / "images", name="img_{:03d}.png")
    rows = [[(7 * at + 5) % 24, f"img_{at:03d}{ending}", caption(at)] for at in range(24)]
    table(tmp_path / "captions.csv", [column, "image", "caption"], *rows)
    assert {row.name: row.captions for row in read(tmp_path)} == {
        f"img_{at:03d}.png": (caption(at),) for at in range(24)
    }
    (note,) = detect(tmp_path).notes
    assert f"no picture has the ending that its column image says: img_000{ending} is read as img_000.png" in note


def test_numbers_that_name_pictures_are_noted_where_another_column_has_names_of_files(tmp_path: Path) -> None:
    order = numbered(tmp_path)
    rows = [[order[at], f"scan_{at}.png", caption(order[at])] for at in range(24)]
    table(tmp_path / "captions.csv", ["id", "scan", "caption"], *rows)
    (note,) = detect(tmp_path).notes
    assert "its column id (5) names the pictures; so may scan (scan_0.png): for another, set data.image_column" in note


def test_a_column_that_counts_rows_is_not_taken_where_another_names_missing_files(tmp_path: Path) -> None:
    pictures(tmp_path, name="{}.png")
    rows = [[at, f"P{at:07d}.JPG", caption(at)] for at in range(24)]
    table(tmp_path / "captions.csv", ["", "filename", "caption"], *rows)
    with pytest.raises(
        AttendError, match=r"its column filename names pictures that are not in .* \(P0000000\.JPG\), and"
    ):
        detect(tmp_path)


def test_the_prefix_of_uploaded_files_does_not_matter(tmp_path: Path) -> None:
    pictures(tmp_path, name="IMG_{}.png")
    rows = [[at + 1, f"/data/upload/1/1a2b3c4d-IMG_{23 - at}.png", caption(23 - at)] for at in range(24)]
    table(tmp_path / "project.csv", ["id", "image", "caption"], *rows)
    assert {row.name: row.captions for row in read(tmp_path)} == {
        f"IMG_{number}.png": (caption(number),) for number in range(24)
    }


def test_numbers_of_pictures_are_read_where_another_column_is_empty(tmp_path: Path) -> None:
    pictures(tmp_path, name="{}.png")
    table(tmp_path / "captions.csv", ["id", "caption", "notes"], *([at, caption(at), ""] for at in range(24)))
    assert texts(read(tmp_path)) == ALL


def test_several_pictures_with_captions_in_a_row_are_refused(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    rows = [[names[at], caption(at), names[at + 1], caption(at + 1)] for at in range(0, 24, 2)]
    table(tmp_path / "form.csv", ["photo1", "caption1", "photo2", "caption2"], *rows)
    with pytest.raises(
        AttendError, match="its columns photo1 and photo2 name pictures, and caption1 and caption2 hold"
    ):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text, _at: f"{text} für Gäste".encode().decode("cp1252"), r"broken letters, such as '.*fÃ¼r.*für"),
        (lambda text, at: f"[/EN#{at}/people a man] and {text}", r"have marks such as '\[/EN#0/people'"),
        (lambda text, at: f"{text} https://t.co/{at}", "have marks such as 'https://t.co/0'"),
        (lambda text, at: text if at % 3 else f"DSC{at:04d}", "8 of 24 texts are codes, such as 'DSC0000': remove"),
        (
            lambda _text, at: f"a photo of a {THINGS[at // 12]}",
            "are only 2 different ones, such as 'a photo of a ring': ",
        ),
        (lambda text, _at: f"'{text}'", "are in quotation marks, such as 'a red ring"),
        (lambda text, _at: f"b'{text}'", "are in quotation marks, such as b'a red ring"),
        (lambda text, _at: f"{text} f?r", "have broken letters, such as '.* f[?]r': save"),
        (lambda text, _at: f"{text} f\ufffdr", "have broken letters, such as '.* f\ufffdr': save"),
        (lambda text, _at: rf"{text} f\u00fcr", r"have broken letters, such as '.* f\\\\u00fcr': save"),
        (lambda text, at: f"{at}.jpg: {text}", "have marks such as '0.jpg'"),
        (lambda text, at: f"{text} #{THINGS[at % 5]} #wall", "have marks such as '#ring'"),
        (lambda text, at: f"{text}\t0.{at}", r"have marks such as '\\t0.0'"),
        (lambda text, at: f"{at % 3}\t{text}", "begin with numbers or marks, such as '0'"),
        (lambda text, at: f"#{at % 3} {text}", "begin with numbers or marks, such as '#0'"),
        (lambda text, _at: f"{text} / {text}", "may be several captions, or languages, with '/' between them"),
        (lambda text, at: text if at % 3 else "SONY DSC", "8 of 24 texts are 'SONY DSC'"),
        (lambda text, at: f"Figure {at}: {text}", "begin with 'Figure #:': this is part of the captions"),
        (lambda text, _at: f"{text[:12]}...", r"end in dots, such as 'a .*\.\.\.': they may be cut off"),
        (lambda text, _at: f"Annotator 0: {text}", "begin with 'Annotator #:': this is part of the captions"),
        (lambda text, at: f"{at % 3 + 1}. {text}", "begin with numbers or marks, such as '1.'"),
        (
            lambda _text, at: f"sky, red tree, {THINGS[at % 5]}, {at} dogs",
            "24 of 24 texts are lists, such as 'sky, red",
        ),
    ],
)
def test_odd_texts_are_read_as_they_are_and_noted(tmp_path: Path, change: Callable[[str, int], str], said: str) -> None:
    names = pictures(tmp_path)
    given = [change(caption(at), at) for at in range(24)]
    table(tmp_path / "captions.csv", ["image", "caption"], *map(list, zip(names, given, strict=True)))
    (note,) = detect(tmp_path).notes
    assert re.search(said, note) and texts(read(tmp_path)) == set(given)


def test_a_caption_that_stands_for_none_is_noted() -> None:
    """As pandas, Excel and people write it."""
    none = ["nan", "N/A", "#N/A", "NA", "null", r"\N", "-", "???", "ditto", "TODO", "tbd", "#REF!"]
    assert list(markup([*none, "my nan sits here, n/a", "todo list", "a pan"])) == none


def test_captions_that_a_picture_has_twice_are_noted_if_they_are_many() -> None:
    rows = [
        Row(f"{at}.png", (caption(at), "a wall", "a wall")[: 3 if at else 1], None, f"a.csv:{at}") for at in range(4)
    ]
    (note,) = repeated(rows)
    assert note.startswith("the same caption again for a picture: 3 captions, the first that of 1.png (a.csv:1): each")
    assert not list(repeated([*rows[:2], *(Row(f"{at}.png", (caption(at),), None, "") for at in range(9, 29))]))


def test_files_that_were_set_aside_are_noted(tmp_path: Path) -> None:
    names = captions_csv(tmp_path)
    others = pictures(tmp_path, range(30, 40))
    table(tmp_path / "rejected.csv", ["image", "caption"], *([item, caption(at)] for at, item in enumerate(others)))
    (note,) = detect(tmp_path).notes
    assert (
        f"{tmp_path}: rejected is read too: move it out of the folder" in note
        and len(read(tmp_path)) == len(names) + 10
    )


def test_captions_that_a_model_wrote_are_not_preferred_to_those_of_people(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    rows = [[name, "", f"{caption(at)} in a photograph", -1, 0.5, "", "", "m/1"] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", [*SCHEMA.names], *rows)
    (note,) = detect(tmp_path).notes
    assert note.endswith(
        "captions.csv: was written by `attend caption`: use it only if people have corrected its captions"
    )
    for at, name in enumerate(names):
        (tmp_path / name).with_suffix(".txt").write_text(caption(at))
    assert texts(read(tmp_path)) == ALL


def test_a_text_in_parts_is_one_caption(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    parts = [[caption(at)[:9], {"type": "bold", "text": caption(at)[9:]}] for at in range(24)]
    messages = [{"photo": name, "text": part} for name, part in zip(names, parts, strict=True)]
    (tmp_path / "result.json").write_text(json.dumps({"name": "a chat", "messages": messages}))
    assert texts(read(tmp_path)) == ALL


@pytest.mark.parametrize(
    ("columns", "right"),
    [
        (("Title", "Caption-Abstract"), 1),
        (("Title", "Image Alt Text"), 1),
        (("caption", "Alt Text"), 1),
        (("alt", "title"), 0),
        (("prompt", "negative_prompt"), 0),
    ],
)
def test_the_column_of_captions_is_told_by_name_and_by_variety(
    tmp_path: Path, columns: tuple[str, str], right: int
) -> None:
    names = pictures(tmp_path)
    rows = [[name, *[f"by photographer {at % 2}"] * 2] for at, name in enumerate(names)]
    for at, row in enumerate(rows):
        row[1 + right] = caption(at)
    table(tmp_path / "export.csv", ["image", *columns], *rows)
    assert texts(read(tmp_path)) == ALL


def test_two_columns_that_may_name_the_pictures_are_noted(tmp_path: Path) -> None:
    order = numbered(tmp_path)
    rows = [[f"{at}.png", f"{order[at]}.png", caption(at)] for at in range(24)]
    table(tmp_path / "captions.csv", ["left", "right", "caption"], *rows)
    (note,) = detect(tmp_path).notes
    assert "its column left (0.png) names the pictures; so may right (5.png)" in note


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        (
            "100CANON/{:03d}.png",
            ["101CANON/{:03d}.png"],
            "of their picture: 100CANON/000.png is read from 101CANON/000.png",
        ),
        ("{:03d}.png", ["masks/{:03d}.png", "images/{:03d}.jpg"], "000.png is read from masks/000.png, not images/000"),
        ("photos/{:03d}.png", ["photos/{:03d}.png", "masks/{:03d}.jpg"], ""),
        ("{:03d}.png", ["photos/{:03d}.png", "thumbs/{:03d}.jpg"], ""),
    ],
)
def test_pictures_of_another_folder_than_the_names_say_are_noted(
    tmp_path: Path, name: str, there: list[str], said: str
) -> None:
    for form in there:
        pictures(tmp_path, name=form)
    table(tmp_path / "captions.csv", ["image", "caption"], *([name.format(at), caption(at)] for at in range(24)))
    notes = detect(tmp_path).notes
    assert len(notes) == bool(said) and all("24 of 24" in note and said in note for note in notes)


@pytest.mark.parametrize("form", ["{}", "{}.0", "{:06d}"])
def test_numbers_may_have_lost_their_zeros(tmp_path: Path, form: str) -> None:
    pictures(tmp_path, name="COCO_train2014_{:012d}.png")
    table(tmp_path / "captions.csv", ["image_id", "caption"], *([form.format(at), caption(at)] for at in range(24)))
    assert {row.name[-7:]: row.captions for row in read(tmp_path)} == {
        f"{at:03d}.png": (caption(at),) for at in range(24)
    }


def test_numbers_of_rows_do_not_name_pictures_that_happen_to_end_in_them(tmp_path: Path) -> None:
    pictures(tmp_path, name="{}.png")
    for at, path in enumerate(sorted(tmp_path.glob("*.png"))):
        path.rename(tmp_path / f"{('market', 'garden')[at % 2]}-{at}.png")
    table(tmp_path / "comments.csv", ["comment_ID", "comment"], *([at, caption(at)] for at in range(24)))
    with pytest.raises(AttendError, match="none of its columns"):
        detect(tmp_path)


@pytest.mark.parametrize("each", ["https://farm{}.example.org/65535/", "s3://photos/{}/"])
def test_addresses_name_the_pictures_that_were_downloaded(tmp_path: Path, each: str) -> None:
    names = pictures(tmp_path, name="a{}.png")
    rows = [[each.format(at) + f"{name}?w=300#x", caption(at)] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["photo_url", "caption"], *rows)
    assert {row.name: row.captions for row in read(tmp_path)} == {name: (caption(at),) for at, name in enumerate(names)}


def test_two_addresses_that_end_alike_name_no_picture_by_their_end_alone(tmp_path: Path) -> None:
    names = pictures(tmp_path, name="a{}.png")
    rows = [[f"https://example.org/{folder}/{name}", caption(0)] for name in names for folder in "xy"]
    table(tmp_path / "captions.csv", ["photo_url", "caption"], *rows)
    with pytest.raises(AttendError, match="none of its columns"):
        detect(tmp_path)


@pytest.mark.parametrize("between", [", ", ";", "|", " "])
def test_several_addresses_in_a_cell_name_no_picture(tmp_path: Path, between: str) -> None:
    names = pictures(tmp_path, name="a{}.png")
    cells = [f"https://x.org/{name}{between}https://x.org/b{name}" for name in names]
    table(tmp_path / "captions.csv", ["images", "caption"], *([cell, caption(at)] for at, cell in enumerate(cells)))
    pictures(tmp_path, name="ba{}.png")
    with pytest.raises(AttendError, match=r"its column images names several pictures in one row .*: write a row for"):
        detect(tmp_path)


def test_several_pictures_in_a_later_row_are_refused(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    rows = [{"images": names[at : at + 1], "caption": caption(at)} for at in range(23)]
    (tmp_path / "c.json").write_text(json.dumps([*rows, {"images": names[22:24], "caption": caption(23)}]))
    with pytest.raises(AttendError, match=r"its column images names several pictures in one row \(\['022\.png', '023"):
        detect(tmp_path)


def test_many_blanks_in_a_cell_are_read(tmp_path: Path) -> None:
    """An expression that is quadratic in them would take minutes."""
    long = f"a{' ' * 100_000}b"
    rows = [[name, long if at == 0 else caption(at)] for at, name in enumerate(pictures(tmp_path))]
    table(tmp_path / "captions.csv", ["image", "caption"], *rows)
    assert ALL - {caption(0)} <= texts(read(tmp_path))


@pytest.mark.parametrize("header", [[["attachments", "caption"]], []])
def test_an_address_after_a_name_does_not_matter(tmp_path: Path, header: list[list[str]]) -> None:
    names = pictures(tmp_path, name="a{}.png")
    rows = [[f"{name} (https://x.org/v3/{at}/abc)", caption(at)] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", *header, *rows)
    assert {row.name: row.captions for row in read(tmp_path)} == {name: (caption(at),) for at, name in enumerate(names)}


def test_the_address_of_a_page_names_no_picture(tmp_path: Path) -> None:
    pictures(tmp_path, name="{}.png")
    rows = [[f"https://example.org/{at}", caption(at)] for at in range(24)]
    table(tmp_path / "captions.csv", ["url", "caption"], *rows)
    with pytest.raises(AttendError, match="none of its columns"):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        (
            "Status",
            ("approved", "rejected"),
            "(approved 88%, rejected 12%) is not used: remove the rows that are not to",
        ),
        ("answer", ("accept", "reject"), "(accept 88%, reject 12%) is not used"),
        ("isCorrect", ("1", "0"), "(1 88%, 0 12%) is not used"),
        ("is_precanned", ("False", "True"), "(False 88%, True 12%) is not used"),
        ("decision", ("retain", "drop"), "(retain 88%, drop 12%) is not used"),
        ("skip", ("", "x"), "is filled in 12% of the rows and not used: remove the rows that are not to"),
        (
            "task",
            ("caption", "question"),
            "(caption 88%, question 12%) is not used: remove the rows that are no captions",
        ),
        ("sprache", ("English", "German"), "says that captions are in several languages (English 88%, German 12%)"),
        ("locale of it", ("en-GB", "pt_br"), "says that captions are in several languages (en-GB 88%, pt_br 12%)"),
        ("iso", ("eng", "deu"), "says that captions are in several languages (eng 88%, deu 12%)"),
        ("use for", ("train", "later"), "(train 88%, later 12%)"),
        (
            "category",
            ("train", "train"),
            "has only 'train', which is not read as a split: if it is, set data.split_column",
        ),
        ("status", ("valid", "valid"), "has only 'valid', which is not read as a split"),
    ],
)
def test_columns_that_say_of_what_kind_rows_are_are_noted(
    tmp_path: Path, column: str, values: tuple[str, str], said: str
) -> None:
    names = pictures(tmp_path)
    rows = [[name, caption(at), values[at > 20]] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["image", "caption", column], *rows)
    (note,) = detect(tmp_path).notes
    assert f"its column {column} {said}" in note and {row.split for row in read(tmp_path)} == {None}


@pytest.mark.parametrize(
    ("kinds", "said"), [(("human", "blip"), "(blip, human)"), (("1", "2"), ""), (("a1", "a2"), "")]
)
def test_a_column_that_tells_the_kinds_of_texts_of_a_picture_is_noted(
    tmp_path: Path, kinds: tuple[str, str], said: str
) -> None:
    rows = [[name, kind, caption(at)] for name in pictures(tmp_path) for at, kind in enumerate(kinds)]
    table(
        tmp_path / "captions.csv", ["image", "by", "caption"], *([*row[:2], caption(at)] for at, row in enumerate(rows))
    )
    notes = [note for note in detect(tmp_path).notes if "column by" in note]
    table(
        tmp_path / "captions.csv",
        ["image", "annotator", "caption"],
        *([*row[:2], caption(at)] for at, row in enumerate(rows)),
    )
    assert not detect(tmp_path).notes  # people are no kinds of texts
    assert [f"its column by says of what kind each text is {said}: all are" in note for note in notes] == [True] * bool(
        said
    )


def test_boxes_of_captions_are_noted(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    rows = [{"image": names[at // 2], "caption": caption(at), "bbox": [at, 1, 9, 9]} for at in range(48)]
    own = "is not used: captions of parts of pictures are read as captions of whole pictures"
    (tmp_path / "regions.json").write_text(json.dumps(rows))
    assert any(f"its column bbox {own}" in note for note in detect(tmp_path).notes)
    inner = [{"image": row["image"], "captions": [{"caption": row["caption"], "bbox": row["bbox"]}]} for row in rows]
    (tmp_path / "regions.json").write_text(json.dumps(inner))
    assert any(f"its field captions.bbox {own}" in note for note in detect(tmp_path).notes)


@pytest.mark.parametrize(
    "fields",
    [
        lambda at: {"objects": [{"bbox": [at, 1, 9, 9], "label": "dog"}]},
        lambda at: {"segmentation": f"masks/mask{at}.png"},
        lambda at: {"model_revision": "v2" if at % 3 else "v1"},
        lambda at: {"is_primary": at % 2 == 0},
        lambda at: {"position": ("first", "second")[at % 2]},
        lambda at: {"region": ("Bavaria", "Tyrol")[at // 2 % 2]},
    ],
)
def test_good_data_with_further_fields_are_not_noted(tmp_path: Path, fields: Callable[[int], dict[str, Any]]) -> None:
    names = pictures(tmp_path)
    each = 1 if {"objects", "segmentation"} & fields(0).keys() else 2
    rows = [{"image": names[at // each], "caption": caption(at), **fields(at)} for at in range(len(names) * each)]
    (tmp_path / "captions.json").write_text(json.dumps(rows))
    assert not detect(tmp_path).notes


@pytest.mark.parametrize(
    "text",
    [
        "\u4e00\u4e2a\u7537\u4eba,\u7a7f\u7740\u7ea2\u8272,\u9a91\u7740\u8f66,\u5728\u8857\u4e0a{}",
        "\u8fd9\u662f\u4ec0\u4e48?\u4e00\u53ea\u72d7\u5728\u8dd1{}",
        "Wer ist das?Ein Mann, der {} Hunde sieht",
        "a sign that says [and/or] {} times",
        "{}" + "\u4e00" * 5000,  # long texts take no long time either
    ],
)
def test_ordinary_texts_are_not_noted(text: str) -> None:
    assert not [*odd_texts([text.format(number) for number in range(30)])]


def test_a_column_that_says_when_rows_were_deleted_is_noted(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    rows = [[name, caption(at), "" if at > 3 else "2024-03-01"] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["image", "caption", "deleted_at"], *rows)
    (note,) = detect(tmp_path).notes
    assert "its column deleted_at is filled in 17% of the rows and not used" in note


def test_a_column_that_counts_rows_is_noted_where_it_names_pictures(tmp_path: Path) -> None:
    pictures(tmp_path, name="{}.png")
    table(tmp_path / "captions.csv", ["", "caption"], *([at, caption(at)] for at in range(24)))
    (note,) = detect(tmp_path).notes
    assert "its column  counts rows, and is read as the numbers of pictures: 0 is 0.png" in note


@pytest.mark.parametrize(
    "text", ["2024-03-01T08:00", "3/5/2023 10:{} AM", "Creative Commons BY-SA 4.0", "texts/my text 1.txt"]
)
def test_dates_file_names_and_texts_that_are_all_the_same_are_no_captions(tmp_path: Path, text: str) -> None:
    rows = [[name, text.format(at + 10)] for at, name in enumerate(pictures(tmp_path))]
    table(tmp_path / "log.csv", ["image", "text"], *rows)
    with pytest.raises(AttendError, match="no column of texts that could be captions; of text, the likeliest, one is"):
        detect(tmp_path)


@pytest.mark.parametrize("text", ["{}人の子供が公園で犬と遊んでいる", "เด็กผู้ชาย{}คนกำลังเล่นอยู่ในสวน"])
def test_captions_with_numbers_and_without_spaces_are_no_dates(tmp_path: Path, text: str) -> None:
    said = {
        name: [text.format(at), text.format(at + 50), text.format(at + 100)]
        for at, name in enumerate(pictures(tmp_path))
    }
    table(tmp_path / "captions.csv", ["image", "caption"], *([name, own[0]] for name, own in said.items()))
    assert [list(row.captions) for row in read(tmp_path)] == [own[:1] for own in said.values()]
    (tmp_path / "captions.csv").unlink()
    (tmp_path / "captions.json").write_text(json.dumps([{"image": name, "caption": own} for name, own in said.items()]))
    assert [list(row.captions) for row in read(tmp_path)] == list(said.values())
    assert not detect(tmp_path).notes


@pytest.mark.parametrize("none", [[], "\u2026"])
def test_captions_that_are_still_to_be_written_are_no_numbers(tmp_path: Path, none: Any) -> None:
    records = [
        {"image": name, "caption": none if at > 1 else caption(at)} for at, name in enumerate(pictures(tmp_path))
    ]
    (tmp_path / "captions.json").write_text(json.dumps(records))
    assert texts(read(tmp_path)) - {none or None} == {caption(0), caption(1)}


@pytest.mark.parametrize("folder", ["data", "metadata", "annotations/v2"])
def test_captions_may_be_in_a_folder_without_pictures(tmp_path: Path, folder: str) -> None:
    names = pictures(tmp_path / "images")
    (tmp_path / folder).mkdir(parents=True)
    table(tmp_path / folder / "c.csv", ["image", "caption"], *([name, caption(at)] for at, name in enumerate(names)))
    assert texts(read(tmp_path)) == ALL


def test_each_split_names_the_pictures_of_its_folder(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("dev", 8), ("test", 16)):
        names = pictures(tmp_path / "images" / split, range(8))
        rows = [[name, caption(first + at)] for at, name in enumerate(names)]
        table(tmp_path / f"captions_{split}.csv", ["image", "caption"], *rows)
    options = detect(tmp_path).options
    assert {source["images"] for source in options["sources"].values()} == {
        tmp_path / "images" / split for split in ("train", "dev", "test")
    }


def text_files(folder: Path, names: list[str], content: Callable[[int], str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for at, name in enumerate(names):
        (folder / f"{Path(name).stem}.txt").write_text(content(at))


def labels(at: int) -> str:
    return f"{at % 3} 0.51 0.3307 0.2 0.4206\n1 0.2 0.3 0.1 0.1\n"


def test_labels_of_objects_are_no_captions(tmp_path: Path) -> None:
    names = pictures(tmp_path / "images")
    text_files(tmp_path / "labels", names, labels)
    with pytest.raises(AttendError, match="holds numbers, not captions, as others of its kind do"):
        detect(tmp_path)
    text_files(tmp_path / "texts", names, caption)
    assert texts(read(tmp_path)) == ALL
    assert "labels/*.txt: 24 files, such as 000.txt: holds numbers, not captions" in detect(tmp_path).unread[0]


def test_texts_in_two_folders_are_not_guessed(tmp_path: Path) -> None:
    names = pictures(tmp_path / "images")
    text_files(tmp_path / "captions_en", names, caption)
    text_files(tmp_path / "captions_de", names, lambda at: f"ein Ring ist an der Wand zu sehen, Nummer {at}")
    with pytest.raises(AttendError, match=r"several files look like captions: .*name one with --captions FILE"):
        detect(tmp_path)
    assert texts(read(tmp_path, tmp_path / "captions_en" / "000.txt")) == ALL


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}\n(c) 2021 by Jo Miller", "the line '(c) 2021 by Jo Miller' is in 24 of 24 texts"),
        ("Caption: {}", "lines begin with 'Caption:': this is part of the captions"),
        ("2021-07-1{at}\n{}", "24 of 48 lines have no words, such as '2021-07-10'"),
    ],
)
def test_lines_that_are_no_captions_are_noted(tmp_path: Path, content: str, said: str) -> None:
    text_files(tmp_path, pictures(tmp_path), lambda at: content.format(caption(at), at=at))
    assert any(said in note for note in detect(tmp_path).notes)


def test_texts_in_folders_of_splits_and_others_are_noted(tmp_path: Path) -> None:
    for place, numbers in (("train", range(16)), ("test", range(16, 20)), ("extra", range(20, 24))):
        names = pictures(tmp_path / place, numbers)
        text_files(tmp_path / place, names, caption)
    (note,) = detect(tmp_path).notes
    assert "20 of 24 texts are in folders that are named as splits, which are not used" in note


def test_texts_in_folders_of_classes_have_the_pictures_of_their_names(tmp_path: Path) -> None:
    names = pictures(tmp_path / "jpg")
    for at, name in enumerate(names):
        text_files(tmp_path / "text" / f"class_{at % 3}", [name], lambda _: caption(at))  # noqa: B023
    assert texts(read(tmp_path)) == ALL


def test_the_name_of_an_unread_picture_means_the_jpeg_next_to_it(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    for name in names:
        (tmp_path / name).with_suffix(".HEIC").write_bytes(b"ftypheic")
    rows = [[f"{Path(name).stem}.HEIC", caption(at)] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["image", "caption"], *rows)
    assert texts(read(tmp_path)) == ALL


def test_texts_without_a_picture_of_their_name_are_explained(tmp_path: Path) -> None:
    for at, name in enumerate(pictures(tmp_path)):
        (tmp_path / f"{Path(name).stem}.de.txt").write_text(caption(at))
    with pytest.raises(
        AttendError, match=r"24 \.txt files have the name of no picture, such as 000\.de\.txt: name each"
    ):
        detect(tmp_path)


def test_texts_of_one_name_in_two_folders_are_explained(tmp_path: Path) -> None:
    for at, name in enumerate(pictures(tmp_path / "images")):
        for language in ("de", "en"):
            text = tmp_path / "captions" / language / f"{Path(name).stem}.txt"
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(caption(at))
    said = (
        r"48 \.txt files are in other folders than the pictures, such as captions/de/000\.txt for images/000\.png: put"
    )
    with pytest.raises(AttendError, match=said):
        detect(tmp_path)
    with pytest.raises(AttendError, match=r"de: 24 \.txt files and no pictures: give the folder that holds both"):
        detect(tmp_path / "captions" / "de")


def test_texts_without_pictures_do_not_hide_what_else_is_there(tmp_path: Path) -> None:
    for at in range(24):
        (tmp_path / f"{at:03d}.txt").write_text(caption(at))
    (tmp_path / "photos.zip").write_bytes(b"")
    with pytest.raises(AttendError, match=r"photos\.zip is not read: unpack it first"):
        detect(tmp_path)
    (tmp_path / "photos.zip").unlink()
    table(tmp_path / "captions.csv", ["image", "caption"], ["000.png", caption(0)])
    with pytest.raises(AttendError, match=r"captions\.csv: none of its columns .* names pictures"):
        detect(tmp_path)


def test_a_table_of_few_of_the_pictures_is_noted(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    table(tmp_path / "ratings.csv", ["image", "comment"], *([name, caption(at)] for at, name in enumerate(names[:8])))
    (note,) = detect(tmp_path).notes
    assert "8 of 24 pictures have a caption in ratings.csv" in note


def test_a_title_above_the_columns_names_is_explained(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    table(
        tmp_path / "captions.csv", ["Delivery of March", "", ""], ["image", "caption", "by"], [names[0], "a b c", "x"]
    )
    with pytest.raises(AttendError, match="2 of the 3 columns of the first line have no name"):
        detect(tmp_path)


@pytest.mark.parametrize("blank", ["", " "])
def test_columns_and_rows_that_are_blank_are_no_data(tmp_path: Path, blank: str) -> None:
    names = pictures(tmp_path)
    rows = [[name, caption(at), "", ""] for at, name in enumerate(names)]
    table(tmp_path / "captions.csv", ["image", "caption", blank, blank], *rows, ["", "", "", " "])
    options = detect(tmp_path).options
    faults = Faults(gather=True)
    assert texts(list(ADAPTERS["table"].model_validate(options).rows(Path(), faults))) == ALL and not faults.found


def test_the_file_of_captions_may_be_named_as_it_is_in_the_folder(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    table(tmp_path / "captions.csv", ["image", "caption"], *([name, caption(at)] for at, name in enumerate(names)))
    assert detect(tmp_path, Path("captions.csv")).options["path"] == tmp_path / "captions.csv"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "ein schöner Hund läuft über die Straße"),
        ("cp1252", "une fille élégante près du château à vélo"),
        ("cp1251", "девочка прыгает через лужу"),
        ("gb18030", "一只狗在草地上奔跑 两只猫在沙发上睡觉"),
        ("cp1250", "świnia w błocie, łąka pełna kwiatów, żółte"),
        ("mac_roman", "ein schöner Hund fährt über die große Straße"),
        ("utf-16", "девочка прыгает"),
        ("utf-16-le", "ein schöner Hund läuft"),
    ],
)
def test_the_encoding_of_a_table_is_found(tmp_path: Path, encoding: str, text: str) -> None:
    lines = ["image;caption", *(f"{name};{text} {at}" for at, name in enumerate(pictures(tmp_path)))]
    (tmp_path / "captions.csv").write_bytes("\n".join(lines).encode(encoding))
    assert texts(read(tmp_path)) == {f"{text} {at}" for at in range(24)}
    assert bool(detect(tmp_path).notes) == (encoding != "cp1252" and not encoding.startswith("utf-16"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_texts_in_utf_16_need_no_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    for at, name in enumerate(pictures(tmp_path)):
        (tmp_path / name).with_suffix(".txt").write_bytes(caption(at).encode(encoding))
    assert texts(read(tmp_path)) == ALL


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1250", "egy kis kutya fut az erdőben és a mező fölött"),
        ("cp1250", "mali pas trči preko livade pored kuće"),
        ("cp1254", "küçük köpek yeşil çimenlerde koşuyor, güneşli gökyüzü"),
        ("cp1257", "mažas šuo bėga per pievą prie namų"),
    ],
)
def test_an_encoding_that_may_be_another_is_noted(tmp_path: Path, encoding: str, text: str) -> None:
    names = pictures(tmp_path / "one")
    lines = ["image;caption", *(f"{name};{text} {at}" for at, name in enumerate(names))]
    (tmp_path / "one" / "captions.csv").write_bytes("\n".join(lines).encode(encoding))
    for at, name in enumerate(pictures(tmp_path / "two")):
        (tmp_path / "two" / name).with_suffix(".txt").write_bytes(f"{text} {at}".encode(encoding))
    for folder in ("one", "two"):
        (note,) = detect(tmp_path / folder).notes
        assert ": is not UTF-8, and read as " in note and note.endswith(": look at its captions, or set data.encoding")


def test_some_bytes_that_are_not_utf_8_are_refused_with_their_line(tmp_path: Path) -> None:
    lines = [f"{name},ein größerer Hund {at}".encode() for at, name in enumerate(pictures(tmp_path))]
    lines[6] = lines[6].replace("ö".encode(), b"\xf6")
    (tmp_path / "captions.csv").write_bytes(b"\n".join([b"image,caption", *lines]))
    with pytest.raises(
        AttendError, match=r"captions\.csv:8: is not UTF-8, as the rest of the file is: save it as UTF-8"
    ):
        detect(tmp_path)


def test_the_column_named_split_is_the_split_and_another_is_noted(tmp_path: Path) -> None:
    rows = [
        [name, ("train", "val")[at % 2], ("train", "train", "test")[at % 3], caption(at)]
        for at, name in enumerate(pictures(tmp_path))
    ]
    table(tmp_path / "captions.csv", ["image", "coco_split", "split", "caption"], *rows)
    assert {row.split for row in read(tmp_path)} == {"train", "test"}
    assert "its columns split and coco_split hold splits: split is used" in detect(tmp_path).notes[0]


@pytest.mark.parametrize("column", ["is_train", "test", "isVal"])
def test_a_column_of_yes_and_no_that_looks_like_a_split_is_noted(tmp_path: Path, column: str) -> None:
    rows = [[name, at % 3 == 0, caption(at)] for at, name in enumerate(pictures(tmp_path))]
    table(tmp_path / "captions.csv", ["image", column, "caption"], *rows)
    assert f"its column {column} looks like a split and is not used" in detect(tmp_path).notes[0]


@pytest.mark.parametrize("form", ["csv", "tar"])
def test_some_values_that_are_no_splits_are_faults_of_their_rows(tmp_path: Path, form: str) -> None:
    splits = [("train", "val", "test", "train")[at % 4] for at in range(24)]
    splits[5:7] = "tets", "excluded"
    names = pictures(tmp_path)
    rows: list[list[Any]] = [
        [name, split, caption(at)] for at, (name, split) in enumerate(zip(names, splits, strict=True))
    ]
    if form == "csv":
        table(tmp_path / "captions.csv", ["image", "split", "caption"], *rows)
    for name, split, text in rows if form == "tar" else []:
        own = {name: name.encode(), f"{name[:-4]}.json": json.dumps({"split": split, "caption": text}).encode()}
        tar_of(tmp_path / f"{name[:-4]}.tar", own)
    detection = detect(tmp_path)
    faults = Faults(gather=True)
    found = list(ADAPTERS[detection.options["adapter"]].model_validate(detection.options).rows(tmp_path / "o", faults))
    assert [len(found), len(faults.found), *detection.notes] == [22, 2] and "'tets' is none of" in faults.found[0]
    assert [sum(row.split == split for row in found) for split in ("train", "dev", "test")] == [12, 5, 5]


def test_a_column_split_whose_values_are_no_splits_is_not_read(tmp_path: Path) -> None:
    rows = [[name, at % 3, caption(at)] for at, name in enumerate(pictures(tmp_path))]
    table(tmp_path / "captions.csv", ["image", "split", "caption"], *rows)
    assert texts(read(tmp_path)) == ALL and {row.split for row in read(tmp_path)} == {None}
    assert "its column split has values that are no splits" in detect(tmp_path).notes[0]
    table(
        tmp_path / "captions.csv",
        ["image", "split", "caption", "is_train"],
        *([*row, "yes" if row is rows[0] else "no"] for row in rows),
    )
    assert "its column split has values that are no splits" in detect(tmp_path).notes[1]


@pytest.mark.parametrize(
    "write",
    [
        lambda first, second: f"[{first!r}\n {second!r}]",  # NumPy
        lambda first, second: f"{first} | {second}",
        lambda first, second: f"{first} ### {second}",
        lambda first, second: f"{first}\n{second}",
    ],
)
def test_captions_in_a_cell_are_distinguished(tmp_path: Path, write: Callable[[str, str], str]) -> None:
    rows = [[name, write(caption(at), f"one more of number {at}")] for at, name in enumerate(pictures(tmp_path))]
    table(tmp_path / "captions.csv", ["image", "caption"], *rows)
    assert all(len(row.captions) == 2 for row in read(tmp_path)) and texts(read(tmp_path)) >= ALL


def test_a_list_with_an_empty_caption_is_a_fault_of_its_row_alone(tmp_path: Path) -> None:
    rows = [
        {"image": name, "caption": [caption(at), None if at == 3 else "x y z"]}
        for at, name in enumerate(pictures(tmp_path))
    ]
    (tmp_path / "captions.json").write_text(json.dumps([{"source": "web", **row} for row in rows]))
    options = detect(tmp_path).options
    faults = Faults(gather=True)
    found = list(ADAPTERS[options["adapter"]].model_validate(options).rows(Path(), faults))
    assert len(found) == 23 and faults.found[0].endswith("[3]: caption[1]: is empty; a text is needed")


@pytest.mark.parametrize("columns", [("caption_1", "caption_2"), ("caption", "caption.1")])
def test_numbered_columns_are_captions_of_one_picture(tmp_path: Path, columns: tuple[str, str]) -> None:
    rows = [
        [name, caption(at), "" if at == 2 else f"second of {at} here"] for at, name in enumerate(pictures(tmp_path))
    ]
    table(tmp_path / "captions.csv", ["image", *columns], *rows)
    assert sorted(len(row.captions) for row in read(tmp_path)) == [1] + [2] * 23
    table(tmp_path / "captions.csv", ["image", *columns, "more"], *([*row, f"{row[1]}, and so on"] for row in rows))
    assert f"(or several: [{', '.join(columns)}, more])" in detect(tmp_path).notes[0]


def test_second_pictures_with_captions_of_their_own_are_refused_if_the_first_have_no_number(tmp_path: Path) -> None:
    names = pictures(tmp_path, range(48))
    rows = [[names[at], caption(at), names[at + 24], caption(at + 24)] for at in range(24)]
    table(tmp_path / "captions.csv", ["image", "caption", "image2", "caption2"], *rows)
    with pytest.raises(AttendError, match="its columns image and image2 name pictures, and caption and caption2 hold"):
        detect(tmp_path)


def test_a_number_that_few_pictures_have_makes_no_other_column_a_name_of_pictures(tmp_path: Path) -> None:
    pictures(tmp_path, name="{}.png")
    rows = [[at if at < 24 else at + 1000, 300 + at % 7, caption(at)] for at in range(1000)]
    table(tmp_path / "captions.csv", ["nr", "score", "caption"], *rows)
    assert not any("so may" in note for note in detect(tmp_path).notes)


def test_a_quotation_mark_in_a_table_without_quotes_swallows_no_rows(tmp_path: Path) -> None:
    said = {3: '"hello" says a sign', 4: '"stop sign near', 9: 'a sign that says "go"'}
    lines = [f"{name}\t{said.get(at, caption(at))}" for at, name in enumerate(pictures(tmp_path))]
    (tmp_path / "captions.tsv").write_text("\n".join(["image\tcaption", *lines]))
    assert texts(read(tmp_path)) == {said.get(at, caption(at)) for at in range(24)}


def test_a_blank_before_a_quotation_mark_is_no_part_of_a_field(tmp_path: Path) -> None:
    given = [f"{caption(at)}, alone" if at % 3 else caption(at) for at in range(24)]
    lines = [f'{name}, "{text}"' for name, text in zip(pictures(tmp_path), given, strict=True)]
    (tmp_path / "captions.csv").write_text("\n".join(["image, caption", *lines]))
    assert texts(read(tmp_path)) == set(given)


@pytest.mark.parametrize("sign", [": ", ":", "::", "\uff1a", " ", " - ", " \u2014 ", " = ", " -> ", "#0 "])
def test_lines_of_a_name_and_a_caption_are_read(tmp_path: Path, sign: str) -> None:
    names = pictures(tmp_path, name="photo {:03d}.png")
    lines = [f"{name}{sign}{caption(at)}" for at, name in enumerate(names)]
    (tmp_path / "captions.txt").write_text("\n".join([*lines, "", f"{names[0]}{sign}two of them"]))
    rows = read(tmp_path)
    assert [row.captions for row in rows] == [(caption(0), "two of them"), *((caption(at),) for at in range(1, 24))]
    (tmp_path / "captions.txt").write_text("\n".join(["Our photographs", *lines[:-1], names[-1]]))
    faults, options = Faults(gather=True), detect(tmp_path).options
    assert len(list(ADAPTERS["table"].model_validate(options).rows(Path(), faults))) == 23
    assert len(faults.found) == 2 and "captions.txt:1: has 1 field, " in faults.found[0]
    assert re.search("captions.txt:25: has 1 field, .*: write a picture's name, a blank and its", faults.found[1])


def test_classes_are_no_captions(tmp_path: Path) -> None:
    """As of X-rays: a table of projections names the pictures, and the reports name only the patients."""
    names = pictures(tmp_path / "images", name="{:03d}_view.png")
    table(
        tmp_path / "projections.csv",
        ["uid", "filename", "projection"],
        *([at, name, ("Frontal", "Lateral")[at % 2]] for at, name in enumerate(names)),
    )
    table(tmp_path / "reports.csv", ["uid", "findings"], *([at, caption(at)] for at in range(24)))
    with pytest.raises(
        AttendError, match=r"projections\.csv has 2 words, such as 'Frontal', 'Lateral': name the file of"
    ):
        detect(tmp_path)


def test_lists_of_the_pictures_of_splits_are_noted(tmp_path: Path) -> None:
    names = captions_csv(tmp_path)
    for split, part in (("train", names[:16]), ("val", names[16:20]), ("test", names[20:])):
        (tmp_path / f"{split}.txt").write_text("\n".join(part))
    assert "the splits that test.txt, train.txt, val.txt may list are not used" in detect(tmp_path).notes[0]


def test_tables_of_splits_come_before_a_table_of_all(tmp_path: Path) -> None:
    names = captions_csv(tmp_path, "all.csv")
    for split, numbers in (("train", range(16)), ("val", range(16, 20)), ("test", range(20, 24))):
        table(tmp_path / f"{split}.csv", ["image", "caption"], *([names[at], caption(at)] for at in numbers))
    assert [sum(row.split == split for row in read(tmp_path)) for split in ("train", "dev", "test")] == [16, 4, 4]


def test_tables_of_splits_are_read_in_one_form(tmp_path: Path) -> None:
    records = [{"image": name, "caption": caption(at)} for at, name in enumerate(pictures(tmp_path))]
    for split, own in (("train", records[:18]), ("val", records[18:])):
        (tmp_path / f"{split}.json").write_text(json.dumps(own))
        table(tmp_path / f"{split}.csv", ["image", "caption"], *map(list, map(dict.values, own)))
    assert all(len(row.captions) == 1 for row in read(tmp_path)) and texts(read(tmp_path)) == ALL
    assert any("train.json: 18 pictures" in line and "the same captions as" in line for line in detect(tmp_path).unread)
    with pytest.raises(AttendError, match=r"has both train\.csv and train\.json: keep one, or give one as data\.path"):
        list(ADAPTERS["table"].model_validate({"path": tmp_path}).rows(Path()))


def test_a_table_is_of_the_folder_that_is_named_as_it_is(tmp_path: Path) -> None:
    for split, count in (("train", 12), ("val", 6), ("test", 6)):
        names = pictures(tmp_path / split, range(count))
        table(
            tmp_path / f"{split}.csv",
            ["image", "caption"],
            *([name, f"{caption(at)} of {split}"] for at, name in enumerate(names)),
        )
    found = read(tmp_path)
    assert len(found) == 24 and all(row.captions[0].endswith(row.name.split("/")[0].split("-")[0]) for row in found)
    assert [sum(row.split == split for row in found) for split in ("train", "dev", "test")] == [12, 6, 6]


@pytest.mark.parametrize(
    "form",
    ["objects by name", "columns", "lists by split", "facts, by split", "names by split", "lines", "objects in lists"],
)
def test_more_forms_of_json(tmp_path: Path, form: str) -> None:
    names = pictures(tmp_path)
    records = [{"image": name, "caption": caption(at)} for at, name in enumerate(names)]
    content = {
        "objects by name": json.dumps({name: {"caption": caption(at), "width": 8} for at, name in enumerate(names)}),
        "columns": json.dumps({field: {at: row[field] for at, row in enumerate(records)} for field in records[0]}),
        "lists by split": json.dumps({"train": records[:18], "val": records[18:], "test": []}),
        "facts, by split": json.dumps({"info": {"year": 2026}, "train": records[:18], "val": records[18:]}),
        "names by split": json.dumps(
            {
                "train": {row["image"]: [row["caption"]] for row in records[:18]},
                "val": {row["image"]: row["caption"] for row in records[18:]},
            }
        ),
        "lines": "\n".join(map(json.dumps, records)),
        "objects in lists": json.dumps([{**row, "caption": [{"raw": row["caption"], "id": 1}]} for row in records]),
    }
    (tmp_path / "captions.json").write_text(content[form])
    assert texts(read(tmp_path)) == ALL
    assert {row.split for row in read(tmp_path)} == ({"train", "dev"} if form.endswith("by split") else {None})


def test_json_may_be_in_utf_16_and_other_bytes_are_refused(tmp_path: Path) -> None:
    """As Windows' PowerShell writes what a program prints."""
    document = json.dumps({name: caption(at) for at, name in enumerate(pictures(tmp_path))})
    (tmp_path / "captions.json").write_text(document, encoding="utf-16")
    assert texts(read(tmp_path)) == ALL
    (tmp_path / "captions.json").write_bytes(b"\xe4" + document.encode())
    with pytest.raises(AttendError, match="is not UTF-8 text: save it as UTF-8"):
        detect(tmp_path)


def test_the_first_line_of_metadata_may_lack_a_field(tmp_path: Path) -> None:
    names = pictures(tmp_path)
    lines = [{"file_name": name, "text": caption(at)} for at, name in enumerate(names)]
    del lines[0]["text"]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert texts(read(tmp_path)) == ALL - {caption(0)}


def test_records_of_json_may_lack_a_field(tmp_path: Path) -> None:
    """As text without a picture in LLaVA's conversations, and captions that pandas writes as NaN."""
    turns = [[{"from": "human", "value": f"What is {at}?"}, {"from": "gpt", "value": caption(at)}] for at in range(26)]
    named = [{"conversations": turn, "image": name} for turn, name in zip(turns[2:], pictures(tmp_path), strict=True)]
    records = [{"conversations": turns[0]}, {"conversations": float("nan"), "image": "000.png"}, *named]
    (tmp_path / "llava.json").write_text(json.dumps(records))
    faults = Faults(gather=True)
    found = detect(tmp_path)
    (note,) = found.notes
    assert "its captions are first answers in conversations, most to different questions, such as 'What is 0?'" in note
    rows = list(ADAPTERS["table"].model_validate(found.options).rows(Path(), faults))
    assert texts(rows) == {caption(at) for at in range(2, 26)}
    assert [fault.split(": ", 1)[1] for fault in faults.found] == [
        "[0]: no column 'image'; there are: conversations: add it, or set data.image_column=NAME",
        "[1]: conversations: is empty; a text is needed",
    ]


@pytest.mark.parametrize("write", [str, lambda text: {"caption": text}], ids=["texts", "objects"])
def test_a_name_that_a_json_object_has_twice_is_refused(tmp_path: Path, write: Callable[[str], Any]) -> None:
    names = pictures(tmp_path)
    pairs = [f"{json.dumps(name)}: {json.dumps(write(caption(at)))}" for at, name in enumerate([*names, names[3]])]
    (tmp_path / "captions.json").write_text(f"{{{', '.join(pairs)}}}")
    said = r"captions\.json: '003\.png' is there more than once: write its captions as"
    with pytest.raises(AttendError, match=said):
        detect(tmp_path)
    (tmp_path / "captions.json").write_text(f'{{"test": [], "train": {{{", ".join(pairs)}}}}}')
    with pytest.raises(AttendError, match=said):
        detect(tmp_path)


def test_a_split_that_a_json_object_has_twice_is_refused(tmp_path: Path) -> None:
    records = [{"image": name, "caption": caption(at)} for at, name in enumerate(pictures(tmp_path, range(60)))]
    parts = [f'"{split}": {json.dumps(records[at : at + 20])}' for at, split in enumerate(("train", "train", "val"))]
    (tmp_path / "captions.json").write_text(f"{{{', '.join(parts)}}}")
    with pytest.raises(AttendError, match=r"captions\.json: 'train' is there more than once: write its records into"):
        detect(tmp_path)


def test_a_tar_without_files_is_refused(tmp_path: Path) -> None:
    tar_of(tmp_path / "0.tar", {})
    with pytest.raises(AttendError, match=r"0\.tar: holds no samples: put pictures with their \.txt files there"):
        detect(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_json_lines_in_utf_16_are_to_be_saved_as_utf_8(tmp_path: Path, encoding: str) -> None:
    lines = [json.dumps({"image": name, "caption": caption(at)}) for at, name in enumerate(pictures(tmp_path))]
    (tmp_path / "captions.jsonl").write_bytes("\n".join(lines).encode(encoding))
    with pytest.raises(AttendError, match=r"captions\.jsonl:1: is not UTF-8 text: save it as UTF-8"):
        detect(tmp_path)


COCO = {"images": [{"id": 1, "file_name": "000.png"}], "annotations": [{"image_id": 1, "caption": caption(0)}]}


@pytest.mark.parametrize(
    ("name", "document", "said"),
    [
        (
            "a.json",
            {"train": COCO, "val": COCO},
            "train: has COCO's form: write each split to a file of its own, such as",
        ),
        (
            "a.json",
            {"photos": [{"uri": "000.png"}], "likes": [{"by": "Ann"}]},
            r"has several lists \(photos, likes\): ",
        ),
        ("a.json", {"year": 2026, "photos": []}, "has no list of objects with picture and caption: write"),
        ("a.jsonl", [{"image": "000.png"}], "1: begins a list: write one object per line, or if .* name it a.json"),
    ],
)
def test_json_of_another_form_is_refused_with_what_to_write(
    tmp_path: Path, name: str, document: object, said: str
) -> None:
    pictures(tmp_path)
    (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(AttendError, match=rf"{name}: ?{said}"):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (lambda name, text: {"media": [{"uri": name, "title": text}], "time": 1}, "media"),  # Instagram
        (lambda name, text: {"image": name, "caption": {"en": text, "de": text}}, "caption"),
    ],
)
def test_objects_within_records_are_named(tmp_path: Path, record: Callable[[str, str], Any], field: str) -> None:
    records = [record(name, caption(at)) for at, name in enumerate(pictures(tmp_path))]
    (tmp_path / "captions.json").write_text(json.dumps(records))
    said = rf"captions\.json: .*: its field {field} holds objects, which are not searched: write picture and caption .*self$"
    with pytest.raises(AttendError, match=said):
        detect(tmp_path)


def test_a_field_that_a_record_has_twice_does_not_matter(tmp_path: Path) -> None:
    said = {name: caption(at) for at, name in enumerate(pictures(tmp_path))}
    pairs = [f'"{name}": {{"id": 1, "id": 1, "caption": "{text}"}}' for name, text in said.items()]
    (tmp_path / "captions.json").write_text(f"{{{', '.join(pairs)}}}")
    assert texts(read(tmp_path)) == ALL


def test_a_fault_in_json_names_file_and_picture(tmp_path: Path) -> None:
    said = {name: caption(at) if at else "" for at, name in enumerate(pictures(tmp_path))}
    (tmp_path / "captions.json").write_text(json.dumps(said))
    options, faults = detect(tmp_path).options, Faults(gather=True)
    list(ADAPTERS["table"].model_validate(options).rows(Path(), faults))
    assert faults.found == [f"{tmp_path}/captions.json: 000.png: caption: is empty; a text is needed"]


def test_json_without_its_pictures_has_no_delimiter(tmp_path: Path) -> None:
    pictures(tmp_path)
    (tmp_path / "captions.json").write_text(
        json.dumps([{"image": "a.png", "caption": caption(at)} for at in range(24)])
    )
    with pytest.raises(AttendError, match=r"names such as 000\.png: correct the names$"):
        detect(tmp_path)


def test_excels_line_on_the_delimiter_is_no_header(tmp_path: Path) -> None:
    lines = ["sep=;", "image;caption", *(f"{name};{caption(at)}" for at, name in enumerate(pictures(tmp_path)))]
    (tmp_path / "captions.csv").write_text("\n".join(lines))
    assert texts(read(tmp_path)) == ALL


def saved(folder: Path, records: list[dict[str, Any]]) -> None:
    """Write a folder as Hugging Face's `save_to_disk` writes it."""
    rows = pa.Table.from_pylist(records)
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def test_unread_splits_of_a_saved_folder_are_noted(tmp_path: Path) -> None:
    record = {"depth": {"bytes": b"a"}, "photo": {"bytes": b"b"}, "more": "another text of this photograph"}
    saved(tmp_path, [{**record, "caption": caption(at)} for at in range(24)])
    notes = "\n".join(detect(tmp_path).notes)
    assert "pictures are read from its column depth, none from photo" in notes
    assert "captions are read from its column caption" in notes and "none from more" in notes


@pytest.mark.parametrize("form", ["tar", "texts", "hub", "saved"])
def test_fields_that_are_not_used_are_noted_in_every_form(tmp_path: Path, form: str) -> None:
    extra = {"tar": "test", "texts": "test"}.get(form, "extra")  # the last is no split
    records = [
        {
            "caption": [{"text": caption(at), "lang": "en"}, {"text": f"eine Wand {at}", "lang": "de"}],
            "split": ("train", "val", extra)[at % 3],
            "language": ("en", "de")[at % 2],
            "status": ("ok", "rejected")[at > 20],
        }
        for at in range(24)
    ]
    if form == "tar":
        files = {f"{at:03d}.{end}": b"png" for at in range(24) for end in ("png", "json")}
        files |= {f"{at:03d}.json": json.dumps(record).encode() for at, record in enumerate(records)}
        tar_of(tmp_path / "0.tar", files)
    elif form == "texts":
        for name, record in zip(pictures(tmp_path), records, strict=True):
            (tmp_path / name).with_suffix(".json").write_text(json.dumps(record))
    else:
        with_pictures = [{"image": {"bytes": b"png"}, **record} for record in records]
        if form == "hub":
            pq.write_table(pa.Table.from_pylist(with_pictures), tmp_path / "photos.parquet")
        else:
            saved(tmp_path, with_pictures)
    options, _, found = detect(tmp_path)
    notes = "\n".join(found)
    assert re.search(r"its (column|field) language says that captions are in several languages \(de, en\)", notes)
    assert "field caption.lang says that captions are in several languages (en 50%, de 50%)" in notes
    assert re.search(r"its (column|field) status \(ok 88%, rejected 12%\) is not used", notes)
    message = "its field split is not used: put" if form == "texts" else "looks like a split and is not used"
    assert options.get("split_field") == "split" if form == "tar" else message in notes


def test_a_field_of_captions_next_to_each_picture_may_have_any_name(tmp_path: Path) -> None:
    for at, name in enumerate(pictures(tmp_path)):
        fields = {"model": "sd v1.5", "file": name, "tags": ["sea", "sky", "sun"], "prompt": caption(at)}
        (tmp_path / name).with_suffix(".json").write_text(json.dumps(fields))
    assert texts(read(tmp_path)) == ALL
    (tmp_path / "000.txt").write_text("a text next to a picture is preferred")
    assert texts(read(tmp_path)) == {"a text next to a picture is preferred"}
    (tmp_path / "000.txt").unlink()
    for path in tmp_path.glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "prompt": None}))
    with pytest.raises(AttendError, match="no field of captions; there are: model, file, tags, prompt: name theirs"):
        detect(tmp_path)


@pytest.mark.parametrize("fields", [{"caption": None, "url": "https://a.org"}, {"title": "000.png", "description": ""}])
def test_a_field_that_is_empty_everywhere_is_said_to_be(tmp_path: Path, fields: dict[str, str | None]) -> None:
    for name in pictures(tmp_path):
        (tmp_path / name).with_suffix(".json").write_text(json.dumps(fields))
    with pytest.raises(AttendError, match=r"000\.json: its field (caption|description) holds no text, as in others"):
        detect(tmp_path)
    for at in range(20):
        (tmp_path / f"{at:03d}.json").write_text(json.dumps({**fields, list(fields)[-1]: "", "caption": caption(at)}))
    assert texts(read(tmp_path)) == {caption(at) for at in range(20)}


def test_a_field_of_captions_of_another_name_is_noted(tmp_path: Path) -> None:
    for at, name in enumerate(pictures(tmp_path)):
        (tmp_path / name).with_suffix(".json").write_text(json.dumps({"credit": caption(at)}))
    (note,) = detect(tmp_path).notes
    assert f"captions are read from its field credit ('{caption(0)}'): for another, set data.caption_field" in note


def test_a_field_of_file_names_is_no_caption_where_another_has_sentences(tmp_path: Path) -> None:
    fields = [{"caption": f"IMG {at}.png", "description": caption(at)} for at in range(24)]
    files = {f"{at:03d}.json": json.dumps(own).encode() for at, own in enumerate(fields)}
    tar_of(tmp_path / "0.tar", dict(sorted({**files, **{f"{at:03d}.png": b"png" for at in range(24)}}.items())))
    assert detect(tmp_path).options["caption_field"] == "description"
    files = {f"{at:03d}.json": json.dumps({"caption": f"IMG {at}.png"}).encode() for at in range(24)}
    tar_of(tmp_path / "0.tar", dict(sorted({**files, **{f"{at:03d}.png": b"png" for at in range(24)}}.items())))
    note, marks = detect(tmp_path).notes
    assert "have marks such as '0.png'" in marks
    assert "of caption, the likeliest, one is 'IMG 0.png': it is read all the same" in note


def test_tars_not_named_as_a_split_leave_the_others_their_splits_and_are_noted(tmp_path: Path) -> None:
    for at, name in enumerate(("train-0.tar", "val-0.tar", "flickr-0.tar")):
        tar_of(tmp_path / name, {f"{at}.png": b"png", f"{at}.txt": caption(at).encode()})
    rows = ADAPTERS["webdataset"].model_validate(detect(tmp_path).options).rows(tmp_path / "out")
    assert {row.split for row in rows} == {"train", "dev", None}
    (note,) = detect(tmp_path).notes
    assert "1 of 3 tars are not named as a split: flickr-0.tar is divided by content" in note


def test_tars_may_be_in_folders_of_splits(tmp_path: Path) -> None:
    for at, folder in enumerate(("train", "val", "test")):
        (tmp_path / folder).mkdir()
        tar_of(
            tmp_path / folder / "000.tar", {f"{n}.{e}": f"a dog {at}".encode() for n in "01" for e in ("png", "txt")}
        )
    rows = ADAPTERS["webdataset"].model_validate(detect(tmp_path).options).rows(tmp_path / "out")
    assert {row.name: (row.split, *row.captions) for row in rows} == {
        f"{folder}-000-{n}.png": (split, f"a dog {at}")
        for at, (folder, split) in enumerate([("train", "train"), ("val", "dev"), ("test", "test")])
        for n in "01"
    }
    assert not detect(tmp_path).notes


def test_folders_of_splits_within_a_tar_are_noted(tmp_path: Path) -> None:
    files = {f"set/{('train', 'val')[at % 2]}/{at}.{end}": b"a dog runs" for at in range(24) for end in ("png", "txt")}
    tar_of(tmp_path / "0.tar", dict(sorted(files.items())))
    (note,) = (note for note in detect(tmp_path).notes if "in folders" in note)
    assert "samples are in folders that are named as splits, such as set/train, which are not used: make a tar" in note
    (tmp_path / "0.tar").rename(tmp_path / "train.tar")
    assert not any("in folders" in note for note in detect(tmp_path).notes)


def test_tars_that_are_hidden_or_no_files_hide_no_table(tmp_path: Path) -> None:
    captions_csv(tmp_path)
    (tmp_path / "test" / "a.tar").mkdir(parents=True)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.tar").symlink_to(tmp_path / "none")
    (tmp_path / ".val").mkdir()
    tar_of(tmp_path / ".val" / "a.tar", {"a.png": b"", "a.txt": b"a dog runs"})
    assert texts(read(tmp_path)) == ALL
    assert tar_files(tmp_path) == [tmp_path / "test" / "a.tar", tmp_path / "train" / "a.tar"]


def test_texts_of_samples_that_are_not_read_are_noted(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 1)
    own = {"a.png": (tmp_path / "a.png").read_bytes(), "a.txt": b"a dog runs"}
    said = {
        ".caption": {"a.caption": b"two cats sleep"},
        "caption in .json": {"a.json": b'{"caption": "two cats sleep"}'},
        None: {"a.json": b'{"caption": "a dog runs"}'},
    }
    for what, more in said.items():
        tar_of(tmp_path / "x.tar", own | more)
        notes = detect(tmp_path / "x.tar").notes
        assert [f"1 of its first 1 samples also have another {what}, which is not" in note for note in notes] == [
            True
        ] * bool(what)


def test_files_of_several_folders_with_the_same_splits_are_noted(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 1)
    rows = {"image": [{"bytes": (tmp_path / "a.png").read_bytes(), "path": None}], "caption": ["a dog runs in a park"]}
    for name in ("en/train.parquet", "en/test.parquet", "de/train.parquet"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows), tmp_path / "set" / name)
    (note,) = detect(tmp_path / "set").notes
    assert note == f"{tmp_path / 'set'}: the files of de and en are read together: for one, give its folder"
    assert not detect(tmp_path / "set/en").notes
    for name in ("train", "restval", "val", "test"):  # Karpathy's
        (tmp_path / "coco" / name).mkdir(parents=True)
        pq.write_table(pa.table(rows), tmp_path / "coco" / name / "0.parquet")
    assert not detect(tmp_path / "coco").notes


def test_parts_that_are_not_there_are_noted(tmp_path: Path) -> None:
    rows = {"image": [{"bytes": b"png", "path": None}] * 24, "text": [caption(at) for at in range(24)]}
    for name in ("train-00000-of-00003", "train-00002-of-00003", "val-00000-of-00001"):
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    (note,) = detect(tmp_path).notes
    assert note.endswith("only 2 of 3 parts of train are there: the others may not be downloaded")


def test_samples_of_several_pictures_are_noted(tmp_path: Path) -> None:
    members = {f"{at:03d}.{end}": end.encode() for at in range(24) for end in ("png", "jpg")}
    tar_of(
        tmp_path / "0.tar",
        dict(sorted({**members, **{f"{at:03d}.txt": f"a dog {at}".encode() for at in range(24)}}.items())),
    )
    (note,) = detect(tmp_path).notes
    assert "24 of its first 24 samples have several pictures, such as 000 (jpg, png): the first, .jpg, is read" in note
    (note,) = detect(tmp_path / "0.tar").notes


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.xlsx", "save it as CSV: "),
        ("a.zip", "unpack it first: unzip "),
        ("a.tar.bz2", "unpack it first: bunzip2 "),
        ("a.arrow", "write it as Parquet: "),
    ],
)
def test_formats_that_need_a_conversion_are_reported_with_the_command(tmp_path: Path, name: str, advice: str) -> None:
    pictures(tmp_path)
    (tmp_path / name).write_bytes(b"PK\3\4")
    with pytest.raises(AttendError, match=rf"{re.escape(name)} is not read: {advice}"):
        detect(tmp_path)
    captions_csv(tmp_path)
    assert any(line.startswith(f"{name}: {advice}") for line in detect(tmp_path).unread)
