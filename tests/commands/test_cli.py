"""The command line: each mistake ends in one line and leaves what was there; help answers at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image

from flows.commands import cli
from tasks.common.errors import AttendError
from tasks.config.presets import presets
from tasks.config.schema import load
from tests.cli import Capture, attend, refused, written
from tests.photographs import flickr8k
from tests.support import plan, run_stage, small


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "demmo"], "demmo: no such preset; did you mean 'demo'?"),
        (["run", "other.yaml"], "other.yaml: no such file"),
        (["run", "demo", "training.epoch=3"], "training.epoch: no such setting; did you mean 'epochs'?"),
        (["run", "demo", "trainng.epochs=3"], "trainng: no such setting; did you mean 'training'?"),
        (["run", "demo", "na../xme=3"], "no such setting"),
        (["run", "demo", "training.epochs=three"], "training.epochs: is no whole number"),
        (["run", "demo", "training.epochs"], "an override must have the form section.field=value"),
        (["run", "demo", "data.adapter=scene"], "unknown dataset adapter 'scene'; did you mean 'scenes'?"),
        (["run", "demo", "data.columns=3"], "data.columns: no such setting"),
        (["run", "demo", "decoder.name=attend_lstm"], "unknown decoder 'attend_lstm'; did you mean 'attention_lstm'?"),
        (["run", "demo", "grids.backbone=resnet1O1"], "unknown backbone 'resnet1O1'; did you mean 'resnet101'?"),
        (["run", "demo", "captions.tokeniser=treebnk"], "unknown tokeniser 'treebnk'; did you mean 'treebank'?"),
        (["run", "demo", "evaluation.metrics=[blue]"], "unknown metric 'blue'; did you mean 'bleu'?"),
        (
            ["run", "demo", "decoder.name=attention_lstm", "decoder.gate=true"],
            "attention_lstm has no `gate`: leave it out",
        ),
        (["serve", "--model", "/nowhere"], "/nowhere: is no folder that `attend export` wrote"),
        (
            ["models", "evaluate", "demo", "evaluation.beam=9"],
            "evaluation.beam: a registered model has the search that",
        ),
        (["run", "demo", "--until", "trian"], "no such stage 'trian'; did you mean 'train'?"),
        (["run", "flickr8k"], "data.path: is missing"),
        (["run", "flickr8k", "data.path=/nowhere"], "data.path: /nowhere: no such folder"),
        (
            ["run", "demo", "registry.promote_on=cider"],
            "'cider' is not a score of evaluation.metrics, which give: bleu1",
        ),
        (
            ["run", "flickr8k", "data.path=.", "evaluation.metrics=[truth]", "registry.promote_on=truth"],
            "only `scenes`",
        ),
        (["run", "demo", "data.dev_share=0.6", "data.test_share=0.5"], "together they leave nothing to train on"),
        (
            ["run", "flickr8k", "data={adapter: webdataset, path: x.tar, images: y}"],
            "data: images: the pictures are inside the data set's files: remove this setting",
        ),
        (["run", "demo", "training.seed=-1"], "training.seed: Input should be greater than or equal to 0"),
        (["run", "demo", "training.seed=20260731120000"], "training.seed: Input should be less than 4294967296"),
        (["run", "demo", "registry=mine"], "registry: Input should be a valid dictionary"),
        (["run", "demo", "preset=[demo]"], "preset: ['demo'] is not a name"),
        (["run", "demo", "grids.weights=random:\u00b2"], "grids.weights: random:\u00b2: a seed is a whole number"),
        (["presets", "dem"], "dem: no such preset; did you mean 'demo'?"),
        (["caption", "/nowhere.jpg"], "/nowhere.jpg: no such picture"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refused(monkeypatch, capsys, *arguments)
    assert not (tmp_path / "workspace").exists()


def test_an_unwritable_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "file").write_text("in the way")
    line = refused(monkeypatch, capsys, "run", "demo", f"machine.workspace={tmp_path}/file/workspace")
    assert "the workspace cannot be written" in line and "machine.workspace=FOLDER" in line


def test_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    line = refused(monkeypatch, capsys, "run", "demo", f"machine.workspace={tmp_path}/workspace")
    assert "the MLflow server http://127.0.0.1:9 does not answer" in line
    assert not list((tmp_path / "workspace").rglob("ledger.json"))


def test_no_model_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    line = refused(monkeypatch, capsys, "caption", str(tmp_path / "a.png"), "--workspace", str(tmp_path / "none"))
    assert "no model is registered there" in line
    assert not (tmp_path / "none").exists()


def test_status_json_and_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    path = written(tmp_path)
    code, out, _ = attend(monkeypatch, capsys, "status", path, "--json")
    rows = json.loads(out)
    assert code == 0
    assert (rows[0]["stage"], rows[0]["state"]) == ("ingest", "missing")
    run_stage(load(path), "ingest")
    _, out, _ = attend(monkeypatch, capsys, "status", path)
    assert out.splitlines()[0].split()[:2] == ["fresh", "ingest"]


def test_cache_list_and_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    config = small(tmp_path / "workspace")
    run_stage(config, "ingest")
    run_stage(config, "extract")
    flags = ["--workspace", str(tmp_path / "workspace")]
    _, out, _ = attend(monkeypatch, capsys, "workspace", "grids", "--json", *flags)
    (store,) = json.loads(out)
    assert (store["backbone"], store["pictures"], store["shards"]) == ("tiny", 60, 4)
    code, out, _ = attend(monkeypatch, capsys, "workspace", "verify", *flags)
    assert (code, out.strip()) == (0, "4 of 4 shards are sound")
    shard = next((tmp_path / "workspace").rglob("shard-00002.h5"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 4
    shard.write_bytes(data)
    code, out, err = attend(monkeypatch, capsys, "workspace", "verify", *flags)
    assert code == 1 and "3 of 4 shards are sound" in out and "shard-00002.h5: does not match its digest" in err
    assert plan(config)[1].state == "damaged"
    run_stage(config, "extract")
    code, out, _ = attend(monkeypatch, capsys, "workspace", "verify", *flags)
    assert (code, out.strip()) == (0, "4 of 4 shards are sound")


def test_cache_usage_prune_and_compact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    workspace = tmp_path / "workspace"
    flags = ["--workspace", str(workspace)]
    for pictures in (60, 20):
        for stage in ("ingest", "extract"):
            run_stage(small(workspace, data__pictures=pictures), stage)
    _, out, _ = attend(monkeypatch, capsys, "workspace", "usage", *flags)
    assert "grids of tiny, 4 shards; needed by small except 40 grids (see `attend workspace compact`)" in out
    assert "  extract; nobody needs it" in out
    before = sorted(workspace.rglob("*"))
    _, out, _ = attend(monkeypatch, capsys, "workspace", "prune", *flags)
    assert "would be removed: add --yes" in out
    assert [path for path in sorted(workspace.rglob("*")) if "locks" not in path.parts] == [
        path for path in before if "locks" not in path.parts
    ]
    code, out, _ = attend(monkeypatch, capsys, "workspace", "prune", "--yes", *flags)
    assert (code, out.splitlines()[-1].endswith("removed")) == (0, True)
    _, out, _ = attend(monkeypatch, capsys, "workspace", "compact", *flags)
    assert out.endswith("4 shards rewritten, 40 grids would be removed: add --yes\n")
    _, out, _ = attend(monkeypatch, capsys, "workspace", "compact", "--yes", *flags)
    assert out.endswith("4 shards rewritten, 40 grids removed\n")
    _, out, _ = attend(monkeypatch, capsys, "workspace", "usage", "--json", *flags)
    assert all(item["needed_by"] for item in json.loads(out))
    assert run_stage(small(workspace, data__pictures=20), "extract").state == "fresh"
    line = refused(monkeypatch, capsys, "workspace", "prune", "--forget", "smal", *flags)
    assert "--forget: smal: no run has this name; did you mean 'small'?" in line


@pytest.mark.parametrize("command", ["grids", "usage", "prune", "compact", "verify"])
def test_no_workspace_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, command: str) -> None:
    assert "none: not a workspace" in refused(
        monkeypatch, capsys, "workspace", command, "--workspace", str(tmp_path / "none")
    )
    assert not (tmp_path / "none").exists()


def test_the_requirements_of_attend_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    flags = ["--workspace", str(tmp_path / "workspace"), "--project", str(tmp_path)]
    nowhere = ["--project", str(tmp_path / "nowhere")]
    assert "nowhere: no such folder" in refused(monkeypatch, capsys, "up", *flags[:2], *nowhere)
    (tmp_path / "tasks.py").touch()  # another program's
    assert "hides the module `tasks` of this program" in refused(monkeypatch, capsys, "up", *flags)
    (tmp_path / "tasks.py").unlink()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port: {port} is taken" in refused(monkeypatch, capsys, "up", *flags, "--port", str(port))
    assert "nothing to stop" in refused(monkeypatch, capsys, "down", *flags[:2])


def test_datasets_and_presets_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    _, out, _ = attend(monkeypatch, capsys, "data", "formats")
    for name in ("flickr8k", "flickr30k", "karpathy", "coco", "table", "imagefolder", "scenes"):
        assert f"\n{name} " in f"\n{out}"
    _, out, _ = attend(monkeypatch, capsys, "presets", "--json")
    assert set(json.loads(out)) == set(presets())
    _, out, _ = attend(monkeypatch, capsys, "presets", "demo")
    assert "adapter: scenes" in out


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_is_a_valid_config(name: str, tmp_path: Path) -> None:
    overrides = [] if name == "demo" else [f"data.path={tmp_path}"]
    config = load(name, overrides)
    assert config.name == name and config.registry.model == name


def test_a_file_may_build_on_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("preset: demo\nname: mine\ntraining: {epochs: 3}\n")
    config = load(str(tmp_path / "mine.yaml"), ["training.seed=4"])
    assert (config.name, config.training.epochs, config.training.seed, config.data.adapter) == ("mine", 3, 4, "scenes")


@pytest.mark.parametrize("text", ["- a list", "a: [", "preset: nothing\n"])
def test_files_that_are_no_configs(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(AttendError, match=r"bad.yaml: .+"):
        load(str(tmp_path / "bad.yaml"))


def test_planning_loads_no_heavy_library(tmp_path: Path) -> None:
    """Status and a fresh run answer at once only as long as nothing heavy is imported for them."""
    path = written(tmp_path)
    code = (
        "import sys; from flows.commands import cli; from flows.pipeline import build_pipeline; "
        "from tasks.config.schema import load; from tasks.pipeline.plan import Plan; "
        f"Plan(build_pipeline(load({path!r}))).update(); found = {{'torch', 'prefect', 'mlflow', 'nltk', 'h5py'}} & set(sys.modules); "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


COUNTED = """
import sys
from collections import Counter
import flows.configs, flows.pipeline, tasks.mlflow_store.tracking, tasks.pipeline.plan

