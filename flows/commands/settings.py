"""`attend settings`: every setting of a config, with its type, default, bounds and meaning."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flows.commands.options import Json, print_json
from tasks.common.errors import AttendError, suggestion


def settings(
    section: Annotated[str | None, typer.Argument(metavar="SECTION", help="list only this section of a config")] = None,
    as_json: Json = False,
) -> None:
    """List every setting of a config: its type, default, bounds and meaning."""
    from tasks.config.reference import sections

    all_sections = sections()
    if section is not None and section not in all_sections:
        raise AttendError(f"{section}: no such section{suggestion(section, all_sections)}")
    chosen = {name: part for name, part in all_sections.items() if section in (None, name)}
    if as_json:
        print_json({name: asdict(part) for name, part in chosen.items()})
        return
    for name, part in chosen.items():
        typer.secho(f"{name}: {part.about}", bold=True)
        for one in part.settings:
            bounds = f", {one.bounds}" if one.bounds else ""
            default = "needed" if one.default is None else f"default {one.default}" if one.default else "not set"
            typer.echo(f"  {one.name}  ({one.type}{bounds}; {default})\n      {one.about}")
