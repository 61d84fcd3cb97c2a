"""`attend data`: the formats of data sets."""

from __future__ import annotations

import typer

from flows.commands.options import Json, print_json

app = typer.Typer(help="Data set formats.", no_args_is_help=True)


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
