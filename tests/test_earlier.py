"""What an earlier commit made: its grids are found again, and its registered model captions the same."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tasks.config.schema import Config
from tests.support import HERE, artifacts, pictures, run_stage, small

ARCHIVE = HERE / "tests" / "earlier" / "earlier.tar.xz"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def config_of(folder: Path, pictures: int = 24) -> Config:
    training = {"training__epochs": 60, "training__patience": 60, "training__learning_rate": 0.02}
    shares = {"data__dev_share": 0.2, "data__test_share": 0.2}
    rest = {"decoder__dropout_output": 0.0, "evaluation__metrics": ["bleu"]}
    return small(folder / "workspace", data__pictures=pictures, **training, **shares, **rest)


def test_no_picture_of_before_is_extracted_again(earlier: Path) -> None:
    config = config_of(earlier)
    run_stage(config, "ingest")
    assert run_stage(config, "extract").state == "fresh"
    assert artifacts(config, "extract")["extract"].ledger.counts["grids"] == 24


def test_more_pictures_extract_those_alone(earlier: Path) -> None:
    config = config_of(earlier, pictures=30)
    run_stage(config, "ingest")
    shards = {path: path.read_bytes() for path in config.workspace.glob("grids/*/shard-*")}
    # The grids of before are narrower than those of this backbone: the new ones go to a shard of their own.
    run_stage(config, "extract")
    counts = artifacts(config, "extract")["extract"].ledger.counts
    assert counts["grids"] == 30 and counts["extracted"] == 6
    assert all(path.read_bytes() == content for path, content in shards.items())


def test_a_registered_model_of_before_captions_the_same(earlier: Path) -> None:
    import mlflow

    expected = json.loads((earlier / "captions.json").read_text(encoding="utf-8"))
    files = pictures(earlier / "workspace")
    assert len(set(expected.values())) > 5 and len(files) == len(expected) == 24
    model = mlflow.pyfunc.load_model(str(earlier / "model"))
    rows = model.predict({"image": [path.read_bytes() for path in files]})
    assert {path.name: row["caption"] for path, row in zip(files, rows, strict=True)} == expected
