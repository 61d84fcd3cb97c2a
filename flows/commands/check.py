"""`attend check`: print everything that would stop or spoil a run."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import ConfigWorkspace, Json, Overrides, Preset, again, print_json, with_workspace
from tasks.common.wording import counted, counted_by_split, kind_of

if TYPE_CHECKING:
    from flows.preflight import Problem, Verdict

_SHOWN = 100  # kinds of findings printed
_EXAMPLES = 3  # findings printed per kind


def check(
    preset: Preset,
    overrides: Overrides = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=0, help="pictures to read completely, not only their headers; default: all up to 2,000, otherwise 300"
        ),
    ] = None,
    near_duplicates: Annotated[
        bool | None,
        typer.Option(
            "--near-duplicates/--no-near-duplicates",
            help="look for slightly changed copies of pictures; default: only up to 120,000 pictures and 4 GiB",
        ),
    ] = None,
    workspace: ConfigWorkspace = None,
    as_json: Json = False,
) -> None:
    """Find problems that would stop or spoil a run: in settings, pictures, captions, splits, weights and workspace."""
    from flows.preflight import verdict_of

    settings = with_workspace(overrides, workspace)
    verdict = verdict_of(preset, settings, sample, near_duplicates)
    if as_json:
        print_json(asdict(verdict))
    else:
        _print(verdict, preset, settings)
    if verdict.count("error"):
        raise typer.Exit(1)


def _print(verdict: Verdict, preset: str, overrides: list[str]) -> None:
    """Print the findings, errors first, and what was checked."""
    for kind, colour in (("error", "red"), ("warning", "yellow")):
        groups: dict[tuple[str, str], list[Problem]] = {}
        for finding in verdict.findings:
            if finding.kind == kind:
                groups.setdefault((finding.about, kind_of(finding.message)), []).append(finding)
        for findings in list(groups.values())[:_SHOWN]:
            for finding in findings[:_EXAMPLES]:
                typer.secho(f"{kind:<8}", fg=colour, nl=False)
                typer.echo(f"{finding.about}: {finding.message}" if not _names(finding) else finding.message)
            if len(findings) > _EXAMPLES:
                rest = f"listed in {verdict.listed}" if verdict.listed else "--json lists all"
                typer.echo(f"{'':<8}and {len(findings) - _EXAMPLES:,} more like these: {rest}")
        if len(groups) > _SHOWN:
            typer.echo(f"{'':<8}and {counted(len(groups) - _SHOWN, f'more kind of {kind}', f'more kinds of {kind}')}")
    sizes = counted_by_split(verdict.splits)
    typer.echo(
        f"{preset}: {counted(verdict.pictures, 'picture')}{f' ({sizes})' if sizes else ''}, "
        f"{counted(verdict.captions, 'caption')}: {counted(verdict.count('error'), 'error')}, "
        f"{counted(verdict.count('warning'), 'warning')} in {verdict.seconds:.1f} s"
    )
    if verdict.grid_bytes is not None:
        total = verdict.grid_bytes * verdict.pictures
        typer.echo(f"The grids take {verdict.grid_bytes / 1e3:,.0f} kB a picture, {total / 1e9:,.2f} GB in all.")
    if verdict.pixels < verdict.pictures:
        typer.echo(
            f"The headers of all pictures were read, and the pixels of {verdict.pixels:,} "
            f"(--sample {verdict.pictures} reads all)."
        )
    if verdict.compared is not None and verdict.compared < verdict.pictures:
        typer.echo("Near-duplicates were not looked for (--near-duplicates does, whatever the time).")
    if not verdict.count("error"):
        typer.echo(f"next: {again('run', preset, overrides)}")


def _names(finding: Problem) -> bool:
    """Return whether a message begins with the file or the setting that it is about."""
    first = finding.message.split(":", 1)[0]
    return os.sep in first or re.fullmatch(r"[a-z_]+(\.\w+)+(=\S*)?( .*)?", first) is not None
