"""Cached views: what a view shows is what the photograph shows there, sidedness is minded, nothing is extracted twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.commands.workspace_contents import compact, planned_compactions, usage
from models.backbones.encoder import Encoder
from models.encoded_pictures import decode
from models.photographs import as_batch
from models.resizing import resize
from models.vocabulary import Vocabulary
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.config.stages import CaptionsConfig, ViewsConfig
from tasks.data.caption_files import CaptionedPicture, build_vocabulary, read_captions, read_vocabulary
from tasks.data.manifest import files_by_digest
from tasks.data.tokenisers import tokeniser
from tasks.grids import view_crops
from tasks.grids.index import indexed_digests, open_grids
from tasks.grids.weights import load_backbone
from tasks.pipeline.workspace import Workspace
from tasks.training.batches import GridBatches
from tests.support import artifacts, names_of, run_stage, small

VIEWS = {"number": 3, "crop": 0.6}


def run(config: Config, until: str = "train") -> None:
    for stage in names_of(config):
        run_stage(config, stage)
        if stage == until:
            return


def test_a_cached_view_is_the_part_of_the_photograph_encoded(workspace: Path) -> None:
    config = small(workspace, views=VIEWS)
    run(config, "views")
    made = artifacts(config, "views")
    manifest = made["ingest"].path
    files = files_by_digest(manifest, config.data)
    cached, whole = open_grids(made["views"], config.machine), open_grids(made["extract"], config.machine)
    assert config.views is not None
    backbone = load_backbone(config.grids)
    encoder = Encoder(backbone, "float32", torch.device("cpu"))
    digest = next(digest for digest in sorted(files) if f"{digest}#1" in cached)
    for name in view_crops.names_of(digest, config.views):
        shown = view_crops.view_pixels(name, decode(files[digest].read_bytes()), config.views)
        pixels = resize(shown, 64, "squash", backbone.declared.interpolation)
        expected = encoder(as_batch([pixels]))[0].numpy()
        np.testing.assert_allclose(cached.mapped(name), expected, atol=2e-3, rtol=2e-3)
        assert np.abs(cached.mapped(name).astype(float) - whole.mapped(digest)).max() > 0.01  # another picture


def test_a_view_is_a_mirrored_part_of_its_size() -> None:
    config = ViewsConfig(number=4, crop=0.5)
    pixels = (np.arange(40 * 60 * 3) % 251).astype(np.uint8).reshape(40, 60, 3)
    for number in range(1, 40):
        name = f"abc#{number}"
        shown = view_crops.view_pixels(name, pixels, config)
        assert 20 <= shown.shape[0] <= 40 and 30 <= shown.shape[1] <= 60
        assert np.array_equal(shown, view_crops.view_pixels(name, pixels, config))  # a function of its name
        upright = shown[:, ::-1] if view_crops.is_mirrored(name, config) else shown
        places = np.lib.stride_tricks.sliding_window_view(pixels, upright.shape)
        assert bool((places == upright).all(axis=(-3, -2, -1)).any())
    assert view_crops.is_mirrored("abc#1", config) and not view_crops.is_mirrored("abc#2", config)
    assert not view_crops.is_mirrored("abc#1", ViewsConfig(flip=False))


def test_no_picture_that_tells_left_from_right_is_mirrored() -> None:
    vocabulary = Vocabulary(("dog", "left"), {})
    plain, sided = (CaptionedPicture(name, np.array([ids])) for name, ids in (("a", [1, 4, 2]), ("b", [1, 5, 2])))
    there: Any = {*"ab", *(f"{name}#{number}" for name in "ab" for number in range(1, 5))} - {"a#2"}
    found = view_crops.grid_names_for_training([plain, sided], ViewsConfig(number=4), vocabulary, there)
    assert found == {"a": ["a", "a#1", "a#3", "a#4"], "b": ["b", "b#2", "b#4"]}


@pytest.mark.parametrize("name", ["unicode", "whitespace", "characters"])
def test_left_is_read_in_a_caption_of_any_tokeniser(name: str) -> None:
    captions = CaptionsConfig.model_validate({"tokeniser": name, "min_count": 1})
    for caption, is_sided in (("A dog on the Left, barking", True), ("A dog and some leftovers", False)):
        words = tokeniser(name)(caption)
        vocabulary = build_vocabulary([words], captions)
        picture = CaptionedPicture("a", np.array([vocabulary.encode(words, 40)]))
        assert view_crops.mentions_side(picture, vocabulary) is is_sided


def test_every_view_is_drawn_and_a_resumed_epoch_draws_the_same(workspace: Path) -> None:
    config = small(workspace, views=VIEWS)
    run(config, "tensorise")
    made = artifacts(config, "tensorise")
    assert config.views is not None
    pictures = read_captions(made["tensorise"].path, "train")
    both = open_grids(made["extract"], config.machine).merged_with(open_grids(made["views"], config.machine))
    choices = view_crops.grid_names_for_training(pictures, config.views, read_vocabulary(made["tensorise"].path), both)
    for block in (None, 4):
        batches = GridBatches(pictures, both, 8, 0, block, choices)
        epochs = [torch.cat([batch.pictures for batch in batches.epoch(number)]) for number in (0, 1)]
        assert not torch.equal(epochs[0].sort(dim=0).values, epochs[1].sort(dim=0).values)
        resumed = torch.cat([batch.pictures for batch in batches.epoch(1, start=2)])
        assert torch.equal(resumed, epochs[1][16:])
    drawn = {batches.drawn(picture.digest, epoch) for picture in pictures for epoch in range(40)}
    assert drawn == {name for names in choices.values() for name in names}


def test_more_views_extract_only_what_is_new_and_unneeded_ones_go(workspace: Path) -> None:
    run(small(workspace, views=VIEWS), "views")
    more = small(workspace, views={**VIEWS, "number": 4})
    run(more, "views")
    counts = artifacts(more, "views")["views"].ledger.counts
    assert counts["extracted"] > 0 and counts["grids"] == 4 * counts["extracted"]
    again = small(workspace, views=VIEWS)
    assert [run_stage(again, stage).state for stage in ("ingest", "extract", "views")] == ["fresh"] * 3
    shards = [item for item in usage(Workspace(workspace)) if item.path.suffix == ".h5"]
    assert any(not item.needed_by for item in shards)
    views = artifacts(again, "views")["views"]
    before, names = open_grids(views, again.machine), indexed_digests(views)
    kept = {name: before.mapped(name).copy() for name in names}
    compact(Workspace(workspace), planned_compactions(Workspace(workspace)), 16)
    after = open_grids(artifacts(again, "views")["views"], again.machine)
    assert all(np.array_equal(after.mapped(name), grid) for name, grid in kept.items())
    assert all(item.needed_by for item in usage(Workspace(workspace)) if item.path.suffix == ".h5")


def test_training_goes_on_views_and_another_crop_makes_it_stale(workspace: Path) -> None:
    config = small(workspace, views=VIEWS)
    run(config)
    plain = artifacts(small(workspace), "train")
    assert "train" not in plain  # views are in its key
    other = small(workspace, views={**VIEWS, "crop": 0.7})
    states = {name: run_stage(other, name).state for name in names_of(other)[:5]}
    assert states["extract"] == "fresh" and states["views"] == "stale" and states["train"] == "stale"


def test_imported_grids_have_no_views(workspace: Path) -> None:
    with pytest.raises(AttendError, match="views: imported grids have neither photographs nor a backbone"):
        small(workspace, views=VIEWS, grids={"backbone": "imported", "weights": "imported:x", "image_size": 64})
