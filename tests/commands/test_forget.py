"""`attend forget`: nothing of a photograph is left that a search of every file and table finds, and the rest stays."""

from __future__ import annotations

import contextlib
import json
import os
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

from tasks.common.files import digest_of_file, remove_folder
from tasks.config.schema import Config
from tasks.grids.index import open_grids
from tasks.mlflow_store import tracking
from tasks.mlflow_store.versions import files_of
from tests.cli import output, refused
from tests.photographs import picture
from tests.support import Killed, artifacts, plan, register_all, small

NAME = "3 Zuzanna.png"
CAPTION = "zuzanna in a purple turban"
OTHER = "13 Zuzanna.png"  # its name ends as the other's does


def found_in(folder: Path, words: Sequence[str]) -> dict[str, set[str]]:
    """Return the files, and tables, that hold a word: read as bytes, as Parquet, and as an SQLite database.

    But for the answer about another picture that has the same name.
    """
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
            if hits and not (place.endswith("reviews.jsonl") and hits == {NAME}):  # that is another picture's
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
            os.utime(folder / name, (number, number))  # digests of files that have just changed are not cached
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
    said = {"picture": digest, "name": name, "shown": "a cat", "given": given, "verdict": "edited"}
    return json.dumps(said, ensure_ascii=False) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a workspace that registered a version made with the photograph."""
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    folder = tmp_path
    workspace = folder / "workspace"
    register_all(data_set(folder))
    digest, other = (digest_of_file(folder / "photos" / name) for name in (NAME, OTHER))
    kept = answer(other, NAME, "a line\u2028break")  # of another picture of the same name, in another folder
    (workspace / "answers").mkdir()
    (workspace / "answers" / "reviews.jsonl").write_text(answer(digest, NAME, f"\u2028{CAPTION}") + kept)
    (workspace / "reviews.jsonl").symlink_to(workspace / "answers" / "reviews.jsonl")
    (workspace / "page").mkdir()
    (workspace / "page" / "small.html").write_text("shows it")
    (workspace / "checks").mkdir()
    (workspace / "checks" / "small.txt").write_text(f"{NAME}: has one caption")
    (workspace / "artifacts" / "train" / ".DS_Store").write_text("")
    (workspace / "prefect").mkdir()
    with contextlib.closing(sqlite3.connect(workspace / "prefect" / "prefect.db")) as connection, connection:
        connection.execute("create table events (id, payload)")
        rows = [(1, f"| {NAME} | {CAPTION} |"), (2, f"| {OTHER} | a dog |")]
        connection.executemany("insert into events values (?, ?)", rows)
    (folder / "digests.txt").write_text(f"{digest} {other}")
    return folder


def forget(folder: Path, *words: str) -> str:
    return output("forget", *words, "--workspace", folder / "workspace")


def words_of(folder: Path) -> tuple[str, str, str]:
    return (folder / "digests.txt").read_text().split()[0], NAME, CAPTION


def trained_without(folder: Path) -> Config:
    config = data_set(folder, [NAME])
    register_all(config)
    return config


def test_nothing_is_left_and_nothing_else_is_lost(folder: Path) -> None:
    workspace, words = folder / "workspace", words_of(folder)
    before = found_in(workspace, words)
    assert {place.split("/")[0] for place in before} >= {"digests.sqlite", "answers", "mlartifacts"}
    assert any("fingerprints" in place for place in before)
    config = trained_without(folder)
    kept = {name: artifact.path for name, artifact in artifacts(config).items()}
    digests = sorted(map(str, pq.read_table(kept["extract"] / "index.parquet")["digest"].to_pylist()))
    values = open_grids(artifacts(config)["extract"], config.machine).read(digests)

    assert "would be removed: add --yes" in forget(folder, NAME)
    assert found_in(workspace, words).keys() >= before.keys()
    text = forget(folder, NAME, "--yes")
    assert re.search("kept: models:/small/1, (champion|previous)", text)
    left = found_in(workspace, words)
    assert left and all("mlartifacts/" in place for place in left), left
    text = forget(folder, words[0], "--yes", "--versions")
    assert "still there" not in text and "kept" not in text
    assert not found_in(workspace, words)
    # All that was made without it is fresh, with the same grids, and what belongs to the other photograph is there.
    assert {status.state for status in plan(config)} == {"fresh"}
    assert {name: artifact.path for name, artifact in artifacts(config).items()} == kept
    again = open_grids(artifacts(config)["extract"], config.machine)
    np.testing.assert_array_equal(again.read(digests), values)
    assert (workspace / "reviews.jsonl").is_symlink()
    (line,) = (workspace / "reviews.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert json.loads(line)["given"] == "a line\u2028break"
    with contextlib.closing(sqlite3.connect(workspace / "prefect" / "prefect.db")) as connection:
        assert connection.execute("select id from events").fetchall() == [(2,)]
    assert any("digests.sqlite" in place for place in found_in(workspace, [digest_of_file(folder / "photos" / OTHER)]))


def test_a_photograph_that_is_still_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(monkeypatch, capsys, "forget", NAME, "--workspace", str(folder / "workspace"))
    assert f"{NAME}: the latest run of small read it: delete it and its captions" in message


@pytest.mark.slow
def test_a_version_that_another_model_uses_stays(folder: Path) -> None:
    trained_without(folder)
    client = tracking.connect(folder / "workspace", must_exist=True)
    client.copy_model_version("models:/small/1", "production")
    client.set_registered_model_alias("production", "live", "1")
    for alias in list(client.get_registered_model("small").aliases):
        client.delete_registered_model_alias("small", alias)
    text = forget(folder, NAME, "--yes")
    assert "kept: models:/production/1, live, " in text and "kept: models:/small/1, " in text
    files = files_of(client, client.get_model_version("production", "1"))
    assert files is not None and (files / "MLmodel").exists()


@pytest.mark.slow
def test_a_run_without_a_version_is_found(folder: Path) -> None:
    """So is what a kill in the middle of an earlier removal has left."""
    trained_without(folder)
    client = tracking.connect(folder / "workspace", must_exist=True)
    for alias in list(client.get_registered_model("small").aliases):
        client.delete_registered_model_alias("small", alias)
    client.delete_model_version("small", "1")
    text = forget(folder, words_of(folder)[0], "--yes")
    assert "MLflow's run" in text and "still there" not in text
    assert not found_in(folder / "workspace", words_of(folder)[:2])


@pytest.mark.slow
def test_a_kill_leaves_what_the_same_command_finds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_without(folder)
    removed = 0

    def dying(path: Path) -> None:
        nonlocal removed
        removed += 1
        if removed % 3 == 0:
            raise Killed
        remove_folder(path)

    for module in ("photograph_traces", "traced_versions"):
        monkeypatch.setattr(f"flows.commands.{module}.remove_folder", dying)
    for _ in range(12):
        with contextlib.suppress(Killed):
            forget(folder, words_of(folder)[0], "--yes", "--versions")
            break
    assert removed > 3
    assert not found_in(folder / "workspace", words_of(folder))


def test_unknown_and_ambiguous_photographs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], finished_copy: Path
) -> None:
    flags = ["--workspace", str(finished_copy)]
    message = refused(monkeypatch, capsys, "forget", "nobody.png", *flags)
    assert "nobody.png: no photograph of this name or file is known" in message
    (finished_copy / "digests.sqlite").write_bytes(b"")  # a cache may be lost at any time
    message = refused(monkeypatch, capsys, "forget", "0" * 64, *flags)
    assert "has nothing of 0000" in message
    manifest = next((finished_copy / "artifacts" / "ingest").glob("*/manifest.parquet"))
    table = pq.read_table(manifest).to_pylist()
    table[0]["name"] = table[1]["name"] = "same.png"
    pq.write_table(pq.read_table(manifest).from_pylist(table), manifest)
    message = refused(monkeypatch, capsys, "forget", "same.png", *flags)
    assert "same.png: is the name of 2 photographs: give the digest of one" in message


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
    message = command("forget", NAME, "--yes", "--versions")
    assert "models:/small/1" in message and "still named" not in message
    assert not found_in(tmp_path / "workspace", words)
    shutil.rmtree(tmp_path / "workspace")
