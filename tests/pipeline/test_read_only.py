"""A workspace that may only be read, by another user: whatever only reads it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import HERE, pictures

NOBODY = 65534
_READER = """
import sys, tempfile
sys.path.insert(0, {here!r})
from pathlib import Path
from typer.testing import CliRunner
from flows.commands.cli import app
place = ["--workspace", {workspace!r}]
commands = [
    ["caption", {picture!r}],
    ["caption", {picture!r}, "--out", "captions.csv"],
    ["models", "list"],
    ["models", "report", "models:/small/1"],
    ["export", "--to", "exported"],
    ["workspace", "usage"],
]
for command in commands:
    done = CliRunner().invoke(app, [*command, *place])
    print(command[0], done.exit_code, done.output, done.exception or "")
from flows.serving.registered_model import RegisteredModel
served = RegisteredModel(None, Path({workspace!r}), 60)
print("served", served.address)
import mlflow
mlflow.set_tracking_uri("sqlite:///" + {workspace!r} + "/mlflow.db")
loaded = mlflow.pyfunc.load_model("models:/small@champion", dst_path=tempfile.mkdtemp())
print("loaded", loaded.predict({{"image": [Path({picture!r}).read_bytes()]}})[0]["caption"])
"""


@pytest.mark.slow
def test_reading_needs_no_write_access(registered: Path, tmp_path: Path) -> None:
    """The workspace is where it was made: its store has whole paths."""
    home = tmp_path / "home"
    home.mkdir()
    picture = home / "picture.png"
    shutil.copyfile(pictures(registered)[0], picture)
    modes = {path: path.stat().st_mode for path in [registered, *registered.rglob("*")]}
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
    python = [*as_nobody, sys.executable]
    if as_nobody and (not shutil.which("setpriv") or subprocess.run([*python, "-c", ""], check=False).returncode):
        pytest.skip("another user cannot run this Python")
    for folder in (home, *home.parents, *registered.parents):  # pytest's folders are its own user's alone
        if os.access(folder, os.W_OK) and folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    home.chmod(0o777)
    code = _READER.format(here=str(HERE), workspace=str(registered), picture=str(picture))
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for path, mode in modes.items():
            path.chmod(mode & 0o555 if path.is_dir() else mode & 0o444)
        before = sorted(registered.rglob("*"))
        done = subprocess.run(
            [*python, "-c", code],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    text = done.stdout
    assert [line.split()[1] for line in text.splitlines() if line.split()[:1] in (["caption"], ["models"])] == ["0"] * 4
    assert "export 0" in text and "workspace 0" in text, text
    assert "served models:/small@champion" in text and "loaded " in text, text + done.stderr
    assert (home / "captions.csv").is_file() and (home / "exported" / "README.md").is_file()
    assert not (home / "captions.csv.parts").exists()
    assert sorted(registered.rglob("*")) == before
