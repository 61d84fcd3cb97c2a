"""`attend compare`, `promote` and `rollback`: registered versions beside each other, and who is champion."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import Json, WorkspaceOption, print_json
from tasks.common.errors import AttendError

if TYPE_CHECKING:
    from tasks.config.schema import Config

_Address = Annotated[str, typer.Argument(help="models:/NAME/VERSION or models:/NAME@ALIAS")]
_On = Annotated[
    str | None, typer.Option(metavar="CONFIG", help="score on this config's held-out pictures, as they are")
]


def compare(
    first: _Address,
    second: _Address,
    on: _On = None,
    captions: Annotated[int, typer.Option(min=0, help="captions shown, of those that differ")] = 10,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """Two registered versions on the same pictures: scores, intervals, captions side by side."""
    from flows.registered.compare import compare_versions

    found = compare_versions(workspace.expanduser().absolute(), first, second, _config(on, workspace))
    differ = {digest: pair for digest, pair in found.captions.items() if pair[0].caption != pair[1].caption}
    if as_json:
        shown = [
            {"digest": digest, "first": " ".join(old.caption), "second": " ".join(new.caption)}
            for digest, (old, new) in found.captions.items()
        ]
        print_json({"scores": [vars(item) for item in found.scores], "captions": shown})
        return
    typer.echo(f"{'':<12}{'first':>8}{'second':>8}  difference, 95 % interval    second is better in")
    for item in found.scores:
        low, high = item.interval
        difference = f"{item.second - item.first:+.2f}  ({low:+.2f} to {high:+.2f})"
        typer.echo(f"{item.score:<12}{item.first:>8.2f}{item.second:>8.2f}  {difference:<27}  {item.better:.1%}")
    typer.echo(f"{len(found.captions):,} pictures; {len(differ):,} captions differ")
    for digest, (old, new) in list(differ.items())[:captions]:
        typer.echo(f"\n{digest[:12]}  a person wrote: {' '.join(old.references[0])}")
        typer.echo(f"  first:  {' '.join(old.caption)}\n  second: {' '.join(new.caption)}")


def promote(
    version: _Address,
    score: Annotated[str | None, typer.Option(help="by which they are compared; bleu4, or CONFIG's promote_on")] = None,
    certainty: Annotated[
        float | None, typer.Option(min=0.5, max=0.9999, help="share of resamples in which it must be better; 0.95")
    ] = None,
    on: _On = None,
    force: Annotated[bool, typer.Option("--force", help="whatever it scores")] = False,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Make a version champion, if it beats the champion beyond a paired bootstrap's doubt."""
    from flows.registered.compare import crown_version, promote_version

    place = workspace.expanduser().absolute()
    if force:
        if score is not None or certainty is not None or on is not None:
            raise AttendError("--force: asks for no comparison: leave out --score, --certainty and --on")
        typer.echo(crown_version(place, version))
        return
    config = _config(on, workspace)
    decision = promote_version(
        place,
        version,
        score or (config.registry.promote_on if config else "bleu4"),
        certainty or (config.registry.certainty if config else 0.95),
        config,
    )
    if not decision.promoted:
        raise AttendError(f"not promoted: {decision.why} (--force promotes it all the same)")
    typer.echo(decision.why)


def rollback(
    model: Annotated[str, typer.Argument(metavar="NAME", help="a registered model")],
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Make the champion before this one champion again; no schedule brings the one rolled back again."""
    from flows.registered.compare import roll_back

    name = model.removeprefix("models:/").partition("@")[0]
    if "/" in name:
        raise AttendError(f"{model}: a rollback is of a model, to the champion before: give its name alone")
    typer.echo(roll_back(workspace.expanduser().absolute(), name))


def _config(on: str | None, workspace: Path) -> Config | None:
    import json

    from tasks.config.schema import load

    return load(on, [f"machine.workspace={json.dumps(str(workspace))}"]) if on is not None else None
