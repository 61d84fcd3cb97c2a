"""Commands that tell: every setting, registered versions, what changed in words, and what a run made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.page.history import history_file, read_history, record_run
from flows.page.project_page import write_page
from models.decoders.base import make
from tasks.common.errors import AttendError
from tasks.config.reference import sections
from tasks.config.schema import Config, load
from tasks.config.stages import EncoderConfig
from tasks.config.training import SelfCriticalConfig, TuningConfig
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.versions import find
from tests.cli import attend, refused, written
from tests.photographs import picture
from tests.support import artifacts, names_of, plan, planned, register_all, run_stage, small

Capture = pytest.CaptureFixture[str]


def test_every_setting_is_reported_with_its_meaning(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    known = sections()
    told = {setting.name for part in known.values() for setting in part.settings}
    shared = {"tuning": TuningConfig.SHARED, "self_critical": SelfCriticalConfig.SHARED}
    for name, part in small(Path("w"), tuning={}, self_critical={}).model_dump().items():
        fields = {*(part or EncoderConfig.model_fields)} - {*shared.get(name, ())}
        assert name in told or {f"{name}.{field}" for field in fields} <= told
    assert not [setting.name for part in known.values() for setting in part.settings if not setting.about]
    assert {name for name, field in Config.model_fields.items() if not field.exclude} - {"data"} <= {
        name.partition(".")[0] for name in [*known, *told]
    }
    _, out, _ = attend(monkeypatch, capsys, "settings", "training")
    assert "training.epochs  (whole number, >= 1; default 20)" in out
    _, out, _ = attend(monkeypatch, capsys, "settings", "--json")
    assert {item["name"] for item in json.loads(out)["data.table"]["settings"]} >= {"data.path", "data.delimiter"}
    assert "did you mean 'training'" in refused(monkeypatch, capsys, "settings", "trainig")


def test_an_adapter_by_another_name_is_suggested(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for name, meant in (("csv", "table"), ("folder", "imagefolder"), ("kapathy", "karpathy")):
        assert f"did you mean '{meant}'?" in refused(monkeypatch, capsys, "status", "flickr8k", f"data.adapter={name}")


def test_versions_are_listed_and_shown(
    registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    flags = ["--workspace", str(registered)]
    _, out, _ = attend(monkeypatch, capsys, "models", "list", *flags)
    assert out.startswith("models:/small/1 ") and " champion " in out and "bleu4 " in out
    (listed,) = json.loads(attend(monkeypatch, capsys, "models", "list", "small", "--json", *flags)[1])
    assert listed["aliases"] == ["champion"] and listed["scores"]["bleu4"] > 0
    assert "smal: no such model; registered: small" in refused(monkeypatch, capsys, "models", "list", "smal", *flags)
    for address in ("small", "small@champion", "small/1", "models:/small/1"):  # of all commands alike
        assert attend(monkeypatch, capsys, "models", "show", address, *flags)[1].startswith("models:/small/1 ")
    assert "small/one: is no model: give NAME, " in refused(monkeypatch, capsys, "models", "show", "small/one", *flags)
    _, out, _ = attend(monkeypatch, capsys, "models", "show", "models:/small@champion", *flags)
    assert out.startswith("models:/small/1  champion  20") and "bleu4" in out
    report = tmp_path / "page.html"
    code, _, err = attend(monkeypatch, capsys, "models", "report", "models:/small/1", "--out", str(report), *flags)
    assert code == 0, err
    assert report.read_text().startswith("<!doctype html>")
    nowhere = ["--out", str(tmp_path / "no" / "page.html"), *flags]
    assert "give another file" in refused(monkeypatch, capsys, "models", "report", "models:/small/1", *nowhere)


def test_changes_of_a_data_set_are_described(tmp_path: Path) -> None:
    folder = tmp_path / "photographs"
    rows = [{"file_name": f"{n}.png", "text": f"a ball {n}"} for n in range(20)]

    def write() -> None:
        (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def why() -> list[str]:
        write()
        (status,) = plan(config, "ingest")
        assert status.state == "stale"
        return status.why

    for number in range(20):
        picture(folder / f"{number}.png", number)
    write()
    config = small(tmp_path / "workspace", data={"adapter": "imagefolder", "path": folder, "dev_share": 0.3})
    run_stage(config, "ingest")

    for number in (20, 21):  # added
        picture(folder / f"{number}.png", number)
        rows.append({"file_name": f"{number}.png", "text": "new"})
    (folder / "0.png").unlink()  # gone
    (folder / "1.png").rename(folder / "one.png")  # renamed
    picture(folder / "2.png", 999)  # changed
    rows[:2] = [{"file_name": "one.png", "text": "a ball 1"}]
    rows[5]["text"] = "another caption"
    assert why() == ["2 pictures added, 1 gone, 1 changed, 1 renamed, 1 with other captions"]
    assert "6.png" in rows[5]["file_name"]

    run_stage(config, "ingest")
    rows.reverse()
    assert why() == ["the data set's files changed, but no captioned picture"]
    rows.append({"file_name": "none.png", "text": "x"})
    assert why()[0].startswith("1 row not valid: ") and "none.png is captioned, but there is no such" in why()[0]
    config = small(tmp_path / "workspace", data={"adapter": "imagefolder", "path": folder, "dev_share": 0.2})
    assert why()[1:] == ["data.dev_share: 0.3 -> 0.2"]


def test_a_run_tells_its_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    path = written(tmp_path, data={"adapter": "scenes", "pictures": 60, "side": 48})
    from tasks.config.schema import load

    config = load(path)
    assert names_of(config)[-1] == "register"
    register_all(config)
    monkeypatch.chdir(tmp_path)
    code, out, err = attend(monkeypatch, capsys, "run", path)
    assert code == 0, err
    lines = out.splitlines()
    counts = artifacts(config)["ingest"].ledger.counts
    sizes = f"60 pictures ({counts['train']} train, {counts['dev']} dev, {counts['test']} test) with 300 captions"
    assert lines[0].startswith(f"small reads generated pictures: {sizes}, a vocabulary of ")
    end = dict(line.split(":", 1) for line in lines[-7:])
    assert list(end) == ["data", "scores", "note", "report", "look at", "version", "next"]
    assert f"; {counts['test']} pictures of test, 95 % intervals" in end["scores"]
    assert "these captions are poor" in end["note"]  # after two epochs
    assert (tmp_path / end["report"].strip()).is_file()
    assert (tmp_path / end["look at"].rpartition(": ")[2]).is_file() and "300 captions were looked at" in end["look at"]
    assert "models:/small/1; version 1 is champion: it is the first" in end["version"]


def test_the_page_tells_what_the_ledgers_do(
    finished_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Each stage with its key and what it was made from, the history, and what the next run would do."""
    path, workspace = written(tmp_path), ["--workspace", str(finished_copy), "--no-open"]
    config = small(finished_copy)
    results = artifacts(config, "evaluate")
    record_run(config, results, ["ingest", "train"])
    with history_file(config).open("a") as file:
        file.write('{"time": 1, "ran')  # cut off by a kill
    record_run(config, {**results}, ["evaluate"])
    code, out, err = attend(monkeypatch, capsys, "page", path, *workspace)
    assert code == 0, err
    text = Path(out.strip()).read_text(encoding="utf-8")
    for artifact in results.values():
        assert artifact.ledger.key[:8] in text
        made_from = ", ".join(f"{kind} {key[:8]}" for kind, key in artifact.ledger.made_from.items())
        assert f"<td>{made_from}</td>" in text
    assert "<li>register: has not run yet</li>" in text
    assert "<td>ingest, train</td>" in text and [run.ran for run in read_history(config)] == [
        ["ingest", "train"],
        ["evaluate"],
    ]
    assert "60 pictures (" in text and 'aria-label="extract needs ingest' in text
    attend(monkeypatch, capsys, "page", path, "captions.max_tokens=3", *workspace)
    assert "captions.max_tokens: 15 -&gt; 3" in Path(out.strip()).read_text(encoding="utf-8")


