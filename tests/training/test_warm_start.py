"""A warm start: words keep their weights whatever their ids, and nothing else than the champion's decoder is gone on from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from models.backbones.base import make as make_backbone
from models.captioner import Captioner
from models.decoders import DECODERS
from models.decoders.ensemble import make
from models.options import DecoderSpec
from models.vocabulary import END, START, Vocabulary
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.config.stages import GridsConfig
from tasks.mlflow_store import tracking
from tasks.mlflow_store.versions import champion_bundle
from tasks.neighbours.make_memory import memory_of
from tasks.training.outputs import HISTORY
from tasks.training.warm_start import check_backbone, start_from
from tests.support import artifacts, plan, register_all, run_stage, small

SIZES: dict[str, dict[str, Any]] = {
    "show_attend_tell": {"embedding": 8, "hidden": 8, "attention_size": 8, "dropout_output": 0.0},
    "transformer": {"embedding": 8, "hidden": 8, "layers": 1, "heads": 2, "feed_forward": 8, "dropout_output": 0.0},
}
NO_PICTURES = memory_of(np.zeros((2, 2, 16), np.float32), np.zeros((1, 16), np.float32), 4)
OLD = Vocabulary(("dog", "runs", "on", "grass"))
NEW = Vocabulary(("on", "cat", "grass", "dog", "sleeps", "runs"))  # other ids, two new words


def bundle_of(folder: Path, name: str, members: int = 1, **options: Any) -> tuple[Path, Any]:
    torch.manual_seed(1)
    shape = shape_of(name, OLD, members, options)
    decoder = make(**shape).eval()
    backbone = {"name": "tiny", "image_size": 64, "fit": "squash", "grid": None, "precision": "float32"}
    config = {"backbone": backbone, "decoder": {**shape, "options": full(shape)}, "decoding": {}, "neighbours": None}
    Captioner(config, OLD, make_backbone("tiny", seed=0), decoder, NO_PICTURES).save(folder)
    return folder, decoder


def shape_of(name: str, vocabulary: Vocabulary, members: int, options: dict[str, Any]) -> DecoderSpec:
    sizes = {**SIZES[name], **options}
    return DecoderSpec(name=name, channels=16, vocabulary=len(vocabulary), options=sizes, members=members)


def full(shape: DecoderSpec) -> dict[str, Any]:
    """Return the options with their defaults, as a config has them."""
    return asdict(DECODERS[shape["name"]].options(**shape["options"]))


def begun(folder: Path, name: str, members: int = 1, **options: Any) -> tuple[Any, str]:
    torch.manual_seed(2)
    shape = shape_of(name, NEW, members, options)
    decoder = make(**shape).eval()
    [message] = start_from(decoder, {**shape, "options": full(shape)}, NEW, folder, "the champion")
    return decoder, message


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("head", [{}, {"tie_weights": True}])
def test_known_words_have_the_logits_that_they_had(name: str, head: dict[str, Any], tmp_path: Path) -> None:
    folder, champion = bundle_of(tmp_path, name, **head)
    decoder, message = begun(folder, name, **head)
    assert message == "starts from the weights of the champion; 2 of 10 tokens are new"
    grid = torch.randn(2, 2, 2, 16)
    texts = [["dog", "runs", "on"], ["grass", "on", "dog"]]
    logits = []
    for vocabulary, model in ((OLD, champion), (NEW, decoder)):
        words = torch.tensor([[[START, *map(vocabulary.id_of, text)]] for text in texts])
        found, _ = model(grid, words, torch.arange(words.numel()))
        rows = [*range(4), *(vocabulary.id_of(word) for word in OLD.words)]
        logits.append(found[:, rows])
    torch.testing.assert_close(logits[1], logits[0])
    assert len(logits[0][0]) == 8 and END in range(4)


def test_a_champion_registered_before_there_was_an_option_has_its_default(tmp_path: Path) -> None:
    folder, _ = bundle_of(tmp_path, "show_attend_tell")
    config = json.loads((folder / "config.json").read_text())
    del config["decoder"]["options"]["gate"]
    (folder / "config.json").write_text(json.dumps(config))
    begun(folder, "show_attend_tell")
    with pytest.raises(AttendError, match=r"has decoder\.gate True, this config False"):
        begun(folder, "show_attend_tell", gate=False)


def test_another_decoder_is_refused(tmp_path: Path) -> None:
    folder, _ = bundle_of(tmp_path, "show_attend_tell")
    with pytest.raises(AttendError, match=r"the decoder of the champion has decoder\.hidden 8, this config 12"):
        begun(folder, "show_attend_tell", hidden=12)
    with pytest.raises(AttendError, match=r"has decoder\.name show_attend_tell, this config transformer"):
        begun(folder, "transformer")


def test_each_member_of_an_ensemble_starts_from_its_own(tmp_path: Path) -> None:
    folder, given = bundle_of(tmp_path / "two", "show_attend_tell", members=2)
    decoder, _ = begun(folder, "show_attend_tell", members=2)
    for own, theirs in zip(decoder, given, strict=True):
        [dog], [before] = (
            [token for token in vocabulary.encode(["dog"], 2) if token > END] for vocabulary in (NEW, OLD)
        )
        assert torch.equal(own.embed.weight[dog], theirs.embed.weight[before])
    assert not torch.equal(given[0].embed.weight, given[1].embed.weight)
    alone, _ = begun(folder, "show_attend_tell")  # one decoder starts from the first member
    torch.testing.assert_close(alone.state_dict(), decoder[0].state_dict())
    with pytest.raises(AttendError, match=r"has decoder\.members 2, this config 3"):
        begun(folder, "show_attend_tell", members=3)


def test_another_backbone_is_refused(tmp_path: Path) -> None:
    folder, _ = bundle_of(tmp_path, "show_attend_tell")
    check_backbone(folder, GridsConfig(backbone="tiny", weights="random:0", image_size=64), "the champion")
    for grids, told in (
        (GridsConfig(backbone="tiny", weights="random:1", image_size=64), "other weights of it"),
        (GridsConfig(backbone="tiny", weights="random:0", image_size=96), "has grids.image_size 64, this config 96"),
        (GridsConfig(backbone="imported", weights="imported:x", image_size=64), "of another kind"),
    ):
        with pytest.raises(AttendError, match=told):
            check_backbone(folder, grids, "the champion")


def test_a_model_without_a_champion_is_trained_from_the_beginning_and_it_is_said(
    finished_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """None was registered yet, or a gate refused them all."""
    config = small(finished_copy, training__start_from="champion", training__epochs=1)
    run_stage(config, "train")
    message = "the model has no champion that can be read here, so training starts from the beginning"
    assert message in caplog.text and message in " ".join(artifacts(config)["train"].ledger.notes)


def test_a_champion_and_tuning_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(AttendError, match="is no start for a frozen one"):
        small(tmp_path, training__start_from="champion", tuning={"epochs": 1})


def test_a_night_goes_on_from_the_champion_and_a_promotion_trains_nothing(workspace: Path, tmp_path: Path) -> None:
    def config(pictures: int, **training: Any) -> Config:
        settings = {f"training__{name}": value for name, value in training.items()}
        return small(workspace, data__pictures=pictures, decoder__dropout_output=0.0, **settings)

    def first_loss(settings: Config) -> float:
        for name in ("ingest", "extract", "tensorise"):
            run_stage(settings, name)
        run_stage(settings, "train", champion=lambda: champion_bundle(workspace, "small", tmp_path))
        rows = pq.read_table(artifacts(settings, "train")["train"].path / HISTORY).to_pylist()
        return float(next(row["loss"] for row in rows if row["epoch"] == 1))

    register_all(config(60, epochs=12, patience=12, learning_rate=0.01))
    low = {"epochs": 1, "learning_rate": 1e-4, "warmup_steps": 0}
    cold, warm = first_loss(config(70, **low)), first_loss(config(70, **low, start_from="champion"))
    assert warm < cold - 0.5
    # Another champion leaves the training as fresh as it is.
    client = tracking.connect(workspace)
    client.delete_registered_model_alias("small", "champion")
    states = {item.stage.name: item.state for item in plan(config(70, **low, start_from="champion"))}
    assert states["train"] == "fresh"
    assert champion_bundle(workspace, "small", tmp_path) is None
    first_loss(config(72, **low, start_from="champion"))  # without a champion: from the beginning


def test_a_captioner_that_training_makes_no_better_stays_as_it_was(workspace: Path, tmp_path: Path) -> None:
    register_all(small(workspace, training__epochs=6, training__learning_rate=0.01, training__select="likelihood"))
    harmful = {"training__epochs": 2, "training__learning_rate": 5.0, "training__warmup_steps": 0}
    config = small(workspace, training__start_from="champion", training__select="likelihood", **harmful)
    for name in ("ingest", "extract", "tensorise"):
        run_stage(config, name)
    run_stage(config, "train", champion=lambda: champion_bundle(workspace, "small", tmp_path))
    artifact = artifacts(config, "train")["train"]
    rows = pq.read_table(artifact.path / HISTORY).to_pylist()
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert rows[0]["dev_likelihood"] > max(row["dev_likelihood"] for row in rows[1:])
    assert any("no epoch is better on dev than what training began with" in note for note in artifact.ledger.notes)
    champion = champion_bundle(workspace, "small", tmp_path)
    assert champion is not None
    before = safetensors.torch.load_file(champion / "decoder.safetensors")
    after = safetensors.torch.load_file(artifact.path / "weights.safetensors")
    assert all(torch.equal(before[name], value) for name, value in after.items())
