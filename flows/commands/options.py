"""Arguments and options that several commands have, and how they answer scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Preset = Annotated[str, typer.Argument(metavar="PRESET_OR_YAML", help="a preset's name or a YAML file")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[SECTION.FIELD=VALUE]...", help="settings laid over it")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
Until = Annotated[str, typer.Option(help="the last stage to run")]
Verify = Annotated[bool, typer.Option("--verify", help="read every file and check its digest, not only its size")]


def _folder(given: str) -> Path:
    """The folder of a workspace, in object storage that of its cache."""
    if "://" not in str(given):
        return Path(given)
    from tasks.config.schema import MachineConfig

    return MachineConfig(workspace=given).folder


WorkspaceOption = Annotated[
    Path,
    typer.Option(
        "--workspace",
        envvar="ATTEND_WORKSPACE",
        parser=_folder,
        metavar="FOLDER",
        help="the folder, or the URL, that `attend run` works in",
    ),
]


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
