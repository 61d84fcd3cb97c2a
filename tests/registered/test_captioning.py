"""`attend caption`: folders, patterns and Parquet files to a file of captions, each picture once, however often killed."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.registered import caption
from flows.registered.cached_grids import cached_grids
from flows.registered.caption import CaptionCounts, write_captions_file
from flows.registered.pictures_to_caption import PictureFiles
from tasks.captioner.bundle import make_captioner
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.common.sqlite_cache import SqliteCache
from tasks.data.caption_files import read_vocabulary
from tasks.evaluation.rescore import rescore
from tasks.grids import store
from tests.cli import attend, refused
from tests.support import artifacts, captioner_artifacts, pictures, trained


def captions_of(workspace: Path, photographs: list[bytes]) -> list[str]:
    config = trained(workspace)
    captioner = make_captioner(config, captioner_artifacts(config))
    return [item.caption for item in captioner.caption(photographs)]


def folder_of(registered: Path, place: Path, count: int = 5) -> Path:
    (place / "sub").mkdir(parents=True)
    for at, path in enumerate(pictures(registered)[:count]):
        shutil.copy(path, place / ("sub" if at == 0 else "") / path.name)
    return place


def read(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        rows: list[dict[str, object]] = pq.read_table(path).to_pylist()
        return rows
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [
                {**row, "log_probability": float(row["log_probability"] or 0), "error": row["error"] or None}
                for row in csv.DictReader(file)
            ]
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_picture_opens_only_its_own_shard(registered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    read_shard = store.read_shard

    def counting(index: Path) -> Any:
        opened.append(index)
        return read_shard(index)

    monkeypatch.setattr(store, "read_shard", counting)
    photograph = pictures(registered)[0]
    digest = digest_of_file(photograph)
    reader = cached_grids("models:/small/1", registered, {digest})
    assert len(list(registered.glob("grids/*/shard-*.parquet"))) > 2
    assert reader is not None and digest in reader and len(set(opened)) == 1
    assert cached_grids("models:/small/1", registered, {"0" * 64}) is None and len(set(opened)) == 1


def test_files_that_cannot_be_read_do_not_slow_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests of all files are written to the database at once."""
    for number in range(20):
        (tmp_path / f"{number}.png").write_text(str(number))
        os.utime(tmp_path / f"{number}.png", (1, 1))
    (tmp_path / "folder.png").mkdir()
    writes: list[int] = []
    write = SqliteCache.write

    def counting(cache: SqliteCache, statement: str, rows: Any) -> None:
        writes.append(len(rows))
        write(cache, statement, rows)

    monkeypatch.setattr(SqliteCache, "write", counting)
    found = PictureFiles(
        sorted([*tmp_path.glob("*.png"), tmp_path / "gone.png"]), tmp_path, tmp_path / "digests.sqlite"
    )
    named = dict(found.named())
    assert writes == [20] and len(named) == 22
    assert [name for name, digest in named.items() if digest is None] == ["folder.png", "gone.png"]


