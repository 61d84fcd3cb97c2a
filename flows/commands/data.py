"""`attend data`: the formats of data sets, grids that others made, and pictures that could not be read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import ConfigWorkspace, Json, Overrides, Preset, print_json, with_workspace
from tasks.common.errors import AttendError

app = typer.Typer(help="Data sets: their formats, imported grids, unreadable pictures.", no_args_is_help=True)


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
    with exclusive_session(Workspace(settings.workspace), "retry"):
        before, after = retry_failed(settings)
    typer.echo(f"{before - after:,} of {before:,} pictures that could not be read can be read now")


@app.command("import")
def import_(
    grids: Annotated[Path, typer.Argument(metavar="GRIDS", help=".npy, .npz or HDF5 file with one 4-D array of grids")],
    preset: Preset,
    overrides: Overrides = None,
    ids: Annotated[
        Path | None, typer.Option(help="file with the ids of the grids: .npy, .json or text with one id a line")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="axis order, nchw or nhwc, where the array's shape leaves it open")
    ] = None,
    workspace: ConfigWorkspace = None,
) -> None:
    """Import grids that another program extracted; their ids name pictures of a config whose backbone is `imported`."""
    from flows.commands.import_grids import import_grids
    from flows.configs import load
    from tasks.pipeline.sessions import session
    from tasks.pipeline.workspace import Workspace

    if layout not in (None, "nchw", "nhwc"):
        raise AttendError(f"--layout: must be nchw or nhwc, not {layout}")
    settings = load(preset, with_workspace(overrides, workspace))
    Workspace(settings.workspace).prepare()
    with session(Workspace(settings.workspace), f"import of {grids.name}"):
        count = import_grids(settings, grids, ids, layout)  # type: ignore[arg-type]
    typer.echo(f"{count:,} grids of {grids.name} are in the cache as {settings.grids.weights}")
