"""On real photographs and weights, where ATTEND_TEST_FLICKR8K and ATTEND_TEST_WEIGHTS name them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.data.manifest import files_by_digest, read_pictures
from tasks.grids.index import open_grids
from tests.support import artifacts, run_stage, small

FLICKR8K, WEIGHTS = os.environ.get("ATTEND_TEST_FLICKR8K"), os.environ.get("ATTEND_TEST_WEIGHTS")

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not (FLICKR8K and WEIGHTS), reason="ATTEND_TEST_FLICKR8K and ATTEND_TEST_WEIGHTS are not set"),
]


def test_flickr8k_as_published(tmp_path: Path) -> None:
    """A hundred dev pictures of the real data set, through real weights, into grids of the promised shape."""
    source, folder = Path(str(FLICKR8K)), tmp_path / "flickr8k"
    folder.mkdir()
    (folder / "Flickr8k.token.txt").symlink_to(source / "Flickr8k.token.txt")
    (folder / "images").symlink_to(source / "images")
    for split, names in (("train", slice(0, 80)), ("dev", slice(0, 20))):
        lines = (source / f"Flickr_8k.{split}Images.txt").read_text().splitlines()
        (folder / f"Flickr_8k.{split}Images.txt").write_text("\n".join(lines[names]))
    grids = {"backbone": "mobilenet_v2", "weights": WEIGHTS, "image_size": 224}
    data = {"adapter": "flickr8k", "path": folder}
    config = small(tmp_path / "ws", data=data, grids=grids, evaluation={"split": "dev", "beam": 3})
    for stage in ("ingest", "extract", "tensorise", "train", "evaluate"):
        run_stage(config, stage)
    found = artifacts(config)
    reader = open_grids(found["extract"], config.machine)
    assert reader.shape == (7, 7, 1280)
    assert len(read_pictures(found["ingest"].path, "train")) == 80
    assert found["extract"].ledger.counts["failed"] == 0
    digests = list(files_by_digest(found["ingest"].path, config.data))
    values = reader.read(digests).astype("float32")
    # ReLU6 is the last layer: its range, and neither all zeros nor all ones, tell that the weights fit.
    assert values.min() >= 0 and values.max() <= 6 and 0.01 < (values > 0).mean() < 0.9
