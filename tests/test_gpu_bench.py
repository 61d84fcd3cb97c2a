"""`make gpu` is ready before a GPU is: each part runs on the processor, and what is missing is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import HERE


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    return subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, env={**os.environ, **variables}, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", ["laws", "extraction", "steps", "epoch", "search", "memory"])
def test_a_part_is_rehearsed_on_the_processor(part: str, tmp_path: Path) -> None:
    ended = run("--device", "cpu", "--out", str(tmp_path), part)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"| {part} | done |" in ended.stdout
    result = json.loads((tmp_path / f"gpu.{part}.json").read_text())
    assert result["tables"][0]["rows"] and "rehearsal" in result["machine"][0]


@pytest.mark.slow
def test_a_part_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    ended = run("--device", "cpu", "--out", str(tmp_path), "--seconds", "1", "laws")
    assert ended.returncode == 1 and "stopped: it took too long" in ended.stdout
    assert not list(tmp_path.iterdir())


def test_packages_that_are_missing_are_named(tmp_path: Path) -> None:
    """A package that cannot be found is what a machine that lacks it shows."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name in ('pydantic', 'torchvision') else found(name, *more)\n"
    )
    ended = run("--device", "cpu", "--out", str(tmp_path / "out"), "laws", "epoch", PYTHONPATH=f"{tmp_path}:{HERE}")
    assert ended.returncode == 0
    assert "| laws | not run: this machine lacks pydantic, torchvision | 0 |" in ended.stdout
    assert "| epoch | not run: this machine lacks pydantic | 0 |" in ended.stdout
    assert not (tmp_path / "out").exists()
