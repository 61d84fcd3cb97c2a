"""The presets, each run to a registered version; and what adding one, or a decoder, takes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from flows.commands.cli import main
from models.decoders import DECODERS, Member
from models.options import RecurrentOptions
from models.vocabulary import END, NULL, SPECIAL, START
from tasks.config.presets import presets
from tasks.config.reference import sections
from tasks.config.schema import load
from tasks.data.caption_files import CAPTIONS
from tasks.data.manifest import MANIFEST
from tests.support import HERE, artifacts, register_all, run_stage, small

# Small enough to run: what makes a preset itself (backbone, grid, decoder, search) stays.
SMALL = [
    "data.adapter=scenes",
    "data.pictures=60",
    "grids.weights=random:0",
    "captions.min_count=1",
    "captions.vocabulary=train",
    "decoder.embedding=16",
    "decoder.hidden=24",
    "training.epochs=1",
    "training.batch_pictures=16",
    "training.precision=float32",
    "evaluation.split=test",
]
SIZES = {
    "show_attend_tell": 64,
    "show_attend_tell_tuned": 64,
    "show_attend_tell_paper": 64,
    "captionnet": 64,
    "hard_attention": 64,
    "googlenet": 64,
    "flickr8k_tuned": 64,
    "best": 64,
    "base": 64,
    "clip": 64,
    "siglip": 64,
    "dinov2": 70,
    "convnext": 64,
}
OF_BASE = ("base", "clip", "siglip", "dinov2", "convnext")


@pytest.mark.slow
@pytest.mark.parametrize("preset", presets())
def test_every_preset_runs_end_to_end(preset: str, tmp_path: Path) -> None:
    settings = [*SMALL, f"machine.workspace={tmp_path / 'workspace'}"]
    if preset in SIZES:
        settings.append(f"grids.image_size={SIZES[preset]}")
    if preset in ("best", *OF_BASE):
        settings += ["grids.grid=2", "decoder.pca_dim=16"]
    if preset in ("best", *OF_BASE):  # tied, and so of one size
        settings += ["decoder.embedding=24", "decoder.feed_forward=16"]
    if preset.endswith("_tuned") or preset == "best":
        settings += ["tuning.epochs=1"]
    if preset == "googlenet":
        settings.append("decoder.attention_size=16")
    config = load(preset, settings)
    register_all(config)
    found = artifacts(config)
    scores = json.loads((found["evaluate"].path / "scores.json").read_text())
    assert scores["pictures"] > 0
    registered = json.loads((found["register"].path / "registration.json").read_text())
    assert registered["uri"] == f"models:/{preset}/1"


def test_the_page_of_captioners_names_every_preset() -> None:
    rows = re.findall(
        r"^\| (`[^|]*`) \|", (HERE / "docs" / "captioners.md").read_text().partition("## Options")[0], re.MULTILINE
    )
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(presets())


def test_presets_are_listed_with_a_line_and_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    sys.argv = ["attend", "presets"]
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    for name, path in presets().items():
        values = yaml.safe_load(path.read_text())
        assert f"{name:<24}{values['about']}\n{'':<24}[{values['source']}]\n" in text


def test_departures_of_a_preset_from_its_source_are_listed() -> None:
    """By settings that there are; each known captioner's own values are its source's."""
    settings = {setting.name for part in sections().values() for setting in part.settings}
    for name, path in presets().items():
        departures = yaml.safe_load(path.read_text()).get("departures", {})
        assert set(departures) <= settings and all(departures.values()), name
    config = load("googlenet", ["data.path=."])
    training, decoder = config.training, config.decoder
    assert (training.epochs, training.epoch_batches, training.batch_pictures) == (100, 50, 50)
    assert (training.captions_per_picture, training.clip_norm, config.evaluation.temperature) == (1, 0, 0.1)
    assert (decoder.first_state, decoder.dropout_output) == ("zeros", 0.0)
    assert load("captionnet", ["data.path=."]).decoder.dropout_output == 0.0
    tuned = load("show_attend_tell_tuned", ["data.path=."])
    assert (tuned.data.adapter, tuned.grids.image_size, tuned.decoder.attention_grid) == ("flickr8k", 256, 14)
    assert tuned.tuning is not None and tuned.tuning.first_block == 2


@pytest.mark.parametrize("name", presets())
def test_a_caption_as_long_as_those_trained_on_can_end(name: str) -> None:
    """END counts in max_length; googlenet's source draws at most 20 words, however long those trained on are."""
    config = load(name, ["data={adapter: scenes}"] if name == "demo" else ["data.path=."])
    assert config.evaluation.max_length > config.captions.max_tokens or name == "googlenet"