calls = Counter()

def counted(place, name):
    function = getattr(place, name)

    def call(*arguments, **options):
        calls[name] += 1
        return function(*arguments, **options)

    setattr(place, name, call)

counted(flows.configs, "load")
counted(flows.pipeline, "build_pipeline")
counted(tasks.pipeline.plan.Plan, "__init__")
counted(tasks.mlflow_store.tracking, "prepare_database")
from flows.commands.cli import app

app(sys.argv[1:], standalone_mode=False)
print(sorted(calls.items()))
"""
ONCE = [("__init__", 1), ("build_pipeline", 1), ("load", 1)]


@pytest.mark.slow
def test_a_run_reads_its_config_and_plans_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNTED, "run", written(tmp_path)]
    for calls in ([*ONCE, ("prepare_database", 1)], ONCE):  # all stages; none, which needs no MLflow
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == str(calls)


def environment(**more: str) -> dict[str, str]:
    hidden = ("MLFLOW_TRACKING_URI", "ATTEND_WORKSPACE", "PREFECT_API_URL", "PREFECT_HOME")
    return {name: value for name, value in os.environ.items() if name not in hidden} | more


def program(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    attend = Path(sys.executable).with_name("attend")
    return subprocess.run([attend, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


def check_prefect(database: Path) -> None:
    """The run's graph has the pipeline's edges, and its log the lines of the program."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        tasks = dict(connection.execute("select name, id from task_run").fetchall())
        rows = connection.execute("select name, task_inputs from task_run").fetchall()
        lines = [message for (message,) in connection.execute("select message from log where name = 'attend'")]
    names = {str(uuid.UUID(identifier)): name for name, identifier in tasks.items()}
    upstream = {name: {names[item["id"]] for item in json.loads(inputs).get("wait_for", [])} for name, inputs in rows}
    assert upstream == {
        "ingest": set(),
        "extract": {"ingest"},
        "tensorise": {"ingest"},
        "train": {"ingest", "extract", "tensorise"},
        "remember": {"extract", "tensorise"},
        "evaluate": {"ingest", "extract", "tensorise", "train", "remember"},
        "register": {"extract", "tensorise", "train", "remember", "evaluate"},
    }
    assert any(line.startswith("train: epoch 1/4") for line in lines)
    assert "register: version 1 is champion: it is the first" in lines