def test_a_caption_without_a_word_leaves_no_drawing_and_says_so(
    registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photograph, out = str(pictures(registered)[0]), tmp_path / "map.png"
    arguments = ("caption", photograph, "--workspace", str(registered), "--attention", str(out))
    assert attend(monkeypatch, capsys, *arguments)[0] == 0 and out.stat().st_size > 0
    out.unlink()
    caption_batch = caption.caption_batch

    def wordless(*given: Any) -> Any:
        for row, result in caption_batch(*given):
            yield {**row, "text": ""}, replace(result, caption="", tokens=[])

    monkeypatch.setattr(caption, "caption_batch", wordless)
    message = refused(monkeypatch, capsys, *arguments)
    assert message.endswith(f"{out}: is not written: the caption of {photograph} has no word to draw")
    assert not out.exists()


@pytest.mark.parametrize("asked", [None, {"beam": 1}, {"temperature": 1.0}])
def test_pictures_whose_grids_are_there_are_captioned_without_the_backbone(
    registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, float] | None
) -> None:
    """As from the photographs; a new picture beside them, and one that cannot be read, are encoded or told as ever."""
    folder = folder_of(registered, tmp_path / "folder")
    encoded: list[str] = []
    new = folder / "new.png"
    Image.effect_noise((64, 64), 80).convert("RGB").save(new)
    (folder / "text.png").write_text("no picture")
    caption_batch = caption.caption_batch

    def counting(captioner: Any, batch: list[Any], *given: Any) -> Any:
        encoded.extend(picture.name for picture in batch)
        return caption_batch(captioner, batch, *given)

    monkeypatch.setattr(caption, "caption_batch", counting)
    out, plain = tmp_path / "captions.parquet", tmp_path / "plain.parquet"
    counts = write_captions_file(out, [str(folder)], None, asked, registered)
    assert counts == CaptionCounts(7, 0, 1) and sorted(encoded) == ["new.png", "text.png"]
    monkeypatch.setattr(caption, "grids_for", lambda *_: None)
    assert write_captions_file(plain, [str(folder)], None, asked, registered) == counts and len(encoded) == 2 + 7
    cached, fresh = read(out), read(plain)
    for name in ("file_name", "text", "error", "digest"):
        assert [row[name] for row in cached] == [row[name] for row in fresh]
    for one, other in zip(cached, fresh, strict=True):
        assert one["log_probability"] == (
            other["log_probability"] and pytest.approx(other["log_probability"], abs=1e-4)
        )


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_folder_is_captioned_once(registered: Path, tmp_path: Path, suffix: str) -> None:
    folder, out = folder_of(registered, tmp_path / "folder"), tmp_path / f"captions.{suffix}"
    given = [str(folder)]
    assert write_captions_file(out, given, None, None, registered) == CaptionCounts(5, 0, 0)
    rows = read(out)
    assert [row["file_name"] for row in rows][-1] == f"sub/{pictures(registered)[0].name}"
    expected = captions_of(registered, [(folder / str(row["file_name"])).read_bytes() for row in rows])
    assert [row["text"] for row in rows] == expected and len(set(expected)) > 1
    assert write_captions_file(out, given, None, None, registered) == CaptionCounts(0, 5, 0) and read(out) == rows
    shutil.copy(pictures(registered)[7], folder)
    shutil.copy(folder / pictures(registered)[1].name, folder / "copy.png")
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "sub" / pictures(registered)[0].name).rename(folder / "renamed.png")
    (folder / pictures(registered)[2].name).unlink()
    assert write_captions_file(out, given, "models:/small/1", None, registered) == CaptionCounts(2, 5, 1, kept=2)
    by_name = {str(row["file_name"]): row for row in read(out)}
    assert len(by_name) == 9 and "no picture" in str(by_name["broken.png"]["error"]) and by_name["renamed.png"]["text"]
    assert by_name["copy.png"]["text"] == by_name[pictures(registered)[1].name]["text"]
    assert [row for row in rows if row["file_name"] == pictures(registered)[2].name] == [
        by_name[pictures(registered)[2].name]
    ]  # gone from the folder, and kept
    assert write_captions_file(out, given, None, {"beam": 1}, registered).new == 7  # another beam: other captions
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, "folder"]


def test_the_pictures_of_a_parquet_file(registered: Path, tmp_path: Path) -> None:
    data = [path.read_bytes() for path in pictures(registered)[:6]]
    out, path = tmp_path / "captions.parquet", tmp_path / "fetched.parquet"
    urls = [f"https://example.org/{at}.png" for at in range(7)]
    pq.write_table(pa.table({"url": urls, "image": [*data, None]}), path)
    assert write_captions_file(out, [str(path)], None, None, registered) == CaptionCounts(7, 0, 1)
    rows = read(out)
    assert [row["file_name"] for row in rows] == urls and "is empty" in str(rows[-1]["error"])
    assert [row["text"] for row in rows[:-1]] == captions_of(registered, data)
    # Hugging Face keeps {bytes, path}.
    pq.write_table(pa.table({"image": [{"bytes": item, "path": None} for item in data]}), path)
    assert write_captions_file(out, [str(path)], None, None, registered) == CaptionCounts(0, 6, 0, kept=7)
    assert read(out)[2]["file_name"] == "row 2"
    pq.write_table(pa.table({"url": urls}), path)
    with pytest.raises(AttendError, match="needs one binary column of encoded pictures, but has none"):
        write_captions_file(out, [str(path)], None, None, registered)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_name_that_is_not_utf8_is_reported_as_well_as_it_can_be(
    registered: Path, tmp_path: Path, suffix: str
) -> None:
    folder, out = folder_of(registered, tmp_path / "folder"), tmp_path / f"captions.{suffix}"
    shutil.copy(os.fsencode(pictures(registered)[9]), os.fsencode(folder) + b"/caf\xe9.png")
    assert write_captions_file(out, [str(folder)], None, None, registered) == CaptionCounts(6, 0, 0)
    assert write_captions_file(out, [str(folder)], None, None, registered) == CaptionCounts(0, 6, 0)
    assert "caf\N{REPLACEMENT CHARACTER}.png" in {row["file_name"] for row in read(out)}


