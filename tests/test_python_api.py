"""The Python API: the same captions as by the command line, from every form of a picture and of a captioner."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import attend
from tests.cli import Capture
from tests.cli import attend as command
from tests.support import pictures, small


@pytest.fixture(scope="module")
def captioner(registered: Path) -> attend.Captioner:
    return attend.load("models:/small@champion", workspace=registered)


def test_the_api_captions_as_the_command_does(
    captioner: attend.Captioner, registered: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    paths = pictures(registered)[:40]
    arguments = ["caption", *map(str, paths), "--json", "--workspace", str(registered)]
    code, out, err = command(monkeypatch, capsys, *arguments)
    assert code == 0, err
    expected = [row["caption"] for row in json.loads(out)]
    assert captioner.address == "models:/small/1" and len(set(expected)) > 1
    assert [result.caption for result in captioner(paths)] == expected
    assert [captioner(str(path)).caption for path in paths] == expected


def test_the_workspace_is_that_of_the_environment(registered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTEND_WORKSPACE", str(registered))
    assert attend.load().address == "models:/small/1"


def test_every_form_of_a_picture_has_the_same_caption(captioner: attend.Captioner, registered: Path) -> None:
    path = pictures(registered)[0]
    image = Image.open(path)
    forms: list[Any] = [str(path), path, path.read_bytes(), image, image.convert("RGBA"), image.convert("RGBX")]
    assert len({captioner(form).caption for form in forms}) == 1
    assert len({result.caption for result in captioner(form for form in forms)}) == 1
    assert captioner([]) == []
    deep = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    for mode, kind in (("I;16", np.uint16), ("I", np.int32), ("F", np.float32)):
        grey, out = Image.fromarray(deep.astype(kind)), io.BytesIO()
        assert grey.mode == mode
        grey.save(out, "TIFF")
        assert captioner(grey).log_probability == pytest.approx(captioner(out.getvalue()).log_probability), mode


def test_alternatives_attention_and_confidence_on_request(captioner: attend.Captioner, registered: Path) -> None:
    path = pictures(registered)[0]
    result = captioner(path, n_best=3, beam=3, attention=True)
    assert len(result.alternatives) == 2 and result.log_probability < 0
    assert result.attention is not None and result.attention.shape[0] == len(result.tokens)
    np.testing.assert_allclose(result.attention.sum(axis=(1, 2)), 1, atol=1e-3)
    assert captioner(path).attention is None
    with pytest.raises(attend.AttendError, match="n_best: a beam of 1 cannot give 2 captions"):
        captioner(path, beam=1, n_best=2)
    with pytest.raises(attend.AttendError, match="beem: no such option; known: beam, "):
        captioner(path, beem=3)


def test_an_unreadable_picture_has_its_own_error(captioner: attend.Captioner, registered: Path, tmp_path: Path) -> None:
    good, gone, broken = pictures(registered)[0], tmp_path / "gone.jpg", tmp_path / "broken.jpg"
    broken.write_bytes(good.read_bytes()[:60])
    results = captioner([good, gone, broken, good])
    assert [result.error is None for result in results] == [True, False, False, True]
    assert results[1].error == "No such file or directory" and results[0].caption == results[3].caption
    for path in (gone, broken):
        with pytest.raises(attend.AttendError, match=str(path)):
            captioner(path)
    wrong: Any
    for wrong in (3, [3], None, "~nobody-of-this-name/x.jpg", "a\0b"):
        with pytest.raises(attend.AttendError):
            captioner(wrong)
    with pytest.raises(attend.AttendError, match=r"attend run"):
        attend.load(workspace=tmp_path)


def test_an_exported_folder_captions_the_same(
    captioner: attend.Captioner, registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder, place = tmp_path / "exported", ("--workspace", str(registered))
    code, _, err = command(monkeypatch, capsys, "export", "--to", str(folder), *place)
    assert code == 0, err
    paths = pictures(registered)[:5]
    exported = attend.load(folder)
    expected = [result.caption for result in captioner(paths)]
    assert [result.caption for result in exported(paths)] == expected
    with pytest.raises(attend.AttendError, match="an exported folder has one runtime"):
        attend.load(folder, runtime="onnx")
    out = tmp_path / "captions.jsonl"
    for _ in range(2):
        arguments = ["caption", *map(str, paths), "--model", str(folder), "--out", str(out)]
        code, _, err = command(monkeypatch, capsys, *arguments)
        assert code == 0, err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["text"] for row in rows] == expected and str(folder) in rows[0]["model"]


def test_run_and_status(workspace: Path, tmp_path: Path) -> None:
    config = small(workspace, training__epochs=1)
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json", exclude={"data": {"path"}})))
    before = attend.status(path, until="evaluate")
    assert {item.state for item in before} == {"missing"} and before[0].stage == "ingest"
    result = attend.run(path, until="evaluate")
    assert result.ran == tuple(item.stage for item in before)
    assert "bleu4" in result.scores and result.version is None
    assert {item.state for item in attend.status(path, until="evaluate")} == {"fresh"}
    assert attend.run(path, until="evaluate").ran == ()
    changed = attend.status(path, "evaluation.beam=3", until="evaluate")
    assert [item.state for item in changed[:-1]] == ["fresh"] * (len(changed) - 1) and changed[-1].state == "stale"
    assert "evaluation.beam" in changed[-1].why[0]
    with pytest.raises(attend.AttendError, match="no such file"):
        attend.run(tmp_path / "none.yaml")
