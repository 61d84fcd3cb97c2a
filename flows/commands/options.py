"""Arguments and options that several commands share, and the printing of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Preset = Annotated[str, typer.Argument(metavar="PRESET_OR_YAML", help="name of a preset, or a YAML file")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SECTION.FIELD=VALUE]...", help="settings that replace those of the preset or file"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
Until = Annotated[str, typer.Option(help="the last stage to run")]
Verify = Annotated[bool, typer.Option("--verify", help="read every file and check its digest, not only its size")]


def _folder(value: str) -> Path:
    """Return a workspace's folder; for a URL of object storage, the folder of its local cache."""
    if "://" not in str(value):
        return Path(value)
    from tasks.config.machine import MachineConfig

    return MachineConfig(workspace=value).folder


WorkspaceOption = Annotated[
    Path,
    typer.Option(
        "--workspace",
        envvar="ATTEND_WORKSPACE",
        parser=_folder,
        metavar="FOLDER",
        help="folder or URL that `attend run` works in",
    ),
]


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