def test_pictures_of_another_folder_do_not_replace_those_of_the_same_name(registered: Path, tmp_path: Path) -> None:
    out = tmp_path / "captions.csv"
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        shutil.copy(pictures(registered)[number], tmp_path / str(number) / "IMG_1.png")
        counts = write_captions_file(out, [str(tmp_path / str(number))], None, None, registered)
        assert counts == CaptionCounts(1, 0, 0, kept=number)
    assert [(row["file_name"], Path(str(row["folder"])).name) for row in read(out)] == [
        ("IMG_1.png", "1"),
        ("IMG_1.png", "0"),
    ]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_file_with_columns_of_ones_own_is_not_replaced(registered: Path, tmp_path: Path, suffix: str) -> None:
    folder, out = folder_of(registered, tmp_path / "folder"), tmp_path / f"captions.{suffix}"
    write_captions_file(out, [str(folder)], None, None, registered)
    rows = [{**row, "reviewed": "yes"} for row in read(out)]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), out)
    elif suffix == "csv":
        out.write_text(out.read_text().replace("\n", ",yes\n").replace("model,yes", "model,reviewed", 1))
    else:
        out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    before = out.read_bytes()
    with pytest.raises(AttendError, match=r"has columns of its own \(reviewed\), which would be lost"):
        write_captions_file(out, [str(folder)], None, None, registered)
    assert out.read_bytes() == before


