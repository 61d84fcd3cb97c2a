"""Small real data sets and configs that the tests share: generated scenes, a tiny backbone, no network."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from tasks.common.cores import available_cores
from tasks.common.log import show_log
from tests.browser import browser, page  # noqa: F401 # fixtures
from tests.support import register_all, run_all, small, trained

show_log()
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.pop("MLFLOW_TRACKING_URI", None)
os.environ.pop("ATTEND_WORKSPACE", None)

_MOST_WORKERS = 4  # each takes a GiB or two of memory


def pytest_xdist_auto_num_workers() -> int:
    """Tell how many processes `-n auto` starts."""
    return min(available_cores(), _MOST_WORKERS)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that training, search and extraction compute on."""
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    return name


@pytest.fixture(scope="session")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one registered version of `trained`, champion: nothing that tests see of it is to be changed."""
    workspace = tmp_path_factory.mktemp("registered") / "workspace"
    register_all(trained(workspace))
    return workspace


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
