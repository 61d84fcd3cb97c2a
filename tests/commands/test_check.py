"""`attend check`: each planted fault is named, all at once, and what is sound is left in peace."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tasks.config.stages import GridsConfig
from tasks.data.picture_files import picture_faults
from tasks.grids.weights import backbone_fault
from tests.cli import attend
from tests.photographs import picture

COUNT = 120
Capture = pytest.CaptureFixture[str]


def rows() -> list[dict[str, Any]]:
    split = ("train", "train", "train", "validation", "test")
    return [
        {"file_name": f"{n:03}.png", "text": [f"a red ball {n} on grass", f"a ball {n}"], "split": split[n % 5]}
        for n in range(COUNT)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sound data and a sound config, `mine.yaml`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photographs"
    for number in range(COUNT):
        picture(folder / f"{number:03}.png", number)
    write(folder, rows())
    config(tmp_path)
    return folder


def write(folder: Path, given: list[dict[str, Any]], more: str = "") -> None:
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given) + more)


def config(place: Path, **sections: object) -> None:
    values: dict[str, object] = {
        "preset": "demo",
        "data": {"adapter": "imagefolder", "path": str(place / "photographs")},
        "captions": {"min_count": 1},
        "evaluation": {"metrics": ["bleu"]},
        "registry": {"promote_on": "bleu4", "min_pictures": 5},
        "machine": {"workspace": str(place / "workspace")},
    }
    (place / "mine.yaml").write_text(json.dumps(values | sections))


def checked(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> dict[str, Any]:
    """What `--json` says; its exit code must agree with it."""
    code, out, err = attend(monkeypatch, capsys, "check", "mine.yaml", "--json")
    assert not err
    verdict: dict[str, Any] = json.loads(out)
    assert code == any(finding["kind"] == "error" for finding in verdict["findings"])
    return verdict


def test_a_valid_data_set_has_no_findings(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    verdict = checked(monkeypatch, capsys)
    assert verdict["findings"] == [] and verdict["pictures"] == COUNT and verdict["captions"] == 2 * COUNT
    assert verdict["splits"] == {"train": 72, "dev": 24, "test": 24}
    _, out, _ = attend(monkeypatch, capsys, "status", "mine.yaml")
    workspace = folder.parent / "workspace"
    assert out.splitlines()[-1] == f"nothing has run yet: there is no workspace in {workspace}"
    assert not workspace.exists()  # neither a check nor a look makes one
    workspace.mkdir()
    _, out, _ = attend(monkeypatch, capsys, "check", "mine.yaml")
    assert "120 pictures (72 train, 24 dev, 24 test), 240 captions: 0 errors, 0 warnings" in out
    _, out, _ = attend(monkeypatch, capsys, "status", "mine.yaml")
    assert ": 0 errors, 0 warnings" in out.splitlines()[-1] and out.splitlines()[-1].startswith("checked 20")


def changed(number: int, **fields: object) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        records = rows()
        records[number].update(fields)
        write(folder, records)

    return plant


def settings(**sections: object) -> Callable[[Path], None]:
    return lambda folder: config(folder.parent, **sections)


def of_another_architecture(folder: Path) -> None:
    safetensors.torch.save_file({"conv.weight": torch.zeros(2)}, folder.parent / "w.safetensors")
    config(folder.parent, grids={"weights": str(folder.parent / "w.safetensors")})


FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "cut header": (
        lambda folder: (folder / "001.png").write_bytes((folder / "002.png").read_bytes()[:9]),
        "warning",
        "001.png: is no picture of a known format",
    ),
    "cut pixels": (
        lambda folder: (folder / "001.png").write_bytes((folder / "001.png").read_bytes()[:-400]),
        "warning",
        "001.png: cannot be decoded",
    ),
    "missing file": (changed(3, file_name="gone.png"), "error", "metadata.jsonl:4: gone.png is captioned, but there"),
    "other folder": (changed(3, file_name="x/003.png"), "error", "003.png is there: correct the name"),
    "copy across splits": (
        lambda folder: shutil.copy(folder / "000.png", folder / "004.png"),
        "warning",
        "000.png (train) = 004.png (test)",
    ),
    "empty caption": (changed(5, text=["a ball", ""]), "error", "metadata.jsonl:6: text[1]: is empty"),
    "number for caption": (changed(5, text=7), "error", "metadata.jsonl:6: text: is 7"),
    "long caption": (changed(6, text="word " * 200), "warning", "a caption has 200 words"),
    "repeated caption": (changed(7, text=["a dog"] * 3), "warning", "has the caption 'a dog' 3 times"),
    "list in a text": (
        changed(8, text="('a red ball', 'two balls')"),
        "warning",
        "lists or objects, read as one caption: 1 caption, the first that of 008.png (",
    ),
    "JSON in a text": (
        changed(8, text='{"caption": "a red ball"}'),
        "warning",
        "lists or objects, read as one caption",
    ),
    "two captions in a text": (
        changed(8, text="a red ball here\ntwo balls are there"),
        "warning",
        r"'\n' between parts of several words, read as one caption: 1 caption, the first that of 008.png (",
    ),
    "a line break of a database": (
        changed(8, text=r"a red ball here\ntwo balls are there"),
        "warning",
        r"or set the table's `lists` to '\\n'",
    ),
    "caption without words": (changed(8, text="..."), "warning", "the caption '...' has no word"),
    "unknown split": (changed(9, split="trian"), "error", "metadata.jsonl:10: split: 'trian' is none of"),
    "broken line": (lambda folder: write(folder, rows(), "{\n"), "error", "metadata.jsonl:121: is not JSON"),
    "uncaptioned": (
        lambda folder: picture(folder / "x.png", 999),
        "warning",
        "1 picture of the data set without a caption, not used: ",
    ),
    "no test": (
        lambda folder: write(folder, [row for row in rows() if row["split"] != "test"]),
        "error",
        "the split test is empty",
    ),
    "unknown setting": (settings(training={"epochz": 1}), "error", "training.epochz: no such setting; did you mean"),
    "bad setting": (settings(training={"learning_rate": -1}), "error", "training.learning_rate: "),
    "contradiction": (settings(evaluation={"metrics": ["bleu", "truth"]}), "error", "`truth` needs facts"),
    "weights": (of_another_architecture, "error", "grids.weights: "),
    "workspace": (settings(machine={"workspace": "/proc/none"}), "error", "machine.workspace: /proc/none"),
    "rare words": (settings(captions={"min_count": 90}), "warning", "captions.min_count=90 leaves about"),
}


@pytest.mark.parametrize(
    ("grids", "tuning", "told"),
    [
        ({"backbone": "timm:resnet18", "weights": "random:0"}, None, ""),
        (
            {"backbone": "timm:resnet81", "weights": "random:0"},
            None,
            "grids.backbone: unknown backbone 'timm:resnet81'",
        ),
        ({"backbone": "timm:resnet18.no_such_tag", "weights": "timm:pretrained"}, None, "grids.backbone: unknown back"),
        ({"backbone": "timm:beit_base_patch16_224", "weights": "random:0"}, None, "grids.image_size: timm:beit_base_p"),
        (
            {"backbone": "torchvision:vit_b_32", "weights": "random:0"},
            None,
            "grids.image_size: torchvision:vit_b_32 ta",
        ),
        ({"backbone": "timm:resnet18.a1_in1k", "weights": "timm:pretrained"}, None, "cannot be downloaded from https:"),
        ({"backbone": "timm:resnet18", "weights": "timm:pretrained"}, None, "name the weights' tag"),
        ({"backbone": "timm:resnet18", "weights": "random:0"}, 5, "has 4 blocks: block 5 cannot be tuned"),
        ({"backbone": "timm:convnext_atto", "weights": "random:0"}, 5, "has 4 blocks: block 5 cannot be tuned"),
        ({"backbone": "timm:convnext_atto", "weights": "random:0"}, 4, ""),
    ],
)
def test_the_check_resolves_the_backbone_as_a_run_does(
    grids: dict[str, str], tuning: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it in this process: the check of a config has one of its own for it."""
    pytest.importorskip("timm")

    def offline(*_: object, **__: object) -> object:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    found, size = backbone_fault(GridsConfig(image_size=64, **grids), tuning)
    assert (told in found) if told else not found
    assert (size is None) == bool(found)


