"""Text files named after pictures: whose they are, and whether their lines are captions or one paragraph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.common.errors import AttendError
from tasks.datasets import ADAPTERS
from tasks.datasets.base import Row
from tasks.datasets.detection import detect
from tasks.datasets.faults import Faults
from tasks.datasets.texts import lines_of
from tests.photographs import picture


def rows(path: Path, **options: object) -> dict[str, Row]:
    data = ADAPTERS["texts"].model_validate({"path": path, **options})
    return {row.name: row for row in data.rows(Path(), Faults(gather=True))}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a.txt", {}),
        ("a.TXT", {}),
        ("a.png.txt", {}),
        ("a.caption", {"suffix": ".caption"}),
        ("a.json", {"suffix": ".json"}),
        ("a.HEIC.json", {"suffix": ".json"}),  # of a photograph that was converted
    ],
)
def test_a_text_is_of_the_picture_that_it_is_named_after(tmp_path: Path, text: str, options: dict[str, str]) -> None:
    picture(tmp_path / "a.png", 1)
    (tmp_path / text).write_text(json.dumps({"caption": "a dog"}) if text.endswith("json") else "a dog\n")
    assert rows(tmp_path, **options)["a.png"].captions == ("a dog",)


def test_a_text_is_never_of_a_picture_in_another_folder_with_pictures(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        picture(tmp_path / folder / f"{folder}.png", 1)
        picture(tmp_path / folder / "same.png", 2)
    (tmp_path / "x" / "same.txt").write_text("of x")
    (tmp_path / "x" / "y.txt").write_text("of no picture in x")
    assert {name: row.captions for name, row in rows(tmp_path).items()} == {"x/same.png": ("of x",)}


def test_texts_may_be_in_a_folder_of_the_same_form(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "images" / split).mkdir(parents=True)
        (tmp_path / "captions" / split).mkdir(parents=True)
        picture(tmp_path / "images" / split / "1.png", len(split))
        (tmp_path / "captions" / split / "1.txt").write_text(f"of {split}")
    found = rows(tmp_path, splits="folders")
    assert {name: (row.captions[0], row.split) for name, row in found.items()} == {
        "images/train/1.png": ("of train", "train"),
        "images/val/1.png": ("of val", "dev"),
    }


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        ("captions", ["a dog runs\na dog on grass\nbrown dog", "a cat\nthe cat sleeps\ncat on a sofa"]),
        ("captions", ["A dog runs.\nA brown dog is outside.", "A cat sleeps.\nThere is a cat."]),
        (
            "captions",
            ["ein Hund läuft über die Wiese und bellt dabei sehr laut\nein Hund, der über die Wiese läuft, bellt laut"],
        ),
        ("paragraph", ["A dog runs over the wide green\nlawn while a man\nwatches.", "Two cats sleep on\nthe sofa."]),
        ("paragraph", ["the dog runs over the green lawn while a man watches it from a\nbench under the trees"] * 3),
        (None, ["a dog", "a cat"]),
    ],
)
def test_lines_are_a_paragraph_where_they_break_sentences(lines: str | None, texts: list[str]) -> None:
    assert lines_of(texts) == ({} if lines is None else {"lines": lines})


def test_both_settings_of_lines(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 1)
    (tmp_path / "a.txt").write_text("A dog runs\nover the lawn.\n\n")
    assert rows(tmp_path)["a.png"].captions == ("A dog runs", "over the lawn.")
    assert rows(tmp_path, lines="paragraph")["a.png"].captions == ("A dog runs over the lawn.",)


def test_texts_without_a_picture_and_pictures_without_a_text_are_named(tmp_path: Path) -> None:
    for number in range(8):
        picture(tmp_path / f"{number}.png", number)
        (tmp_path / f"{number + 2}.txt").write_text(f"picture number {number + 2} is seen here")
    found = detect(tmp_path)
    assert found.options["adapter"] == "texts"
    assert found.unread == ["8.txt: no picture has this name", "9.txt: no picture has this name"]


def test_an_empty_text_is_a_fault(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 1)
    (tmp_path / "a.txt").write_text(" \n")
    data = ADAPTERS["texts"].model_validate({"path": tmp_path})
    with pytest.raises(AttendError, match=r"a\.txt: is empty; a text is needed"):
        list(data.rows(Path()))
