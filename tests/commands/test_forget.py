"""`attend forget`: nothing of a photograph is left that a search of every file and table finds, and the rest stays."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.common.files import digest_of_file
from tasks.config.schema import Config
from tasks.grids.index import open_grids
from tests.cli import attend, refused
from tests.photographs import picture
from tests.support import artifacts, plan, register_all, small

NAME = "3 Zuzanna.png"
CAPTION = "zuzanna in a purple turban"
OTHER = "13 Zuzanna.png"  # its name ends as the other's does


def found_in(folder: Path, words: Sequence[str]) -> dict[str, set[str]]:
    """Return the files, and tables, that hold a word: read as bytes, as Parquet, and as an SQLite database."""
    places: dict[str, set[str]] = {}
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        texts = {path.relative_to(folder).as_posix(): content.decode("utf-8", "replace")}
        if path.suffix == ".parquet":
            texts["as Parquet: " + str(path.relative_to(folder))] = str(pq.read_table(path).to_pylist())
        if content.startswith(b"SQLite format 3"):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                dump = "\n".join(connection.iterdump())
            texts["as tables: " + str(path.relative_to(folder))] = dump
        for place, text in texts.items():
            hits = {word for word in words if word in text.replace(OTHER, "")}
            if hits:
                places[place] = hits
    return places


def data_set(tmp_path: Path, without: Sequence[str] = (), in_test: Sequence[str] = ()) -> Config:
    """A data set of 40 photographs, less those named, and its config. in_test: the photographs of its test split."""
    folder = tmp_path / "photos"
    names = [OTHER if number == 13 else NAME if number == 3 else f"{number}.png" for number in range(40)]
    for number, name in enumerate(names):
        if name in without:
            (folder / name).unlink(missing_ok=True)
        else:
            picture(folder / name, number)
    lines = ["image,caption,split"]
    for number, name in enumerate(names):
        split = "" if not in_test else "test" if name in in_test else "dev" if number % 4 == 0 else "train"
        if name not in without:
            lines.append(f"{name},{CAPTION if name == NAME else f'a picture of {name[:2]}'},{split}")
    (folder / "captions.csv").write_text("\n".join(lines))
    data = {"adapter": "table", "path": folder / "captions.csv"}
    divided = {} if in_test else {"dev_share": 0.3, "near_duplicates": "together"}
    return small(tmp_path / "workspace", data={**data, **divided})


def answer(digest: str, name: str, given: str) -> str:
    return json.dumps({"picture": digest, "name": name, "shown": "a cat", "given": given, "verdict": "edited"}) + "\n"


def test_nothing_is_left_and_nothing_else_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = data_set(tmp_path)
    workspace = config.workspace
    register_all(config)
    digest, other = (digest_of_file(tmp_path / "photos" / name) for name in (NAME, OTHER))
    words = (digest, NAME, CAPTION)
    (workspace / "reviews.jsonl").write_text(answer(digest, NAME, CAPTION) + answer(other, OTHER, "a dog"))
    (workspace / "page").mkdir()
    (workspace / "page" / "small.html").write_text("shows it")
    (workspace / "prefect").mkdir()
    with contextlib.closing(sqlite3.connect(workspace / "prefect" / "prefect.db")) as connection, connection:
        connection.execute("create table events (id, payload)")
        rows = [(1, f"| {NAME} | {CAPTION} |"), (2, f"| {OTHER} | a dog |")]
        connection.executemany("insert into events values (?, ?)", rows)
    before = found_in(workspace, words)
    assert {place.split("/")[0] for place in before} >= {"digests.sqlite", "reviews.jsonl", "mlartifacts"}
    assert any("fingerprints" in place for place in before)

    told = refused(monkeypatch, capsys, "forget", NAME, "--workspace", str(workspace))
    assert f"{NAME}: is still there" in told and "delete it and its captions first" in told
    without = data_set(tmp_path, [NAME])
    register_all(without)
    kept = {name: artifact.path for name, artifact in artifacts(without).items()}
    grids = open_grids(artifacts(without)["extract"], without.machine)
    digests = sorted(map(str, pq.read_table(kept["extract"] / "index.parquet")["digest"].to_pylist()))
    values = grids.read(digests)

    code, listed, _ = attend(monkeypatch, capsys, "forget", NAME, "--workspace", str(workspace))
    assert code == 0 and "would be removed: add --yes" in listed and found_in(workspace, words).keys() >= before.keys()
    code, listed, _ = attend(monkeypatch, capsys, "forget", NAME, "--workspace", str(workspace), "--yes")
    assert code == 0 and re.search("kept: models:/small/1, (champion|previous)", listed)
    left = found_in(workspace, words)
    assert left and all("mlartifacts/" in place for place in left), left

    code, listed, _ = attend(
        monkeypatch, capsys, "forget", digest, "--workspace", str(workspace), "--yes", "--versions"
    )
    assert code == 0 and "still named" not in listed
    assert not found_in(workspace, words)
    # Nothing else is gone: all that was made without it is fresh, with the same grids, and others' answers are there.
    assert {status.state for status in plan(without, "evaluate")} == {"fresh"}
    assert {name: artifact.path for name, artifact in artifacts(without, "evaluate").items()}.items() <= kept.items()
    again = open_grids(artifacts(without, "evaluate")["extract"], without.machine)
    np.testing.assert_array_equal(again.read(digests), values)
    assert OTHER in (workspace / "reviews.jsonl").read_text()
    assert any("digests.sqlite" in place for place in found_in(workspace, [other]))
    with contextlib.closing(sqlite3.connect(workspace / "prefect" / "prefect.db")) as connection:
        assert connection.execute("select id from events").fetchall() == [(2,)]


def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], finished_copy: Path
) -> None:
    place = ["--workspace", str(finished_copy)]
    told = refused(monkeypatch, capsys, "forget", "nobody.png", *place)
    assert "nobody.png: no photograph of this name, file or digest is known" in told
    told = refused(monkeypatch, capsys, "forget", "0" * 64, *place)
    assert "has nothing of 0000" in told
    manifest = next((finished_copy / "artifacts" / "ingest").glob("*/manifest.parquet"))
    table = pq.read_table(manifest).to_pylist()
    table[0]["name"] = table[1]["name"] = "same.png"
    pq.write_table(pq.read_table(manifest).from_pylist(table), manifest)
    told = refused(monkeypatch, capsys, "forget", "same.png", *place)
    assert "same.png: is the name of 2 photographs: give the digest of one" in told


@pytest.mark.slow
def test_nothing_is_left_in_prefects_database_either(tmp_path: Path) -> None:
    """With the program as a person runs it, which records each run at a server of Prefect's."""
    tested = [NAME, OTHER, "5.png"]
    config = data_set(tmp_path, in_test=tested)
    values = config.model_dump(mode="json", exclude_unset=True, exclude={"machine": {"workspace"}})
    (tmp_path / "photos.yaml").write_text(yaml.safe_dump(values))
    digest = digest_of_file(tmp_path / "photos" / NAME)
    words = (digest, NAME, CAPTION)

    def command(*given: str) -> str:
        line = [sys.executable, "-m", "flows.commands.cli", *given, "--workspace", "workspace"]
        return subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    command("run", "photos.yaml")
    assert any("prefect.db" in place for place in found_in(tmp_path / "workspace", words))
    data_set(tmp_path, [NAME], in_test=tested)
    command("run", "photos.yaml")
    told = command("forget", NAME, "--yes", "--versions")
    assert "models:/small/1" in told and "still named" not in told
    assert not found_in(tmp_path / "workspace", words)
    shutil.rmtree(tmp_path / "workspace")
