"""Training that starts from another captioner: where it is found, what is taken from it, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image

from flows.commands.story import advice
from flows.commands.workspace_contents import usage
from flows.configs import load, refusals
from flows.registered.export import export_model
from models.captioner import Captioner
from models.neighbours import Memory
from models.vocabulary import UNK
from tasks.captioner.bundle import make_captioner, write_bundle
from tasks.common.errors import AttendError
from tasks.common.ports import why_silent
from tasks.config.schema import Config
from tasks.evaluation.score_record import read_scores
from tasks.grids.index import read_identity
from tasks.mlflow_store.embedded_store import DATABASE
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.workspace import Workspace
from tasks.registry.model_card import card
from tasks.training.outputs import HISTORY
from tests.cli import Capture, attend, refused
from tests.support import (
    artifacts,
    captioner_artifacts,
    free_port,
    plan,
    register_all,
    run_all,
    run_stage,
    small,
    train_any_matcher,
    trained,
)

AWS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
MODEL = "models:/small@champion"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a registered captioner, which remembers captions."""
    workspace = tmp_path_factory.mktemp("base") / "workspace"
    register_all(_base(workspace))
    return workspace


@pytest.fixture(scope="module")
def exported(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "captioner"
    export_model(MODEL, folder, "torch", base)
    return folder


def _base(workspace: Path) -> Config:
    neighbours = {"number": 60, "temperature": 0.1, "factor": 16.0}
    return trained(workspace, evaluation__neighbours=neighbours)


def own(folder: Path, start_from: str | Path, **sections: Any) -> Path:
    """Write a config that leaves `grids` and `decoder` to the captioner that it starts from."""
    values: dict[str, Any] = {
        "name": "own",
        "data": {"adapter": "scenes", "pictures": 40, "side": 48, "seed": 5},
        "captions": {"min_count": 1},
        "training": {"epochs": 1, "batch_pictures": 8, "warmup_steps": 1, "precision": "float32"},
        "evaluation": {"split": "test", "beam": 2, "metrics": ["bleu", "truth"]},
        "registry": {"min_pictures": 1},
        "machine": {"workspace": str(folder / "workspace"), "device": "cpu"},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    values["training"]["start_from"] = str(start_from)
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def _of(base: Path) -> dict[str, Any]:
    return {"training": {"epochs": 1, "start_store": str(base)}}


def test_backbone_decoder_and_words_come_from_it_and_grids_are_found_again(base: Path, tmp_path: Path) -> None:
    config = load(str(own(tmp_path, MODEL, training={"start_store": str(base), "learning_rate": 1e-9})))
    of_base = _base(base)
    assert config.grids.backbone == of_base.grids.backbone
    assert config.decoder.options() == of_base.decoder.options()
    run_stage(config, "ingest")
    for name in ("extract", "tensorise", "train"):
        run_stage(config, name)
    results = artifacts(config, "train")
    assert read_identity(results["extract"]) == read_identity(artifacts(of_base)["extract"])
    assert "starts from the weights of models:/small/1 of" in results["train"].ledger.notes[0]


def test_weights_begin_as_they_were(base: Path, tmp_path: Path) -> None:
    """With a learning rate of next to nothing they stay so."""
    config = load(str(own(tmp_path, MODEL, training={"start_store": str(base), "learning_rate": 1e-9})))
    run_all(config)
    before, after = (make_captioner(each, captioner_artifacts(each)) for each in (_base(base), config))
    known = [word for word in before.vocabulary.words if word in after.vocabulary.words]
    rows = [[vocabulary.id_of(word) for word in known] for vocabulary in (before.vocabulary, after.vocabulary)]
    states = [captioner.decoder.state_dict() for captioner in (before, after)]
    for name, value in states[0].items():
        old, new = value, states[1][name]
        if old.shape != new.shape or name in ("embed.weight", "head.weight", "head.bias"):
            old, new = old[rows[0]], new[rows[1]]
        torch.testing.assert_close(new, old, atol=1e-6, rtol=0)


@pytest.mark.parametrize("place", ["exported", "mlflow", "sqlite", "download"])
def test_the_places_where_a_starting_point_may_be(base: Path, exported: Path, tmp_path: Path, place: str) -> None:
    if place == "exported":
        path = own(tmp_path, exported)
    elif place == "sqlite":
        path = own(tmp_path, MODEL, training={"start_store": f"sqlite:///{base / DATABASE}"})
    else:
        [files] = base.glob("**/artifacts/bundle")
        folder = tmp_path / "copied"
        shutil.copytree(files if place == "download" else files.parent.parent, folder)
        path = own(tmp_path, folder)
    config = load(str(path))
    assert config.starting_point is not None
    Captioner.load(config.starting_point.folder)


def test_a_folder_is_relative_to_the_config(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(exported, tmp_path / "base")
    path = own(tmp_path, "base")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = load(str(path)).starting_point
    assert found is not None and found.folder == tmp_path / "base"
    assert found.address == f"models:/small/1 in {tmp_path / 'base'}"


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def storage(request: pytest.FixtureRequest, exported: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of the exported captioner in object storage."""
    if request.param == "file":
        shutil.copytree(exported, tmp_path / "storage" / "captioner")
        yield f"file://{tmp_path}/storage/captioner"
        return
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    filesystem = fsspec.get_filesystem_class("s3")
    filesystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        filesystem().mkdir("bases")
        filesystem().put(f"{exported}/", "bases/small/", recursive=True)
        yield "s3://bases/small"
    server.stop()


def test_a_starting_point_in_object_storage_is_downloaded_once(storage: str, tmp_path: Path) -> None:
    path = own(tmp_path, storage)
    first = load(str(path)).starting_point
    assert first is not None and first.address == storage
    before = [file.stat().st_mtime_ns for file in sorted(first.folder.iterdir())]
    config = load(str(path))
    assert config.starting_point == first
    assert before == [file.stat().st_mtime_ns for file in sorted(first.folder.iterdir())]

    def users() -> list[tuple[str, ...]]:
        return [item.needed_by for item in usage(Workspace(config.workspace)) if item.what == "captioner to start from"]

    assert users() == [()]
    for stage in ("ingest", "extract", "tensorise", "train"):
        run_stage(config, stage)
    assert users() == [(config.name,)]


@pytest.mark.slow
def test_a_tracking_server_that_keeps_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", f"{tmp_path}/files"]
    with subprocess.Popen([*command, *stores], stderr=subprocess.DEVNULL) as process:
        try:
            while why_silent(f"{server}/health") is not None:
                assert process.poll() is None
                time.sleep(0.5)
            with monkeypatch.context() as patch:
                patch.setenv("MLFLOW_TRACKING_URI", server)
                run_all(small(tmp_path / "base"))
                run_stage(small(tmp_path / "base"), "register")
            path = str(own(tmp_path, MODEL, training={"start_store": server}))
            found = load(path).starting_point
            assert found is not None and found.address == f"models:/small/1 of {server}"
            Captioner.load(found.folder)
        finally:
            process.terminate()
    with pytest.raises(AttendError, match=r"training\.start_store: the MLflow server .* does not answer"):
        load(path)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"grids": {"image_size": 96}}, "grids.image_size: .* has 64, this config 96: leave it out"),
        ({"grids": {"weights": "random:1"}}, "grids.weights: .* has its own, this config random:1: leave it out"),
        ({"grids": {"backbone": "mobilenet_v2"}}, "grids.backbone: .* has tiny, this config mobilenet_v2"),
        ({"decoder": {"hidden": 12}}, "decoder.hidden: .* has 24, this config 12"),
        ({"captions": {"tokeniser": "tweet"}}, "captions.tokeniser: .* has treebank, this config tweet"),
    ],
)
def test_contradictions_are_refused_in_a_line(
    exported: Path, tmp_path: Path, sections: dict[str, Any], told: str
) -> None:
    path = str(own(tmp_path, exported, **sections))
    with pytest.raises(AttendError, match=told) as error:
        load(path)
    assert "\n" not in str(error.value)
    assert refusals(path) == ([str(error.value)], None)


def test_values_of_a_preset_give_way(exported: Path, tmp_path: Path) -> None:
    path = own(tmp_path, exported)
    values = yaml.safe_load(path.read_text()) | {"preset": "flickr8k"}
    path.write_text(yaml.safe_dump(values))
    config = load(str(path), ["evaluation.metrics=[bleu]"])
    assert (config.grids.backbone, config.decoder.hidden, config.training.averaging) == ("tiny", 24, 0.999)


def test_other_models_are_refused(base: Path, exported: Path, tmp_path: Path) -> None:
    def refused(start_from: str | Path, **sections: Any) -> str:
        with pytest.raises(AttendError) as error:
            load(str(own(tmp_path, start_from, **sections)))
        assert str(error.value).startswith("training.start_from: ") and "\n" not in str(error.value)
        return str(error.value)

    assert "no such folder" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "is no captioner" in refused(tmp_path / "empty")
    truncated = tmp_path / "truncated"
    shutil.copytree(exported, truncated)
    weights = truncated / "decoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "damaged or incomplete" in refused(truncated)
    export_model(MODEL, tmp_path / "onnx", "onnx", base)
    assert "attend export --runtime torch" in refused(tmp_path / "onnx")
    assert "no model is registered in this workspace" in refused(MODEL)
    assert "no such model" in refused("models:/other@champion", **_of(base))
    assert "cannot be read" in refused("s4://bucket/base")


def test_joined_needs_a_captioner(tmp_path: Path) -> None:
    with pytest.raises(AttendError, match="there is no vocabulary to join"):
        small(tmp_path, captions__vocabulary="joined")
    with pytest.raises(AttendError, match=r"set captions\.vocabulary=joined"):
        small(tmp_path, memory__joined=True)


@pytest.fixture(scope="module")
def joined(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("joined")
    path = own(folder, exported, captions={"vocabulary": "joined"}, memory={"joined": True})
    config = load(str(path))
    with pytest.MonkeyPatch.context() as patch:
        train_any_matcher(patch)
        register_all(config)
    return config


def test_no_word_is_lost_and_the_memory_finds_pictures_of_both(joined: Config, exported: Path) -> None:
    before, made = Captioner.load(exported), artifacts(joined)
    after = make_captioner(joined, captioner_artifacts(joined))
    assert set(before.vocabulary.words) <= set(after.vocabulary.words)
    of_base, both = Memory.load(exported), Memory.load(made["remember"].path)
    assert of_base.captions is not None and both.captions is not None
    number = made["ingest"].ledger.counts["train"]
    assert len(both.vectors) == number + len(of_base.vectors)
    texts = [
        [vocabulary.text(row[row >= 0].tolist()) for row in captions.of(np.array([picture])).tokens]
        for vocabulary, captions, picture in (
            (before.vocabulary, of_base.captions, 0),
            (after.vocabulary, both.captions, number),
        )
    ]
    assert texts[0] == texts[1] != []
    assert both.captions.frequencies.pictures == len(both.vectors)
    assert (both.captions.tokens != UNK).all()
    assert both.matcher is not None and len(both.matcher.words) == len(after.vocabulary)
    # A picture of either finds itself.
    pooled = of_base.vectors[:1].astype(np.float32) @ of_base.basis.T + of_base.mean
    assert number in both.look_up(pooled, 3).pictures[0]


def test_a_captioner_records_what_it_started_from(joined: Config, exported: Path, tmp_path: Path) -> None:
    results = captioner_artifacts(joined)
    captioner = make_captioner(joined, results)
    write_bundle(captioner, tmp_path / "second")
    origin = json.loads((tmp_path / "second" / "config.json").read_text())["started_from"]
    assert origin["address"] == f"models:/small/1 in {exported}"
    assert f"- started from: {origin['address']} ({origin['digest'][:12]})" in card(
        joined, results, read_scores(results.scores.path)
    )
    third = load(str(own(tmp_path, tmp_path / "second")))
    assert third.starting_point is not None
    assert third.starting_point.origin()["started_from"] == origin


def test_another_digest_trains_again(base: Path, tmp_path: Path) -> None:
    """A new champion is another starting point; one that is gone is refused."""
    shutil.copytree(base, tmp_path / "store")
    path = own(tmp_path, MODEL, training={"start_store": str(tmp_path / "store")})
    config = load(str(path))
    run_all(config)
    assert plan(config, "train")[-1].state == "fresh"
    exported = tmp_path / "other"
    export_model(MODEL, exported, "torch", base)  # with a card, and so of another digest
    other = load(str(path), [f"training.start_from={exported}", "training.start_store=null"])
    status = plan(other, "train")[-1]
    assert status.state == "stale" and "start_from" in " ".join(status.why)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The section `data` of 80 photographs with captions in another language."""
    folder = tmp_path_factory.mktemp("photos")
    rows = ["image,caption"]
    for number in range(80):
        Image.new("RGB", (64, 64), (number * 3, 80, 160)).save(folder / f"{number}.png")
        colour, side = ("roter", "blauer", "gruener")[number % 3], ("links", "rechts")[number % 2]
        rows.append(f"{number}.png,ein {colour} Ball liegt {side} neben dem Haus Nummer {number % 7}")
    (folder / "captions.csv").write_text("\n".join(rows))
    return {"adapter": "table", "path": str(folder / "captions.csv"), "images": str(folder)}


def test_init_writes_a_config_that_starts_from_it(
    exported: Path, photos: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    given = (photos["path"], "--from", str(exported), "--out", "photos.yaml")
    code, out, err = attend(monkeypatch, capsys, "init", *given)
    assert code == 0, err
    assert "training starts from models:/small/1 in" in out and "which knows 0% of the words" in out
    config = load("photos.yaml", ["training.epochs=1", "machine.device=cpu"])
    assert config.starting_point is not None and config.starting_point.folder == exported
    assert (config.grids.backbone, config.captions.vocabulary, config.memory.joined) == ("tiny", "joined", True)
    assert config.evaluation.max_length == config.captions.max_tokens + 1
    run_all(config)
    for line, told in (
        (("--from", str(tmp_path / "nowhere")), "no such folder"),
        (("--from", str(exported), "--weights", str(exported / "decoder.safetensors")), "has its own backbone"),
        (("--store", "workspace"), "give that too"),
    ):
        assert told in refused(monkeypatch, capsys, "init", photos["path"], *line, "--out", "other.yaml")


def _trained(config: Config) -> dict[str, Artifact]:
    for name in ("ingest", "extract", "tensorise", "train"):
        run_stage(config, name)
    return artifacts(config, "train")


def test_captions_in_other_words_are_warned_of(exported: Path, photos: dict[str, Any], tmp_path: Path) -> None:
    path = own(tmp_path, exported, evaluation={"metrics": ["bleu"]})
    values = yaml.safe_load(path.read_text()) | {"data": photos}
    path.write_text(yaml.safe_dump(values))
    config = load(str(path))
    results = _trained(config)
    assert "knows only 0% of the words" in " ".join(results["train"].ledger.notes)
    assert not any("--from" in line for line in advice(config, results))


def test_few_captions_are_advised_to_start_from_a_captioner(photos: dict[str, Any], tmp_path: Path) -> None:
    config = small(tmp_path, data=photos, training__epochs=3, training__patience=1)
    results = _trained(config)
    ended, start, *others = advice(config, results)
    epochs = len(pq.read_table(results["train"].path / HISTORY))
    assert ("more of them may help" in ended) == (epochs == 3 and "the last of 3 epochs" in ended)
    number = results["tensorise"].ledger.counts["captions"] - sum(
        results["ingest"].ledger.counts[s] for s in ("dev", "test")
    )
    assert f"with {number:.0f} captions to learn from" in start and "--from models:/NAME@champion" in start
    assert "docs/few-photographs.md" in others[-1]
