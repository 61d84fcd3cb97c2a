"""Fine-tuning: what moves, what stays, and what is extracted again."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from PIL import Image

from models.backbones import BACKBONES
from models.backbones.base import make
from models.backbones.encoder import Encoder
from models.decoders.base import make as make_decoder
from models.end_to_end import EndToEnd, GroupedConvolutionsInFloat32
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.config.stages import CaptionsConfig
from tasks.config.training import TuningConfig
from tasks.data.caption_files import CaptionedPicture, build_vocabulary
from tasks.data.manifest import files_by_digest
from tasks.data.tokenisers import tokeniser
from tasks.grids.index import open_grids
from tasks.grids.photographs import decoders
from tasks.training import fine_tune_backbone as fine_tuning
from tasks.training import loop as fitting
from tasks.training.crops import mentions_side
from tasks.training.outputs import load_decoder
from tests.support import artifacts, names_of, plan, run_stage, small

TUNING = {"epochs": 2, "batch_pictures": 8, "backbone_learning_rate": 0.003, "learning_rate": 0.005}


def tuned_config(workspace: Path, **changes: Any) -> Config:
    return small(workspace, **{"tuning": TUNING, **changes})


def run(config: Config, until: str = "evaluate") -> dict[str, str]:
    states: dict[str, str] = {}
    for stage in names_of(config):
        states[stage] = run_stage(config, stage).state
        if stage == until:
            break
    return states


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    workspace = tmp_path_factory.mktemp("tuned") / "workspace"
    run(tuned_config(workspace))
    yield workspace


def test_the_tuned_backbone_has_its_own_grids_and_the_frozen_ones_are_shared(finished: Path) -> None:
    tuned, frozen = artifacts(tuned_config(finished)), artifacts(small(finished))
    assert tuned["extract"].products["identity"] != frozen["extract"].products["identity"]
    states = {status.stage.name: status.state for status in plan(small(finished))}
    assert states["extract"] == states["train"] == "fresh"


def test_a_second_run_extracts_nothing_again(finished: Path) -> None:
    assert set(run(tuned_config(finished)).values()) == {"fresh"}


def test_grids_of_the_tuned_backbone_are_what_it_makes_of_the_photographs(finished: Path) -> None:
    config = tuned_config(finished)
    found = artifacts(config)
    backbone = make("tiny")
    backbone.load_state_dict(safetensors.torch.load_file(found["tune"].path / "backbone.safetensors"))
    files = files_by_digest(found["ingest"].path, config.data)
    digests = sorted(files)[:5]
    with decoders(config.machine) as pool:
        views = fine_tuning.Views(config.grids, "bilinear", files, pool)
        made = Encoder(backbone)(views.whole(digests))
    kept = torch.from_numpy(open_grids(found["extract"], config.machine).read(digests))
    torch.testing.assert_close(made.float(), kept.float(), atol=2e-3, rtol=2e-3)


def test_only_the_blocks_named_are_tuned_and_batch_norm_does_not_drift(finished: Path, tmp_path: Path) -> None:
    before = make("tiny", seed=0).state_dict()
    after = safetensors.torch.load_file(artifacts(tuned_config(finished))["tune"].path / "backbone.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"features.2.weight", "features.2.bias"}  # block 2; block 1 and the statistics stay


def test_training_mode_never_reaches_batch_norm() -> None:
    backbone = make("mobilenet_v2")
    model = EndToEnd(backbone, make_decoder("lstm", 1280, 9, {"embedding": 4, "hidden": 4})).train()
    assert model.decoder.training
    assert not any(module.training for module in backbone.modules())


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_names_its_blocks(name: str) -> None:
    backbone = make(name)
    weights = {id(weight) for block in range(1, len(backbone.blocks) + 1) for weight in make_block(backbone, block)}
    assert len(backbone.blocks) == BACKBONES[name].blocks
    for block in range(1, len(backbone.blocks) + 1):
        assert make_block(backbone, block), f"block {block} has no weight"
    assert len(weights) < len(list(backbone.features.parameters())) or name == "tiny"  # the stem stays
    last = list(backbone.features.named_parameters())[-1][0]
    assert last.startswith(backbone.blocks[-1])
    with pytest.raises(ValueError, match="cannot be tuned"):
        backbone.unfreeze(len(backbone.blocks) + 1, 64)


@pytest.mark.parametrize(
    ("name", "size", "blocks"),
    [
        ("tf_efficientnet_lite2", 64, 7),
        ("resnet18", 64, 4),
        ("convnext_atto", 64, 4),
        ("vit_tiny_patch16_224", 96, 12),
        ("vgg11", 64, 7),
    ],
)
def test_timms_models_have_the_blocks_that_timm_names(name: str, size: int, blocks: int) -> None:
    """But none that comes after the map, such as ConvNeXt's norm before the classifier."""
    pytest.importorskip("timm")
    backbone = make(f"timm:{name}")
    assert len(backbone.blocks) == blocks
    stem = len(list(backbone.features.parameters()))
    tuned = [sum(map(len, make(f"timm:{name}").unfreeze(first, size))) for first in range(blocks, 0, -1)]
    assert tuned[0] > 0 and tuned == sorted(set(tuned)) and tuned[-1] < stem
    with pytest.raises(ValueError, match=f"has {blocks} blocks: block {blocks + 1} cannot be tuned"):
        backbone.unfreeze(blocks + 1, size)
    assert not any(weight.requires_grad for weight in backbone.parameters())


