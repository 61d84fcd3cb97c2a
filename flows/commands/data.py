"""`attend data`: the formats of data sets, and pictures that could not be read."""

from __future__ import annotations

import typer

from flows.commands.options import ConfigWorkspace, Json, Overrides, Preset, print_json, with_workspace
from tasks.common.errors import AttendError

app = typer.Typer(help="Data sets: their formats, and pictures that could not be read.", no_args_is_help=True)


@app.command()
def formats(as_json: Json = False) -> None:
    """List the data set formats that can be read, and the settings of each."""
    from tasks.datasets import ADAPTERS

    if as_json:
        print_json({name: kind.model_json_schema()["properties"] for name, kind in ADAPTERS.items()})
        return
    for name, kind in ADAPTERS.items():
        fields = [field for field in kind.model_fields if field != "adapter"]
        typer.echo(f"{name:<11} {(kind.__doc__ or '').strip().splitlines()[0]}")
        typer.echo(f"{'':<11} settings: {', '.join(f'data.{field}' for field in fields)}")


@app.command()
def retry(preset: Preset, overrides: Overrides = None, workspace: ConfigWorkspace = None) -> None:
    """Try the pictures again that could not be read; `attend run` then takes up those that can be read now."""
    from flows.commands.retry_pictures import retry_failed
    from flows.configs import load
    from tasks.pipeline.sessions import exclusive_session
    from tasks.pipeline.workspace import Workspace

    settings = load(preset, with_workspace(overrides, workspace))
    if not settings.workspace.is_dir():
        raise AttendError(f"{settings.workspace}: nothing has run yet: attend run {preset}")
    with exclusive_session(Workspace(settings.workspace), "retry"):
        before, after = retry_failed(settings)
    typer.echo(f"{before - after:,} of {before:,} pictures that could not be read can be read now")
