"""Small real data sets and configs that the tests share: generated scenes, a tiny backbone, no network."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tasks import tracking
from tasks.config import Config, validate
from tasks.cores import available_cores
from tasks.manifest import GENERATED
from tasks.running import run_stage
from tasks.stages import STAGES

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.pop("MLFLOW_TRACKING_URI", None)
os.environ.pop("ATTEND_WORKSPACE", None)

HERE = Path(__file__).resolve().parents[1]
_MOST_WORKERS = 4  # each takes a GiB or two of memory
WITHOUT_MLFLOW = [stage.name for stage in STAGES if stage.name != "register"]


def pytest_xdist_auto_num_workers() -> int:
    """Tell how many processes `-n auto` starts."""
    return min(available_cores(), _MOST_WORKERS)


def small(workspace: Path, **changes: object) -> Config:
    """A whole config that runs in seconds; `changes` are dotted names with `__` for the dot."""
    values: dict[str, dict[str, object] | str] = {
        "name": "small",
        "data": {"adapter": "scenes", "pictures": 60, "side": 48},
        "grids": {"backbone": "tiny", "weights": "random:0", "image_size": 64},
        "captions": {"min_count": 1},
        "decoder": {"name": "show_attend_tell", "embedding": 16, "hidden": 24, "attention_size": 16},
        "training": {
            "epochs": 2,
            "batch_pictures": 8,
            "learning_rate": 0.005,
            "warmup_steps": 2,
            "precision": "float32",
        },
        "evaluation": {"split": "test", "beam": 2, "metrics": ["bleu", "truth"]},
        "machine": {"workspace": str(workspace), "shard_rows": 16, "device": "cpu"},
    }
    for name, value in changes.items():
        if "__" not in name:
            values[name] = value  # type: ignore[assignment]
            continue
        section, field = name.split("__")
        inner = values.setdefault(section, {})
        assert isinstance(inner, dict)
        inner[field] = value
    data = values["data"]
    assert isinstance(data, dict)
    if data["adapter"] != "scenes" and "evaluation__metrics" not in changes and "evaluation" not in changes:
        values["evaluation"]["metrics"] = ["bleu"]  # type: ignore[index]
    return validate(values, "test")


def run_all(config: Config) -> dict[str, str]:
    """Run every stage but register; stage -> its state before."""
    return {name: run_stage(config, name).state for name in WITHOUT_MLFLOW}


def trained(workspace: Path, **changes: object) -> Config:
    """A config whose captions say something."""
    training = {"training__epochs": 20, "training__patience": 20, "training__learning_rate": 0.01}
    return small(workspace, **{"data__pictures": 120, "decoder__dropout_output": 0.0, **training, **changes})


@functools.cache
def _empty_store() -> Path:
    """Return an MLflow database without runs: it takes seconds to make, and nothing to copy."""
    folder = tempfile.TemporaryDirectory(prefix="attend-store-")
    atexit.register(folder.cleanup)
    tracking.connect(Path(folder.name))
    return Path(folder.name) / "mlflow.db"


def _give_store(workspace: Path) -> None:
    """Put an MLflow database into the workspace, where it has none."""
    if not (workspace / "mlflow.db").exists():
        workspace.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_empty_store(), workspace / "mlflow.db")


def register_all(config: Config) -> dict[str, str]:
    """Run every stage; stage -> its state before."""
    _give_store(config.workspace)
    return {stage.name: run_stage(config, stage.name).state for stage in STAGES}


@pytest.fixture(scope="session")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one registered version of `trained`, champion: nothing that tests see of it is to be changed."""
    workspace = tmp_path_factory.mktemp("registered") / "workspace"
    register_all(trained(workspace))
    return workspace


def pictures(workspace: Path) -> list[Path]:
    """Its generated pictures."""
    return sorted(workspace.glob(f"artifacts/ingest/*/{GENERATED}/*.png"))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which `small` has run up to evaluate: not to be changed."""
    workspace = tmp_path_factory.mktemp("finished") / "workspace"
    run_all(small(workspace))
    return workspace


@pytest.fixture
def finished_copy(finished: Path, workspace: Path) -> Path:
    """A copy of it, to do with as one likes."""
    shutil.copytree(finished, workspace)
    return workspace
