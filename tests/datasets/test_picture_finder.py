"""A name means the picture whose path ends as it does, and is refused where it may mean two."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.common.errors import AttendError
from tasks.datasets.picture_finder import PictureFinder

PART = st.text(st.sampled_from("abcDE12 ä.()_-"), min_size=1, max_size=6).filter(lambda part: part.strip(". ") == part)
PATH = st.builds(
    lambda folders, stem, end: "/".join([*folders, stem + end]),
    st.lists(PART, max_size=3),
    PART,
    st.sampled_from([".jpg", ".PNG"]),
)


def finder(*names: str) -> PictureFinder:
    return PictureFinder(Path("/photos"), names)


def one(found: PictureFinder, *names: str) -> dict[str, str]:
    return {name: found.one(name, meant, "t.csv:2") for name, meant in found.find(names).items()}


@given(st.sets(PATH, min_size=1, max_size=8))
def test_a_path_means_itself(paths: set[str]) -> None:
    assert one(finder(*paths), *paths) == {path: path for path in paths}


def test_a_path_means_itself_where_its_name_looks_like_a_copy() -> None:
    """And where the others are in another folder."""
    there = ["dog.jpg", "sunset-1920x1080.jpg", "resized/cat.jpg", "a/1.jpg", "export/b/1.jpg", "export/b/2.jpg"]
    assert one(finder(*there), *there) == {name: name for name in there}
    assert one(finder(*there), "a/1.jpg", "b/2.jpg", "b/1.jpg")["a/1.jpg"] == "a/1.jpg"


@given(st.sets(PATH, min_size=1, max_size=8), st.lists(PART, min_size=1, max_size=3))
def test_folders_of_another_machine_do_not_matter(paths: set[str], root: list[str]) -> None:
    if len({path.casefold() for path in paths}) < len(paths):
        return  # which of two spellings is meant depends on the case
    found = finder(*paths)
    for way in ("/" + "/".join(root) + "/{}", "C:\\" + "\\".join(root) + "\\{}"):
        written = {way.format(path if "/" in way else path.replace("/", "\\")): path for path in paths}
        for name, meant in found.find(written).items():
            assert meant == [written[name]] or len(meant) != 1, (name, meant)


@pytest.mark.parametrize(
    "name",
    [
        "images/a b.jpg",
        "a b.jpg",
        "A B.JPG",
        "./images/a b.jpg",
        "a%20b.jpg",
        "a b",
        "C:\\set\\images\\a b.jpg",
        " a b.jpg ",
    ],
)
def test_a_name_may_be_written_in_many_ways(name: str) -> None:
    assert one(finder("images/a b.jpg", "images/c.jpg"), name) == {name: "images/a b.jpg"}


def test_accents_may_be_apart_from_their_letters() -> None:
    name = "Jäger Ö.jpg"
    for form in ("NFC", "NFD"):
        for other in ("NFC", "NFD"):
            given_name = unicodedata.normalize(form, name)
            assert one(finder(unicodedata.normalize(other, name)), given_name)[given_name]


def test_a_folder_that_is_not_there_is_no_other_folder() -> None:
    """Where all names begin with a folder it may be missing; where they differ in it, it may not."""
    found = finder("a/1.jpg", "a/2.jpg")
    assert found.find(["b/1.jpg", "a/2.jpg"]) == {"b/1.jpg": [], "a/2.jpg": ["a/2.jpg"]}
    assert found.find(["set/a/1.jpg", "set/b/1.jpg"])["set/b/1.jpg"] == []
    with pytest.raises(
        AttendError, match=r"^t\.csv:2: b/1\.jpg is captioned, but .*: a/1\.jpg is there: correct the name"
    ):
        found.one("b/1.jpg", [], "t.csv:2")
    assert finder("train/1.jpg").find(["test/1.jpg"]) == {"test/1.jpg": []}


def test_a_name_that_may_be_two_pictures_is_refused() -> None:
    found = finder("a/1.jpg", "b/1.jpg", "c.jpg", "c.png")
    for name, pictures in (("1.jpg", "a/1.jpg, b/1.jpg"), ("c", "c.jpg, c.png")):
        with pytest.raises(
            AttendError, match=re.escape(f"{name} may be any of 2 pictures in /photos: {pictures}: name it")
        ):
            one(found, name)
    assert one(finder("1.jpg", "b/1.jpg"), "1.jpg") == {"1.jpg": "1.jpg"}
    assert one(finder("x.jpg", "x.JPG"), "x.JPG") == {"x.JPG": "x.JPG"}


def test_signs_of_an_address_may_be_in_any_part_of_a_name() -> None:
    found = finder("my set/row 1/a b.jpg", "my set/row 2/a b.jpg", "straße/c.jpg")
    names = ["My%20set/row%201/a%20b.jpg", "my%20set/row%202/a b.jpg", "stra%C3%9Fe/c.jpg"]
    assert found.find(names) == {name: [picture] for name, picture in zip(names, sorted(found.names), strict=True)}
    assert not any(found.doubt(name, picture) for name, picture in zip(names, sorted(found.names), strict=True))
    assert one(finder("a%20b/1.jpg", "a b/1.jpg"), "/x/a%20b/1.jpg") == {"/x/a%20b/1.jpg": "a%20b/1.jpg"}


def test_a_date_before_a_name_is_no_prefix_of_uploaded_files() -> None:
    found = finder("1.jpg", "2.jpg")
    assert found.find(["20210501-2.jpg", "20210502-1.jpg"]) == {"20210501-2.jpg": [], "20210502-1.jpg": []}
    uploaded = ["12345678-2.jpg", "1a2b3c4d-1.jpg"]
    assert found.find(uploaded) == {"12345678-2.jpg": ["2.jpg"], "1a2b3c4d-1.jpg": ["1.jpg"]}
    assert one(finder("a b.jpg"), "/data/1a2b3c4d-a%20b.jpg") == {"/data/1a2b3c4d-a%20b.jpg": "a b.jpg"}


def test_an_address_means_the_picture_of_its_name() -> None:
    found = finder("images/1.jpg", "images/2.jpg")
    first, second, page = "https://a.example.org/x/1.jpg?w=300", "s3://bucket/y/2.jpg", "https://example.org/1"
    assert found.find([first, second]) == {first: ["images/1.jpg"], second: ["images/2.jpg"]}
    assert found.find([page]) == {page: []}
    alike = ["https://example.org/x/1.jpg", "https://example.org/y/1.jpg"]
    assert found.find(alike) == {name: [] for name in alike}