@pytest.mark.slow
def test_the_whole_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`attend run` through Prefect and MLflow, then again, then a caption: as a person would.

    What goes through Prefect has a process of its own, the rest is answered by this one.
    """
    path = written(tmp_path, training__epochs=4)
    monkeypatch.chdir(tmp_path)
    first = program("run", path, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "register: version 1 is champion" in first.stderr
    assert "trains in float32 (as set) on cpu, 1 threads" in first.stdout
    assert "Traceback" not in first.stderr
    check_prefect(tmp_path / "workspace" / "prefect" / "prefect.db")
    code, out, err = attend(monkeypatch, capsys, "run", path)
    assert code == 0 and "nothing to do: every stage is fresh" in out and out.count("fresh ") == 7
    assert "Prefect" not in err
    picture = next((tmp_path / "workspace").rglob("scene_000000.png"))
    flags = ["--workspace", str(tmp_path / "workspace")]
    asked = ("caption", str(picture), "--attention", "map.png", "--beam", "2", "--json", *flags)
    code, out, err = attend(monkeypatch, capsys, *asked)
    assert code == 0 and (tmp_path / "map.png").stat().st_size > 1000, err
    assert set(json.loads(out)[0]) == {
        "picture",
        "caption",
        "log_probability",
        "confidence",
        "error",
        "alternatives",
    }
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    code, out, err = attend(monkeypatch, capsys, "caption", str(tmp_path / "bad.jpg"), str(picture), *flags)
    assert code == 1 and "bad.jpg: is no picture of a known format" in err and "scene_000000.png:" in out

    line = refused(monkeypatch, capsys, "run", path, "grids.weights=missing.pth")
    assert line == "attend: grids.weights: missing.pth: no such file"
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    other = program("run", path, f"grids.weights={tmp_path}/other.pth", cwd=tmp_path)
    lines = [line for line in other.stderr.splitlines() if line.startswith("attend: ")]
    assert other.returncode == 1 and len(lines) == 1 and "weights of another architecture" in lines[0]
    assert "Traceback" not in other.stderr and not list((tmp_path / "workspace").rglob("*.partial"))
    assert all(status.fresh for status in plan(load(path)))  # nothing that was there is lost


def test_broken_data_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    folder = flickr8k(tmp_path / "data")
    path = written(tmp_path, data={"adapter": "flickr8k", "path": str(folder)}, evaluation__metrics=["bleu"])
    (folder / "images" / "2_a1b2.jpg").unlink()
    with pytest.raises(AttendError, match=r"trainImages.txt:3: 2_a1b2.jpg is captioned, but there is no such picture"):
        run_stage(load(path), "ingest")
    assert not list((tmp_path / "workspace").rglob("*.partial"))


def test_a_full_disk_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "/disk/shard")

    monkeypatch.setattr("tasks.config.schema.load", full)
    assert "/disk/shard: the disk is full: make room and run again" in refused(monkeypatch, capsys, "status", "demo")


def test_a_server_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    flags = ["--workspace", str(tmp_path)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "Address already in use" in refused(monkeypatch, capsys, "serve", "--port", port, *flags)
    assert "no model is registered there" in refused(monkeypatch, capsys, "serve", "--port", port, *flags)
    line = refused(monkeypatch, capsys, "serve", "--port", port, "--model", "flickr8k/first", *flags)
    assert "flickr8k/first: is no model: give NAME, NAME@ALIAS or NAME/VERSION" in line


def test_usage_lines_name_arguments_in_capitals() -> None:
    """An argument without a name of its own is shown by the parameter's name in the code, such as {first}."""

    def commands(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, command in sorted(getattr(group, "commands", {}).items()):
            yield (*names, name), command
            yield from commands(command, *names, name)

    found = dict(commands(typer.main.get_command(cli.app)))
    assert ("models", "compare") in found
    for names, command in found.items():
        context = command.make_context(names[-1], [], resilient_parsing=True)
        for shown in re.findall(r"{([^}]+)}", command.get_usage(context)):
            assert shown == shown.upper() or shown == "EXPORT.json", names


def test_a_backbone_that_takes_no_pictures_of_a_size_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("timm")
    settings = ("grids.backbone=timm:vit_tiny_patch16_224", "grids.weights=random:0", "grids.image_size=250")
    message = refused(monkeypatch, capsys, "model", "flickr8k", *settings)
    assert message.startswith("attend: grids.image_size: timm:vit_tiny_patch16_224 takes no pictures of 250 px: ")