def test_a_run_whose_later_stages_cannot_run_has_its_page(tmp_path: Path) -> None:
    """Of `--until extract`, where the split to evaluate on has no pictures."""
    folder = tmp_path / "photographs"
    for number in range(6):
        picture(folder / f"{number}.png", number)
    rows = [
        {"file_name": f"{n}.png", "text": f"a ball {n}", "split": "train" if n < 4 else "validation"} for n in range(6)
    ]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = small(tmp_path / "workspace", data={"adapter": "imagefolder", "path": folder})
    run_stage(config, "ingest")
    with pytest.raises(AttendError, match="the split 'test' of the data set has no pictures"):
        plan(config)
    page = write_page(config, planned(config, "ingest").of_all_stages())
    assert "6 pictures (4 train, 2 dev)" in page.read_text(encoding="utf-8")


def test_status_says_that_a_run_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """And not that it was interrupted: a second run would only wait for it."""
    config = small(tmp_path / "workspace")
    (tmp_path / "mine.yaml").write_text(json.dumps(config.model_dump(mode="json", exclude={"data": {"path"}})))
    monkeypatch.chdir(tmp_path)

    def seen(row: dict[str, float], _: Path | None) -> None:
        if row["epoch"] == 1:
            code, out, _err = attend(monkeypatch, capsys, "status", "mine.yaml")
            assert code == 0
            assert [line.split()[0] for line in out.splitlines() if line.split()[1] == "train"] == ["running"]
            raise KeyboardInterrupt

    for stage in ("ingest", "extract", "tensorise"):
        run_stage(config, stage)
    with pytest.raises(KeyboardInterrupt):
        run_stage(config, "train", epoch_done=seen)
    _, out, _ = attend(monkeypatch, capsys, "status", "mine.yaml")
    assert [line.split()[0] for line in out.splitlines() if line.split()[1] == "train"] == ["interrupted"]


def test_a_models_layers_are_shown(registered: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Of a preset, whose data need not be there, and of a registered model, with the parameters that it has."""
    monkeypatch.chdir(registered.parent)
    code, out, _ = attend(monkeypatch, capsys, "model", "flickr8k", "--words", "1000", "--depth", "2")
    assert code == 0 and "backbone mobilenet_v2" in out and "[1, 7, 7, 1280]" in out
    decoder = make("show_attend_tell", 1280, 1000, load("flickr8k", ["data.path=."]).decoder.options())
    assert f"Total params: {sum(weight.numel() for weight in decoder.parameters()):,}" in out
    code, out, _ = attend(monkeypatch, capsys, "model", "models:/small", "--workspace", str(registered))
    captioner = load_captioner(*find(None, registered))
    for part in (captioner.backbone, captioner.decoder):
        assert f"Total params: {sum(weight.numel() for weight in part.parameters()):,}" in out
    members = ("decoder.members=3", "--words", "1000")
    code, out, _ = attend(monkeypatch, capsys, "model", "flickr8k", *members)
    assert code == 0 and out.count("ShowAttendTell (") == 3
    assert "neither a preset nor a YAML file" in refused(monkeypatch, capsys, "model", "small", "--words", "9")
    assert "no such model" in refused(monkeypatch, capsys, "model", "none", "--workspace", str(registered))