def test_presets_have_the_settings_of_their_sources() -> None:
    """Each row of the page's table, whose last column is the preset's value, or says why there is no setting."""
    page = (
        (HERE / "docs" / "captioners.md")
        .read_text()
        .partition("## What the publications state")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \| `([\w.]+)` \| `([^`|]+)`", page, re.MULTILINE)
    assert len(rows) > 40
    for names, _, setting, stated in rows:
        for name in re.findall(r"`(\w+)`", names):
            section, _, field = setting.partition(".")
            config = load(name, ["data.path=."])
            value = getattr(getattr(config, section), field)
            value = getattr(config.decoder.resolved(), field) if value is None else value  # the decoder's default
            assert value == yaml.safe_load(stated), (name, setting)
    named = {name for names, *_ in rows for name in re.findall(r"`(\w+)`", names)}
    assert named >= {"captionnet", "rnn", "lstm", "regnet_attention", "googlenet", "show_attend_tell"}


@pytest.mark.parametrize("name", ["rnn", "lstm", "regnet_attention"])
def test_coco_pts_captions_keep_their_ids(name: str, tmp_path: Path) -> None:
    """With apostrophes, unknown words and the order of the file's vocabulary."""
    words = [*SPECIAL, "it's", "a", "dog's", "don't", "red", "bone"]
    captions = [[START, *row, END] for row in ([4, 5, 8], [6, 9, 3], [7, 5, 6, 9])] * 10
    rows = torch.tensor([row + [NULL] * (17 - len(row)) for row in captions], dtype=torch.int64)
    pixels = torch.arange(30).view(30, 1, 1, 1).expand(30, 3, 8, 8).to(torch.uint8)
    document = {
        **{f"{part}_images": pixels[start:end] for part, start, end in (("train", 0, 20), ("val", 20, 30))},
        **{f"{part}_captions": rows[start:end] for part, start, end in (("train", 0, 20), ("val", 20, 30))},
        "vocab": {"idx_to_token": words, "token_to_idx": {word: at for at, word in enumerate(words)}},
    }
    torch.save(document, tmp_path / "coco.pt")
    config = load(name, [f"data.path={tmp_path / 'coco.pt'}", f"machine.workspace={tmp_path / 'workspace'}"])
    for stage in ("ingest", "tensorise"):
        run_stage(config, stage)
    results = artifacts(config, "tensorise")
    digests = {row["digest"]: row["name"] for row in pq.read_table(results["ingest"].path / MANIFEST).to_pylist()}
    kept = {
        digests[row["digest"]]: row["tokens"] for row in pq.read_table(results["tensorise"].path / CAPTIONS).to_pylist()
    }
    ids = {
        f"{part}-{at:06d}.png": row.tolist()
        for part, of in (("train", rows[:20]), ("val", rows[20:]))
        for at, row in enumerate(of)
    }
    assert kept == ids
    training = config.training
    assert (training.loss_mean, training.clip_norm, config.evaluation.beam) == ("captions", 0, 1)


def test_a_folder_may_be_named_by_a_date() -> None:
    assert load("flickr8k", ["data.path=2024-06-01"]).data.path.name == "2024-06-01"


def test_a_preset_is_one_file(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("preset: lstm\nabout: mine\ndecoder: {hidden: 24, output: mlp}\n")
    settings = [*SMALL, "grids.backbone=tiny", "grids.image_size=64", f"machine.workspace={workspace}"]
    config = load(str(tmp_path / "mine.yaml"), settings)
    assert (config.name, config.decoder.name, config.decoder.output) == ("mine", "lstm", "mlp")
    for stage in ("ingest", "extract", "tensorise", "train", "remember", "evaluate"):
        run_stage(config, stage)
    assert artifacts(config)["evaluate"].ledger.counts["captions"] > 0


OUTSIDE = '''
import torch
from models.decoders.recurrent import LSTMState, RecurrentDecoder


class Blind(RecurrentDecoder):
    """Captions without attention."""

    def init_state(self, annotations, pool):
        hidden = annotations.new_zeros(len(annotations), 1, self.hidden_gates.in_features)
        nothing = hidden[..., :0]
        return LSTMState(nothing, nothing, nothing, hidden, hidden, context=nothing)

    def attend(self, state, queries):
        return state
'''


def test_a_decoder_is_one_file_and_one_line(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "blind.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(DECODERS, "blind", Member("elsewhere.blind", "Blind", RecurrentOptions, attends=False))
    config = small(workspace, decoder={"name": "blind", "embedding": 8, "hidden": 16})
    for stage in ("ingest", "extract", "tensorise", "train", "remember", "evaluate"):
        run_stage(config, stage)
    assert artifacts(config)["evaluate"].ledger.counts["captions"] > 0
