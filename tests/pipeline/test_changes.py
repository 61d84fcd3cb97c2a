"""One row a change: what is extracted, written, run and registered for it, and nothing beyond."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.config.schema import Config
from tasks.data.manifest import GENERATED_FOLDER
from tasks.mlflow_store import tracking
from tasks.mlflow_store.embedded_store import DATABASE
from tasks.mlflow_store.runs import PARENT_RUN
from tasks.mlflow_store.versions import version_with_alias
from tasks.pipeline import file_digests
from tasks.pipeline.file_digests import Digests
from tasks.pipeline.workspace import Workspace
from tests.support import STAGES, artifacts, inputs_of, plan, raise_version, run_stage, small


def test_a_change_within_one_tick_of_a_coarse_clock_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the files are hashed in between."""
    path, now = tmp_path / "a.jpg", 1_700_000_000 * 10**9

    def rewritten(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(now, now))

    def hashed(file: Path) -> str:
        digest = digest_of_file(file)
        clock.append(now + 60 * 10**9)
        rewritten(b"two")
        return digest

    clock = [now + 10**9]
    monkeypatch.setattr(time, "time_ns", lambda: clock[-1])
    monkeypatch.setattr(file_digests, "digest_of_file", hashed)
    rewritten(b"one")
    digests = Digests(tmp_path / "digests.sqlite")
    assert digests.of([path]) == {path: hashlib.sha256(b"one").hexdigest()}
    assert digests.of([path]) == {path: hashlib.sha256(b"two").hexdigest()}
    path.unlink()
    with pytest.raises(AttendError, match=r"a.jpg: is gone since its folder was listed: run again"):
        digests.of([path])


ALL = ("ingest", "extract", "tensorise", "train", "remember", "evaluate", "register")
Rows = list[dict[str, str]]


@dataclass
class Place:
    """A data set of forty pictures, thirty-two to train on, and the workspace in which it has run."""

    folder: Path

    def config(self, **changes: object) -> Config:
        data = {"adapter": "table", "path": self.folder / "captions.csv", "images": self.folder / "pictures"}
        fixed = {"evaluation__metrics": ["bleu"], "grids__max_failed": 0.05}
        return small(self.folder / "workspace", data=data, **fixed, **changes)

    def rows(self) -> Rows:
        with (self.folder / "captions.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def write(self, rows: Rows) -> None:
        with (self.folder / "captions.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["image", "caption", "split"])
            writer.writeheader()
            writer.writerows(rows)

    def picture(self, name: str) -> Path:
        return self.folder / "pictures" / name


@dataclass(frozen=True)
class Done:
    """What a run did. extracted: pictures. shards: written. runs: of trainings in MLflow. versions: there too."""

    stages: tuple[str, ...] = ()
    extracted: int = 0
    shards: int = 0
    runs: int = 0
    versions: int = 0


def run(config: Config) -> Done:
    """Run every stage, and count."""
    workspace = Workspace(config.workspace)
    before = made(config)
    foretold = {status.stage.name for status in plan(config) if not status.fresh}
    inputs = inputs_of(config)
    ran = tuple(name for name in STAGES if not run_stage(config, name, inputs).fresh)
    assert set(ran) <= foretold  # status said so; what came out the same cut the rest off
    now = made(config)
    counts = artifacts(config)["extract"].ledger.counts if "extract" in ran else {"extracted": 0}
    assert not list(workspace.root.rglob("*.partial"))
    return Done(ran, int(counts["extracted"]), *(now[name] - before[name] for name in ("shards", "runs", "versions")))


def made(config: Config) -> dict[str, int]:
    client = tracking.connect(config.workspace)
    experiments = [item.experiment_id for item in client.search_experiments()]
    return {
        "shards": len(list(config.workspace.glob("grids/*/shard-*.h5"))),
        "runs": sum(PARENT_RUN not in run.data.tags for run in client.search_runs(experiments)),
        "versions": len(client.search_model_versions()),
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changes") / "place"
    place = Place(folder)
    generated = small(folder / "generated", data__pictures=40)
    run_stage(generated, "ingest")
    shutil.copytree(artifacts(generated, "ingest")["ingest"].path / GENERATED_FOLDER, folder / "pictures")
    shutil.rmtree(folder / "generated")
    names = sorted(path.name for path in (folder / "pictures").iterdir())
    words = ("red", "green", "blue")
    rows = [
        {
            "image": name,
            "caption": f"a {words[(at + more) % 3]} shape",
            "split": "train" if at < 32 else "dev" if at < 36 else "test",
        }
        for at, name in enumerate(names)
        for more in range(2)
    ]
    place.write(rows)
    assert run(place.config()) == Done(ALL, extracted=40, shards=3, runs=1, versions=1)
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Iterator[Place]:
    """The place itself, put back as it was afterwards: a copied workspace would register its model again."""
    shutil.copytree(finished, tmp_path / "kept")
    yield Place(finished)
    database = Path("workspace") / DATABASE
    for path in finished.rglob("*"):
        if path.is_file() and path != finished / database:
            path.unlink()
    # Within the file: MLflow keeps it open.
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "kept" / database)) as kept,
        contextlib.closing(sqlite3.connect(finished / database)) as used,
    ):
        kept.backup(used)
    (tmp_path / "kept" / database).unlink()
    shutil.copytree(tmp_path / "kept", finished, dirs_exist_ok=True)


