"""Laws of the epochs: each picture once, in an order of the seed and the epoch alone; blocks stay near each other."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.vocabulary import END, START
from tasks.data.caption_files import CaptionedPicture
from tasks.grids import reader as grid_reader
from tasks.grids.reader import GridReader
from tasks.grids.store import remove_shard
from tasks.training.batches import GridBatches, ResidentBatches
from tests.support import artifacts, run_all, small, store_with, write_shard

PICTURES = 70  # in seven shards


def batches_of(folder: Path, block: int | None, seed: int = 0, size: int = 4, moved: bool = False) -> GridBatches:
    """moved: whether the shards were written anew, and their rows lie the other way round."""
    store, grids = store_with(folder, shards=7, rows=10)
    if moved:
        sizes = [(1, 1)] * len(grids)
        write_shard(store, [np.stack(list(grids.values())[::-1])], list(grids)[::-1], sizes)
        for number in range(7):
            remove_shard(store.folder / f"shard-{number:05d}.h5")
    tokens = np.array([[START, 4, END]])
    pictures = [CaptionedPicture(digest, tokens) for digest in sorted(grids, reverse=True)]
    return GridBatches(pictures, GridReader(store, store.rows()[0]), size, seed, block)


@pytest.mark.parametrize("block", [None, 1, 3, 10, 100])
def test_an_epoch_has_each_picture_once_and_its_own_grid(tmp_path: Path, block: int | None) -> None:
    batches = batches_of(tmp_path, block)
    read = [grid for batch in batches.epoch(0) for grid in batch.pictures.numpy()]
    order = batches.order(0)
    assert sorted(order) == list(range(PICTURES))
    for grid, place in zip(read, order, strict=True):
        assert np.array_equal(grid, batches.grids.read([batches.captioned[place].digest])[0])


@pytest.mark.parametrize("block", [None, 3])
def test_resident_grids_make_the_same_batches(tmp_path: Path, block: int | None) -> None:
    batches = batches_of(tmp_path, block)
    resident = ResidentBatches(batches.captioned, batches.grids, 4, 0, block, device=torch.device("cpu"))
    for one, other in zip(batches.epoch(3), resident.epoch(3), strict=True):
        shown = resident.to_device(other, torch.device("cpu")).pictures
        assert torch.equal(one.pictures, shown) and torch.equal(one.tokens, other.tokens)


def test_training_on_resident_grids_gives_the_same_weights(finished: Path, workspace: Path) -> None:
    run_all(small(workspace, machine__resident=True))
    made = [artifacts(small(place)) for place in (finished, workspace)]
    assert made[0]["train"].products == made[1]["train"].products


@pytest.mark.parametrize("block", [None, 3])
def test_the_order_is_of_the_seed_and_the_epoch(tmp_path: Path, block: int | None) -> None:
    batches = batches_of(tmp_path / "one", block)
    assert np.array_equal(batches.order(1), batches_of(tmp_path / "two", block).order(1))
    elsewhere = batches_of(tmp_path / "moved", block, moved=True)
    assert np.array_equal(batches.order(1), elsewhere.order(1))
    for one, other in zip(batches.epoch(1), elsewhere.epoch(1), strict=True):
        assert torch.equal(one.pictures, other.pictures)
    assert not np.array_equal(batches.order(1), batches.order(2))
    assert not np.array_equal(batches.order(1), batches_of(tmp_path / "three", block, seed=1).order(1))
    rest = [grid for batch in batches.epoch(1, start=5) for grid in batch.pictures.numpy()]
    whole = [grid for batch in batches.epoch(1) for grid in batch.pictures.numpy()]
    assert np.array_equal(rest, whole[20:])


def test_a_pool_is_of_whole_blocks_and_mixed(tmp_path: Path) -> None:
    batches = batches_of(tmp_path, 2)
    order = batches.order(0)[:32]
    rows = sorted(batches.grids.row(batches.captioned[place].digest) for place in order)
    assert all(rows[at].row // 2 == rows[at + 1].row // 2 for at in range(0, 32, 2))
    near = sum(abs(int(one) - int(two)) == 1 for one, two in itertools.pairwise(order))
    assert near < 8  # neighbours come apart


@pytest.mark.parametrize(("size", "pool"), [(4, 16), (5, 20), (30, 30)])
@pytest.mark.parametrize("start", [0, 1])
def test_prefetched_grids_are_those_read_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, pool: int, start: int
) -> None:
    """Every grid of a pool is asked for before the pool's first batch is read."""
    batches = batches_of(tmp_path, 1, size=size)
    asked: set[str] = set()
    reads = []
    mapped = batches.grids.mapped
    monkeypatch.setattr(batches.grids, "prefetch", asked.update)

    def noted(digest: str) -> Any:
        reads.append((digest, set(asked)))
        return mapped(digest)

    monkeypatch.setattr(batches.grids, "mapped", noted)
    list(batches.epoch(0, start))
    assert len(reads) == PICTURES - start * size
    for place, (_, before) in enumerate(reads, start * size):
        first = max(place // pool * pool - start * size, 0)
        wanted = {digest for digest, _ in reads[first : place // pool * pool + pool - start * size]}
        assert wanted <= before


def test_pages_given_back_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [batch.pictures for batch in batches_of(tmp_path / "one", None).epoch(0)]
    monkeypatch.setattr(grid_reader, "_RESIDENT", 100)  # after each grid
    for one, other in zip(whole, batches_of(tmp_path / "two", None).epoch(0), strict=True):
        assert torch.equal(one, other.pictures)


def test_of_very_many_captions_each_epoch_draws_some(tmp_path: Path) -> None:
    """A file that is there in thousands of copies."""
    batches = batches_of(tmp_path, None)
    many = np.array([[START, word, END] for word in range(4, 1004)])
    captioned = [
        CaptionedPicture(item.digest, many if at == 7 else item.tokens) for at, item in enumerate(batches.captioned)
    ]
    batches, again = (GridBatches(captioned, batches.grids, 4, 0) for _ in range(2))
    epochs = [[batch.tokens for batch in batches.epoch(number)] for number in range(2)]
    drawn = [{int(word) for tokens in epoch for word in tokens[:, :, 1].flatten() if word > 4} for epoch in epochs]
    assert batches.rows == 64 and all(60 <= len(words) <= 64 for words in drawn) and drawn[0] != drawn[1]
    assert all(torch.equal(one.tokens, other) for one, other in zip(again.epoch(1), epochs[1], strict=True))


@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("count", [5, 40])
def test_an_epoch_of_so_many_batches_of_one_caption_a_picture(tmp_path: Path, block: int | None, count: int) -> None:
    """Fewer than show all pictures, or more: no picture is shown once more before all were."""
    given = batches_of(tmp_path, block)
    five = np.array([[START, word, END] for word in range(4, 9)])
    captioned = [CaptionedPicture(item.digest, five) for item in given.captioned]
    batches = GridBatches(captioned, given.grids, 4, 0, block, most_captions=1, epoch_batches=count)
    assert len(batches) == count and batches.rows == 1
    read = list(batches.epoch(0))
    assert len(read) == count and all(batch.tokens.shape == (4, 1, 3) for batch in read)
    order = batches.order(0)
    assert len(order) == 4 * count and len(set(order[:PICTURES])) == min(PICTURES, 4 * count)
    words = [{int(word) for batch in batches.epoch(epoch) for word in batch.tokens[:, 0, 1]} for epoch in range(2)]
    assert words[0] == {4, 5, 6, 7, 8}  # another caption for another picture
    resumed = list(batches.epoch(0, start=2))
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(read[2:], resumed, strict=True))
