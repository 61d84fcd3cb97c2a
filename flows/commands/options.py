"""Arguments and options that several commands share, and the printing of JSON."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from models.options import Runtime

Preset = Annotated[str, typer.Argument(metavar="PRESET_OR_YAML", help="name of a preset, or a YAML file")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SECTION.FIELD=VALUE]...", help="settings that replace those of the preset or file"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
Until = Annotated[str, typer.Option(help="last stage to run")]
Verify = Annotated[bool, typer.Option("--verify", help="read every file and check its digest, not only its size")]


def whole_number(least: int, most: int | None = None) -> dict[str, Any]:
    """Return the arguments of an option that takes a whole number in plain digits; Python also reads `1_0` as 10."""

    def parse(value: str | int) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", str(value).strip()):
            raise typer.BadParameter(f"{str(value)[:80]!r} is not a whole number")
        number = int(value)
        if number < least or (most is not None and number > most):
            raise typer.BadParameter(f"{number} is not in the range {metavar}")
        return number

    metavar = f"{least}<=x" if most is None else f"{least}<=x<={most}"
    return {"parser": parse, "metavar": f"INTEGER [{metavar}]"}


def workspace_folder(workspace: str | Path | None) -> Path:
    """Return the folder of a workspace, or of the configs' default one if it is None.

    For a URL of object storage, it is the folder of the local cache.
    """
    from tasks.config.machine import MachineConfig

    return (MachineConfig() if workspace is None else MachineConfig(workspace=str(workspace))).folder


WorkspaceOption = Annotated[
    Path,
    typer.Option(
        "--workspace",
        envvar="ATTEND_WORKSPACE",
        parser=workspace_folder,
        metavar="FOLDER",
        help="folder or URL of the workspace",
    ),
]


RuntimeOption = Annotated[
    Runtime | None,
    typer.Option(help="what the model runs on; default: the first installed of the runtimes it was registered for"),
]

ConfigWorkspace = Annotated[
    str | None,
    typer.Option("--workspace", metavar="FOLDER", help="folder or URL of the workspace, instead of machine.workspace"),
]


def with_workspace(overrides: Sequence[str] | None, workspace: str | Path | None) -> list[str]:
    """Return overrides of a config, with its workspace if one is given."""
    setting = [] if workspace is None else [f"machine.workspace={json.dumps(str(workspace))}"]
    return [*(overrides or []), *setting]


def program() -> str:
    """Return the command that runs this program: `attend`, or its path if it is not on the PATH."""
    if shutil.which("attend") is not None:
        return "attend"
    return short(Path(sys.executable).with_name("attend"))


def short(path: Path) -> str:
    """Return a path relative to the current folder if it is below it, otherwise the path unchanged."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def again(command: str, preset: str, overrides: Sequence[str] | None) -> str:
    """Return the command line of another command with the same config."""
    return shlex.join([program(), command, preset, *(overrides or [])])


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