def test_timm_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    found, _ = backbone_fault(GridsConfig(backbone="timm:resnet18", weights="random:0", image_size=64), None)
    assert found == "grids.backbone: timm:resnet18: timm is not installed: run `uv pip install timm`"


def test_the_size_of_grids_and_a_block_that_timms_model_does_not_have_are_said_before_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("timm")
    full = shutil.disk_usage(folder)._replace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    for first_block, found, size in (
        (4, [], 3 * 3 * 512 * 2),  # float16
        (5, ["tuning.first_block: timm:resnet18 has 4 blocks: block 5 cannot be tuned"], None),
    ):
        grids = {"backbone": "timm:resnet18", "weights": "random:0"}
        config(folder.parent, grids=grids, tuning={"epochs": 1, "first_block": first_block})
        verdict = checked(monkeypatch, capsys)
        said = verdict["findings"]
        assert [item["message"] for item in said if item["about"] == "backbone"] == found
        assert verdict["grid_bytes"] == size
        assert ("GB are free on the disk" in str(said)) == (size is not None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, fault: str) -> None:
    plant, kind, message = FAULTS[fault]
    plant(folder)
    found = checked(monkeypatch, capsys)["findings"]
    assert [item["kind"] for item in found if message in item["message"]] == [kind], found
    # Nothing else is said of a picture or row that is sound.
    assert len(found) <= 3, found