def nothing(place: Place) -> None:
    """No change."""


def picture_added(place: Place, split: str = "train") -> None:
    ImageOps.invert(Image.open(place.picture("scene_000001.png")).convert("RGB")).save(place.picture("new.png"))
    place.write([*place.rows(), {"image": "new.png", "caption": "a red shape", "split": split}])


def held_out_picture_added(place: Place) -> None:
    picture_added(place, "test")


def held_out_picture_broken(place: Place) -> None:
    """One that cannot be decoded, among those that nothing is trained or watched on."""
    place.picture("new.png").write_bytes(b"no picture")
    place.write([*place.rows(), {"image": "new.png", "caption": "a red shape", "split": "test"}])


def picture_changed(place: Place) -> None:
    path = place.picture("scene_000001.png")
    ImageOps.invert(Image.open(path).convert("RGB")).save(path)


def picture_renamed(place: Place) -> None:
    place.picture("scene_000001.png").rename(place.picture("renamed.png"))
    place.write([{**row, "image": row["image"].replace("scene_000001", "renamed")} for row in place.rows()])


def picture_removed(place: Place) -> None:
    place.picture("scene_000001.png").unlink()
    place.write([row for row in place.rows() if row["image"] != "scene_000001.png"])


def caption_edited(place: Place, at: int = 0) -> None:
    rows = place.rows()
    rows[at]["caption"] = "a small red shape"
    place.write(rows)


def held_out_caption_edited(place: Place) -> None:
    caption_edited(place, -1)


def caption_added(place: Place) -> None:
    place.write([*place.rows(), {**place.rows()[0], "caption": "one more red shape"}])


def caption_removed(place: Place) -> None:
    place.write(place.rows()[1:])


def split_changed(place: Place) -> None:
    rows = place.rows()
    place.write([{**row, "split": "test"} if row["image"] == rows[0]["image"] else row for row in rows])


def rows_reordered(place: Place) -> None:
    """Another file, the same content."""
    rows = place.rows()
    place.write([*rows[2:], *rows[:2]])


def weights_deleted(place: Place) -> None:
    (artifacts(place.config())["train"].path / "weights.safetensors").unlink()


def scores_damaged(place: Place) -> None:
    (artifacts(place.config())["evaluate"].path / "scores.json").write_bytes(b"{")


def shard_deleted(place: Place) -> None:
    (place.folder / "workspace" / next(iter(artifacts(place.config())["extract"].ledger.shared))).unlink()


def ledger_deleted(place: Place) -> None:
    (artifacts(place.config())["ingest"].path / "ledger.json").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "done"),
    [
        (nothing, Done()),
        (picture_added, Done(ALL, extracted=1, shards=1, runs=1, versions=1)),
        (
            held_out_picture_added,
            Done(("ingest", "extract", "tensorise", "evaluate", "register"), extracted=1, shards=1, versions=1),
        ),
        (held_out_picture_broken, Done(("ingest", "extract", "tensorise", "evaluate", "register"), versions=1)),
        (picture_changed, Done(ALL, extracted=1, shards=1, runs=1, versions=1)),
        (picture_renamed, Done(("ingest",))),
        (picture_removed, Done(ALL, runs=1, versions=1)),
        (
            caption_edited,
            Done(("ingest", "tensorise", "train", "remember", "evaluate", "register"), runs=1, versions=1),
        ),
        (held_out_caption_edited, Done(("ingest", "tensorise", "evaluate", "register"), versions=1)),
        (caption_added, Done(("ingest", "tensorise", "train", "remember", "evaluate", "register"), runs=1, versions=1)),
        (
            caption_removed,
            Done(("ingest", "tensorise", "train", "remember", "evaluate", "register"), runs=1, versions=1),
        ),
        (split_changed, Done(("ingest", "tensorise", "train", "remember", "evaluate", "register"), runs=1, versions=1)),
        (rows_reordered, Done(("ingest",))),
        (weights_deleted, Done(("train",))),
        (scores_damaged, Done(("evaluate",))),
        (shard_deleted, Done(("extract",), extracted=16, shards=1)),
        (ledger_deleted, Done(("ingest",))),
    ],
)
def test_a_change_costs_what_depends_on_it(place: Place, change: Callable[[Place], None], done: Done) -> None:
    change(place)
    assert run(place.config()) == done
    assert run(place.config()) == Done()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "done"),
    [
        ({"evaluation__beam": 3}, Done(("evaluate", "register"), versions=1)),
        ({"training__seed": 5}, Done(("train", "evaluate", "register"), runs=1, versions=1)),
        (
            {"captions__max_tokens": 9},
            Done(("tensorise", "train", "remember", "evaluate", "register"), runs=1, versions=1),
        ),
        (
            {"grids__image_size": 96},
            Done(("extract", "train", "remember", "evaluate", "register"), extracted=40, shards=3, runs=1, versions=1),
        ),
        ({"machine__shard_rows": 5}, Done()),
    ],
)
def test_a_setting_changed_and_changed_back(place: Place, setting: dict[str, object], done: Done) -> None:
    assert run(place.config(**setting)) == done
    assert run(place.config()) == Done()  # what was made is there still
    assert run(place.config(**setting)) == Done()