def test_grouped_convolutions_stay_in_float32_under_autocast() -> None:
    torch.manual_seed(0)
    grouped, whole = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.nn.Conv2d(8, 8, 1)
    pictures = torch.randn(2, 8, 5, 5)
    exact = grouped(pictures)
    with torch.autocast("cpu", torch.bfloat16):
        assert grouped(pictures).dtype == whole(pictures).dtype == torch.bfloat16
        with GroupedConvolutionsInFloat32():
            assert torch.equal(grouped(pictures), exact) and whole(pictures).dtype == torch.bfloat16
            # Also of what a product in bfloat16 gives, and by the names of its parameters.
            assert grouped(whole(pictures)).dtype == torch.float32
            named = torch.conv2d(input=pictures, weight=grouped.weight, bias=grouped.bias, padding=1, groups=8)
            assert torch.equal(named, exact)
    (gradient,) = torch.autograd.grad(exact.square().sum(), grouped.weight)
    with torch.autocast("cpu", torch.bfloat16), GroupedConvolutionsInFloat32():
        (found,) = torch.autograd.grad(grouped(pictures).square().sum(), grouped.weight)
    assert torch.equal(found, gradient)


def test_jitter_is_a_function_of_the_seed_and_changes_no_hue(finished: Path) -> None:
    config = tuned_config(finished)
    files = files_by_digest(artifacts(config)["ingest"].path, config.data)
    digests = sorted(files)[:3]
    with decoders(config.machine) as pool:
        views = fine_tuning.Views(config.grids, "bilinear", files, pool)
        one, again, plain = (views.varied(digests, ["a"] * 3, 0.9, [True] * 3, jitter) for jitter in (0.4, 0.4, None))
    assert torch.equal(one, again) and not torch.equal(one, plain)
    red = np.full((8, 8, 3), (200, 60, 60), np.uint8)
    changed = {tuple(fine_tuning.jittered(red, random.Random(seed), 0.3)[0, 0].tolist()) for seed in range(20)}
    assert len(changed) > 10 and all(r > g and g == b for r, g, b in changed)


def test_the_learning_rate_falls_from_block_to_block() -> None:
    blocks = [[torch.nn.Parameter(torch.zeros(number))] for number in (1, 2, 3)]
    decayed = fine_tuning.backbone_groups(blocks, TuningConfig(backbone_learning_rate=0.1, layer_decay=0.5))
    assert [group.learning_rate for group in decayed] == pytest.approx([0.025, 0.05, 0.1])
    assert [list(group.weights) for group in decayed] == blocks
    (same,) = fine_tuning.backbone_groups(blocks, TuningConfig(backbone_learning_rate=0.1))
    assert same.learning_rate == 0.1 and len(list(same.weights)) == 3


