"""Run the command line in the test's own process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.commands import cli
from flows.commands.cli import app
from tests.support import small

Capture = pytest.CaptureFixture[str]


def attend(monkeypatch: pytest.MonkeyPatch, capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `attend ARGUMENTS`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["attend", *arguments])
    capsys.readouterr()
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(monkeypatch: pytest.MonkeyPatch, capsys: Capture, *arguments: str) -> str:
    """The one line in which the command ends."""
    code, _, err = attend(monkeypatch, capsys, *arguments)
    lines = [line for line in err.splitlines() if line.startswith("attend: ")]
    assert code == 1 and len(lines) == 1 and "Traceback" not in err
    return lines[0]


def written(tmp_path: Path, **changes: object) -> str:
    """A YAML file of a small config."""
    config = small(tmp_path / "workspace", **changes).model_dump(
        mode="json", exclude={"data": {"path"}} if "data" not in changes else None
    )
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(config))
    return str(path)


def output(*words: object) -> str:
    """What the command prints; an AttendError is raised, as it is to the program."""
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def review(*words: object) -> str:
    """What `attend review` prints: see `output`."""
    return output("review", *words)