def source_of(place: Place, pictures: list[str], split: str) -> dict[str, object]:
    """A second source with one caption for each of some pictures of the first, or of others, in this split."""
    folder = place.folder / "other"
    folder.mkdir(exist_ok=True)
    for name in pictures:
        if place.picture(name).exists():
            shutil.copy(place.picture(name), folder)
        else:
            ImageOps.invert(Image.open(place.picture("scene_000001.png")).convert("RGB")).save(folder / name)
    lines = [f"{name},a red shape\n" for name in pictures]
    (folder / "captions.csv").write_text("".join(["image,caption\n", *lines]))
    return {"adapter": "table", "path": folder / "captions.csv", "images": folder, "split": split}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pictures", "split", "done"),
    [
        # New captions of pictures that are known: nothing is extracted.
        (
            ["scene_000001.png"],
            "train",
            Done(("ingest", "tensorise", "train", "remember", "evaluate", "register"), runs=1, versions=1),
        ),
        (["scene_000039.png"], "test", Done(("ingest", "tensorise", "evaluate", "register"), versions=1)),
        (["new.png"], "train", Done(ALL, extracted=1, shards=1, runs=1, versions=1)),
        (["scene_000039.png"], "train", Done(("ingest",))),  # test in the first source: left out
    ],
)
def test_a_source_added_changed_and_removed(place: Place, pictures: list[str], split: str, done: Done) -> None:
    first = {"adapter": "table", "path": place.folder / "captions.csv", "images": place.folder / "pictures"}

    def config(sources: dict[str, object]) -> Config:
        fixed = {"evaluation__metrics": ["bleu"], "grids__max_failed": 0.05}
        return small(place.folder / "workspace", data={"adapter": "sources", "sources": sources}, **fixed)

    assert run(config({"first": first})) == Done(("ingest",))  # as the only source, it is what it was
    second = source_of(place, pictures, split)
    assert run(config({"first": first, "second": second})) == done
    assert run(config({"first": first, "second": second})) == Done()
    with (place.folder / "other" / "captions.csv").open("a") as file:
        file.write(f"{pictures[0]},a blue shape\n")
    again = tuple(name for name in done.stages if name != "extract")
    assert run(config({"first": first, "second": second})) == Done(again, runs=done.runs, versions=done.versions)
    assert run(config({"first": first})) == Done()  # removed: what was made is there still


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("ingest", Done(("ingest",))),
        (
            "extract",
            Done(("extract", "train", "remember", "evaluate", "register"), extracted=40, shards=3, runs=1, versions=1),
        ),
        ("tensorise", Done(("tensorise",))),
        ("train", Done(("train",))),
        ("evaluate", Done(("evaluate",))),
        ("register", Done(("register",))),  # the same bundle with the same scores is the same version
    ],
)
def test_a_stage_version_raised(place: Place, monkeypatch: pytest.MonkeyPatch, name: str, done: Done) -> None:
    raise_version(monkeypatch, place.config(), name)
    assert run(place.config()) == done


@pytest.mark.slow
def test_a_version_deleted_from_the_registry_is_registered_again(place: Place) -> None:
    client = tracking.connect(place.config().workspace)
    client.delete_registered_model_alias("small", "champion")
    client.delete_model_version("small", "1")
    assert run(place.config()) == Done(("register",), versions=1)
    assert version_with_alias(client, "small", "champion") is not None