def test_mistakes_are_reported_and_nothing_is_lost(
    registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = folder_of(registered, tmp_path / "folder"), tmp_path / "captions.jsonl"
    for given, told in (
        (["https://example.org/a.jpg"], "is a web address: download the picture and give the file"),
        ([str(folder / "*.webp")], "no such picture"),
        ([str(tmp_path / "none")], "no such picture"),
    ):
        with pytest.raises(AttendError, match=told):
            write_captions_file(out, given, None, None, registered)
    with pytest.raises(AttendError, match=r"ending in .csv, .jsonl or .parquet"):
        write_captions_file(tmp_path / "captions.txt", [str(folder)], None, None, registered)
    with pytest.raises(AttendError, match="is not a valid pattern"):
        write_captions_file(out, [str(folder / "**.png")], None, None, registered)
    assert write_captions_file(out, [str(folder / "*.png")], None, None, registered).new == 4
    gone = folder / "gone.png"
    gone.symlink_to(folder / "nothing.png")
    written = read(out)
    monkeypatch.setattr("flows.registered.pictures_to_caption.picture_files", lambda _: [*sorted(folder.glob("*.png"))])
    assert write_captions_file(out, [str(folder)], None, None, registered) == CaptionCounts(1, 4, 1, kept=4)
    said = [[row["digest"], row["text"]] for row in written]
    assert [[row["digest"], row["text"]] for row in read(out) if row["error"] is None] == said * 2  # by other names
    gone.unlink()
    shutil.copy(pictures(registered)[9], gone)
    assert write_captions_file(out, [str(folder)], None, None, registered) == CaptionCounts(
        1, 4, 0, kept=4
    )  # tried again
    out.write_text("not a line of captions\n")
    with pytest.raises(AttendError, match=r"captions.jsonl:1: is not a line of captions"):
        write_captions_file(out, [str(folder)], None, None, registered)
    assert out.read_text() == "not a line of captions\n"


def test_captions_of_a_failed_run_are_kept(registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = folder_of(registered, tmp_path / "folder", 12), tmp_path / "captions.parquet"
    monkeypatch.setattr("flows.registered.pictures_to_caption._BATCH", 4)
    monkeypatch.setattr(caption, "grids_for", lambda *_: None)  # so that the pictures are encoded
    asked: list[int] = []
    real = caption.caption_batch

    def failing(captioner, batch, beam, attention=False):  # type: ignore[no-untyped-def]
        asked.append(len(batch))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(captioner, batch, beam, attention)

    monkeypatch.setattr(caption, "caption_batch", failing)
    with pytest.raises(KeyboardInterrupt):
        write_captions_file(out, [str(folder)], None, None, registered)
    assert not out.exists() and asked == [4, 4, 4]
    assert write_captions_file(out, [str(folder)], None, None, registered).new == 4
    assert len({row["file_name"] for row in read(out)}) == 12


@pytest.mark.slow
def test_killed_twice_each_picture_is_captioned_exactly_once(registered: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of the work: what was kept by then is not done again."""
    folder, out = tmp_path / "many", tmp_path / "captions.parquet"
    folder.mkdir()
    for at in range(3000):  # bytes after the end of a PNG make another content of the same picture
        data = pictures(registered)[at % 60].read_bytes()
        (folder / f"{at:05d}.png").write_bytes(data + at.to_bytes(4, "big"))
    code = (
        "import sys; from flows.registered import caption; caption._PART_SECONDS = 0.2; from pathlib import Path\n"
        "print(caption.write_captions_file(Path(sys.argv[1]), [sys.argv[2]], 'models:/small/1', {'beam': 1}, Path(sys.argv[3])))"
    )
    command = [sys.executable, "-c", code, str(out), str(folder), str(registered)]
    kept: list[int] = []
    for _ in range(2):
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while sum(len(read(part)) for part in tmp_path.glob("*.parts/*.parquet")) <= sum(kept) + 200:
            assert run.poll() is None, run.communicate()
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        kept.append(sum(len(read(part)) for part in tmp_path.glob("*.parts/*.parquet")) - sum(kept))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"3,000 captioned ({sum(kept):,} of them earlier)")
    assert [row["file_name"] for row in read(out)] == [f"{at:05d}.png" for at in range(3000)]
    assert not list(tmp_path.glob("*.parts"))


def test_a_champion_is_scored_by_the_settings_that_its_code_has(registered: Path, tmp_path: Path) -> None:
    config = trained(registered)
    captioner = make_captioner(config, captioner_artifacts(config))
    known = {name: value for name, value in vars(captioner.decoding).items() if name != "no_echo"}

    class Older:
        """A captioner of code that was written before `no_echo`."""

        decoding, config = SimpleNamespace(**known), captioner.config

        def caption(self, photographs: list[bytes], **decoding: Any) -> Any:
            assert decoding.keys() <= known.keys()
            return captioner.caption(photographs, **decoding)

    found = artifacts(config)
    given = (found["ingest"], config.data, read_vocabulary(found["tensorise"].path))
    scores = rescore(Older(), "models:/older/1", *given, config.evaluation, tmp_path / "older.parquet")
    same = rescore(captioner, "models:/small/1", *given, config.evaluation, tmp_path / "small.parquet")
    assert scores["scores"] == same["scores"]
    assert scores["signature"] == same["signature"]


def test_a_smaller_search_than_the_evaluations_is_what_was_asked_for(registered: Path) -> None:
    config = trained(registered)
    evaluation = config.evaluation.model_copy(update={"beam": 4, "n_best": 3})
    captioner = make_captioner(config.model_copy(update={"evaluation": evaluation}), captioner_artifacts(config))
    captioner.decoding = replace(captioner.decoding, min_length=5)
    photograph = pictures(registered)[0].read_bytes()
    for asked, alternatives in (({}, 2), ({"beam": 1}, 0), ({"beam": 2}, 1), ({"beam": 2, "max_length": 3}, 1)):
        (captions,) = captioner.caption([photograph], **asked)
        assert captions.error is None and len(captions.alternatives) == alternatives