def test_more_unreadable_pictures_than_a_run_leaves_out_are_errors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for number in range(2):
        (folder / f"00{number}.png").write_bytes(b"none")
    found = checked(monkeypatch, capsys)["findings"]
    assert [item["kind"] for item in found if "is no picture" in item["message"]] == ["error"] * 2
    config(folder.parent, grids={"max_failed": 0.1})
    found = checked(monkeypatch, capsys)["findings"]
    assert [item["kind"] for item in found if "is no picture" in item["message"]] == ["warning"] * 2
    assert "2 unreadable pictures: left out by a run (grids.max_failed=0.1)" in [item["message"] for item in found]


def test_a_sample_stands_for_the_pictures_that_were_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for number in range(0, COUNT, 5):  # a fifth of all, and of every tenth a half
        path = folder / f"{number:03d}.png"
        path.write_bytes(path.read_bytes()[:-400])
    code, out, _ = attend(monkeypatch, capsys, "check", "mine.yaml", "--sample", "12")
    assert code == 1 and "error   " in out and "and the pixels of 12 (--sample 120 reads all)" in out


@pytest.mark.parametrize("sample", [0, 1, 7, 40, 500])
def test_the_pixels_of_as_many_pictures_are_read_as_it_says(folder: Path, sample: int) -> None:
    paths = sorted(folder.glob("*.png"))
    for path in paths:
        path.write_bytes(path.read_bytes()[:-400])
    found = picture_faults(paths, sample)
    assert not found.headers and len(found.pixels) == min(sample, len(paths))


def test_faults_are_reported_together(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    FAULTS["cut header"][0](folder)
    FAULTS["broken line"][0](folder)
    config(folder.parent, training={"epochz": 1, "learning_rate": -1}, evaluation={"metrics": ["bleu", "truth"]})
    code, out, _ = attend(monkeypatch, capsys, "check", "mine.yaml")
    assert code == 1
    for message in ("epochz", "learning_rate", "truth", "001.png", "metadata.jsonl:121"):
        assert sum(message in line for line in out.splitlines()) == 1, out
    assert ": 4 errors, " in out


def test_rows_that_are_skipped_are_no_errors(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    FAULTS["empty caption"][0](folder)
    data = {"adapter": "imagefolder", "path": str(folder), "on_error": "skip"}
    config(folder.parent, data=data)
    (found,) = [item for item in checked(monkeypatch, capsys)["findings"] if "metadata" in item["message"]]
    assert found["kind"] == "warning" and "metadata.jsonl:6" in found["message"]


def test_many_findings_of_one_kind_are_three_examples_and_a_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for number in range(20):
        (folder / f"{number:03}.png").unlink()
    (folder / "100.png").write_bytes(b"")
    code, out, _ = attend(monkeypatch, capsys, "check", "mine.yaml")
    errors = [line for line in out.splitlines() if line.startswith("error")]
    missing = [line for line in errors if "there is no such picture" in line]
    assert code == 1 and len(missing) == 3 and "and 17 more like these: " in out
    assert "100.png" in out and " 20 errors" in out
    assert len(checked(monkeypatch, capsys)["findings"]) >= 21