@pytest.mark.slow
def test_a_vit_is_tuned_block_by_block_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss falls, only the accepted blocks move, the earlier ones less, and a run that was cut goes on exactly."""
    pytest.importorskip("timm")
    vit = {"backbone": "timm:vit_tiny_patch16_224", "weights": "random:0", "image_size": 64}
    tuning = {**TUNING, "epochs": 3, "first_block": 10, "backbone_learning_rate": 0.0005, "layer_decay": 0.5}
    changes: dict[str, Any] = {"grids": vit, "tuning": tuning, "data__pictures": 200}
    whole, cut = (tuned_config(tmp_path / name, machine__checkpoint_seconds=0, **changes) for name in ("whole", "cut"))
    for stage in ("ingest", "extract-frozen", "tensorise", "train-frozen"):
        run_stage(whole, stage)
    shutil.copytree(whole.workspace, cut.workspace)
    run_stage(whole, "tune")
    found = artifacts(whole, "tune")["tune"]
    losses = pq.read_table(found.path / "history.parquet")["loss"].to_pylist()
    assert losses[-1] < losses[0]
    before, after = (
        make("timm:vit_tiny_patch16_224", seed=0).state_dict(),
        safetensors.torch.load_file(found.path / "backbone.safetensors"),
    )
    moved = {
        block: max(
            float((after[name] - before[name]).abs().max()) for name in before if f"features.blocks.{block}." in name
        )
        for block in range(12)
    }
    assert [block for block, most in moved.items() if most > 0] == [9, 10, 11]
    assert moved[9] < moved[10] < moved[11]

    learn, steps = fitting.TrainingLoop.learn, 0

    def dying(self: Any, batch: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 30:
            raise KilledError
        return learn(self, batch)

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(fitting.TrainingLoop, "learn", dying)
        run_stage(cut, "tune")
    run_stage(cut, "tune")
    assert artifacts(cut, "tune")["tune"].products == found.products


def make_block(backbone: Any, block: int) -> list[torch.nn.Parameter]:
    return [w for name, w in backbone.features.named_parameters() if name.startswith(backbone.blocks[block - 1])]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tuning": {"first_block": 3}}, "tuning.first_block: tiny has 2 blocks: block 3 cannot be tuned"),
        ({"grids__backbone": "torchvision:resnet18"}, "torchvision:resnet18 does not say which blocks it has"),
    ],
)
def test_a_backbone_that_cannot_be_tuned_so_is_reported_before_any_work(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(AttendError, match=told):
        tuned_config(tmp_path, **changes)


def test_a_photograph_that_goes_while_tuning_is_reported(finished: Path) -> None:
    config = tuned_config(finished)
    with decoders(config.machine) as pool:
        views = fine_tuning.Views(config.grids, "bilinear", {"0" * 64: finished / "gone.png"}, pool)
        with pytest.raises(AttendError, match=r"gone\.png: cannot be read on .*No such file"):
            views.whole(["0" * 64])


def test_a_caption_that_tells_left_from_right_keeps_its_picture_from_the_mirror(tmp_path: Path) -> None:
    picture = Image.new("RGB", (64, 64))
    picture.paste((255, 255, 255), (0, 0, 32, 64))  # white on the left
    picture.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    config = tuned_config(tmp_path)
    assert config.tuning is not None
    vocabulary = Vocabulary(("dog", "left", "of"))
    seen = {}
    with decoders(config.machine) as pool:
        views = fine_tuning.Views(config.grids, "bilinear", {digest: tmp_path / "a.png"}, pool)
        for words in (["dog"], ["left", "of", "dog"]):
            tokens = torch.tensor([vocabulary.encode(words, 5)]).numpy()
            captioned = [CaptionedPicture(digest, tokens)]
            batches = fine_tuning.PhotographBatches(captioned, config.tuning, vocabulary, views)
            whites = [batches.pictures_of(captioned, epoch)[0, 0, 32, 4].item() > 128 for epoch in range(30)]
            seen[len(words)] = set(whites)
    assert seen == {1: {True, False}, 3: {True}}


def test_views_vary_by_epoch_and_are_a_function_of_the_seed(finished: Path) -> None:
    config = tuned_config(finished)
    found = artifacts(config)
    files = files_by_digest(found["ingest"].path, config.data)
    digests = sorted(files)[:3]
    with decoders(config.machine) as pool:
        views = fine_tuning.Views(config.grids, "bilinear", files, pool)
        one, again, other = (views.varied(digests, [seed] * 3, 0.7, [True] * 3) for seed in ("a", "a", "b"))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_tuning_that_gains_nothing_is_reported(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(finished, tmp_path / "workspace")
    still = {**TUNING, "epochs": 1, "backbone_learning_rate": 1e-12, "learning_rate": 1e-12}
    config = tuned_config(tmp_path / "workspace", tuning=still, training__warmup_steps=900)
    with caplog.at_level("WARNING"):
        run(config, "tune")
    assert "no epoch is better on dev than the frozen backbone" in str(artifacts(config, "tune")["tune"].ledger.notes)
    assert "training.warmup_steps=900 are all of the training's" in caplog.text


def test_the_decoder_that_was_tuned_is_the_captioners(finished: Path, tmp_path: Path) -> None:
    """It goes on to self-critical training and the registry."""
    workspace = tmp_path / "workspace"
    shutil.copytree(finished, workspace)
    rewarded = {"epochs": 1, "batch_pictures": 8}
    config = tuned_config(workspace, self_critical=rewarded)
    states = run(config, "register")
    assert [name for name, state in states.items() if state != "fresh"] == [
        "self_critical", "evaluate", "register",
    ]  # fmt: skip
    found = artifacts(config)
    for name in ("weights.safetensors", "decoder.json", "history.parquet"):
        assert (found["train"].path / name).read_bytes() == (found["tune"].path / name).read_bytes()
    decoder: Any = load_decoder(found["train"].path)[0]
    start: Any = load_decoder(artifacts(small(finished))["train"].path)[0]
    assert not torch.equal(decoder.embed.weight, start.embed.weight)


class KilledError(Exception):
    pass


def test_resumed_tuning_is_uninterrupted_tuning(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "cut"
    shutil.copytree(finished, workspace)
    shutil.rmtree(workspace / "artifacts" / "tune")
    config = tuned_config(workspace, machine__checkpoint_seconds=0)
    learn, steps = fitting.TrainingLoop.learn, 0

    def dying(self: Any, batch: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 10:  # in the second epoch
            raise KilledError
        return learn(self, batch)

    monkeypatch.setattr(fitting.TrainingLoop, "learn", dying)
    with pytest.raises(KilledError):
        run_stage(config, "tune")
    monkeypatch.setattr(fitting.TrainingLoop, "learn", learn)
    run_stage(config, "tune")
    whole, cut = (artifacts(tuned_config(place))["tune"] for place in (finished, workspace))
    assert whole.products == cut.products
    histories = [pq.read_table(found.path / "history.parquet").drop(["seconds"]) for found in (whole, cut)]
    assert histories[0].equals(histories[1])


@pytest.mark.parametrize("name", ["unicode", "whitespace", "characters"])
def test_left_is_read_in_a_caption_of_any_tokeniser(name: str) -> None:
    captions = CaptionsConfig.model_validate({"tokeniser": name, "min_count": 1})
    for caption, is_sided in (("A dog on the Left, barking", True), ("A dog and some leftovers", False)):
        words = tokeniser(name)(caption)
        vocabulary = build_vocabulary([words], captions)
        picture = CaptionedPicture("a", np.array([vocabulary.encode(words, 40)]))
        assert mentions_side(picture, vocabulary) is is_sided
