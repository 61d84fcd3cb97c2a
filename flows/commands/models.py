"""`attend models`: registered versions, their scores and reports, and which of them is champion."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import (
    ConfigWorkspace,
    Json,
    Overrides,
    Preset,
    WorkspaceOption,
    print_json,
    whole_number,
    with_workspace,
)
from tasks.common.errors import AttendError

if TYPE_CHECKING:
    from tasks.config.schema import Config

_SHOWN = ("bleu4", "meteor", "rouge_l", "cider", "truth")
_ADDRESS = "models:/NAME/VERSION or models:/NAME@ALIAS"
_Address = Annotated[str, typer.Argument(metavar="VERSION", help=_ADDRESS)]
_On = Annotated[
    str | None,
    typer.Option(metavar="CONFIG", help="score on the held-out pictures of this preset or YAML file, as they are now"),
]


app = typer.Typer(help="Registered models: compare versions, choose the champion.", no_args_is_help=True)


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="only the versions of this model")] = None,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """List the registered versions with their scores, the champions marked."""
    from tasks.mlflow_store.catalogue import all_versions
    from tasks.mlflow_store.versions import REVIEWED

    versions = all_versions(workspace.expanduser().absolute(), name)
    if as_json:
        print_json([vars(version) for version in versions])
        return
    if not versions:
        typer.echo("no model is registered yet: run `attend run`")
    for version in versions:
        shown = [f"{score} {version.scores[score]:.1f}" for score in _SHOWN if score in version.scores]
        shown += [version.tags[REVIEWED]] if REVIEWED in version.tags else []
        typer.echo(f"{version.address:<32} {', '.join(version.aliases):<20} {version.created}  {'  '.join(shown)}")


@app.command()
def show(version: _Address, workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """Show a version: its model card, its scores, and what it was made from."""
    from tasks.mlflow_store.catalogue import one_version

    found = one_version(workspace.expanduser().absolute(), version)
    if as_json:
        print_json(vars(found))
        return
    typer.echo(f"{found.address}  {', '.join(found.aliases)}  {found.created}\n\n{found.card}")


@app.command()
def report(
    version: _Address,
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("report.html"),
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Write the report of a version's evaluation, an HTML page that needs no network, from MLflow."""
    from tasks.mlflow_store.catalogue import write_version_report

    write_version_report(workspace.expanduser().absolute(), version, out)
    typer.echo(f"{out}: the report of {version}")


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="FIRST", help=_ADDRESS)],
    second: Annotated[str, typer.Argument(metavar="SECOND", help=_ADDRESS)],
    overrides: Overrides = None,
    on: _On = None,
    captions: Annotated[int, typer.Option(help="how many of the differing captions to show", **whole_number(0))] = 10,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """Compare two registered versions on the same pictures: scores, intervals, and captions side by side."""
    from flows.registered.compare import compare_versions

    comparison = compare_versions(workspace.expanduser().absolute(), first, second, _config(on, overrides, workspace))
    differ = {digest: pair for digest, pair in comparison.captions.items() if pair[0].caption != pair[1].caption}
    if as_json:
        caption_pairs = [
            {"digest": digest, "first": " ".join(old.caption), "second": " ".join(new.caption)}
            for digest, (old, new) in comparison.captions.items()
        ]
        print_json({"scores": [vars(item) for item in comparison.scores], "captions": caption_pairs})
        return
    typer.echo(f"{'':<12}{'first':>8}{'second':>8}  difference, 95 % interval    second is better in")
    for item in comparison.scores:
        low, high = item.interval
        difference = f"{item.second - item.first:+.2f}  ({low:+.2f} to {high:+.2f})"
        typer.echo(f"{item.score:<12}{item.first:>8.2f}{item.second:>8.2f}  {difference:<27}  {item.better:.1%}")
    typer.echo(f"{len(comparison.captions):,} pictures; {len(differ):,} captions differ")
    for digest, (old, new) in list(differ.items())[:captions]:
        typer.echo(f"\n{digest[:12]}  a person wrote: {' '.join(old.references[0])}")
        typer.echo(f"  first:  {' '.join(old.caption)}\n  second: {' '.join(new.caption)}")


@app.command()
def promote(
    version: _Address,
    overrides: Overrides = None,
    score: Annotated[
        str | None, typer.Option(help="the score to compare; by default CONFIG's registry.promote_on, or bleu4")
    ] = None,
    certainty: Annotated[
        float | None,
        typer.Option(
            min=0.5,
            max=0.9999,
            help="share of bootstrap resamples in which it must win; by default CONFIG's registry.certainty, or 0.95",
        ),
    ] = None,
    on: _On = None,
    force: Annotated[
        bool, typer.Option("--force", help="promote it without a comparison, also one that a gate refused")
    ] = False,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Make a version the champion if the rule of docs/champions.md says so, or --force does."""
    from flows.registered.compare import force_champion, promote_version
    from tasks.config.stages import RegistryConfig

    folder = workspace.expanduser().absolute()
    if force:
        if score is not None or certainty is not None or on is not None:
            raise AttendError("--force: promotes without a comparison: leave out --score, --certainty and --on")
        typer.echo(force_champion(folder, version))
        return
    config = _config(on, overrides, workspace)
    registry = config.registry if config is not None else RegistryConfig(model="any")
    changes = {"promote_on": score or registry.promote_on, "certainty": certainty or registry.certainty}
    decision = promote_version(folder, version, registry.model_copy(update=changes), config)
    if decision.alias != "champion":
        raise AttendError(f"not promoted: {decision.why} (--force promotes it anyway)")
    typer.echo(decision.why)


@app.command()
def use(
    model: Annotated[
        str | None, typer.Argument(metavar="NAME", help="name of a registered model; without it: the one promoted last")
    ] = None,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Fix whose champion `caption` and `serve` use where no --model is given."""
    from tasks.mlflow_store.versions import fix_model

    fix_model(workspace.expanduser().absolute(), model)
    typer.echo(f"in use: models:/{model}@champion" if model else "in use: the champion that was promoted last")


@app.command()
def evaluate(
    preset: Preset,
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    results: Annotated[
        Path | None, typer.Option(help="write results.json and annotations.json, in COCO's formats, into this folder")
    ] = None,
    workspace: ConfigWorkspace = None,
    as_json: Json = False,
) -> None:
    """Score a registered model (by default the config's champion) on the config's held-out pictures as they are now."""
    from flows.configs import load
    from flows.registered.evaluate import evaluate_registered

    evaluation = evaluate_registered(load(preset, with_workspace(overrides, workspace)), model, results)
    if as_json:
        print_json({"model": evaluation.model, "run_id": evaluation.run_id, **evaluation.scores})
        return
    record = evaluation.scores
    for name, value in record["scores"].items():
        low, high = record["intervals"][name]
        typer.echo(f"{name:<12} {value:.2f}  ({low:.2f} to {high:.2f})")
    typer.echo(f"{evaluation.model}: {record['pictures']:,} pictures; {record['signature']}")


@app.command()
def rollback(
    model: Annotated[str, typer.Argument(metavar="NAME", help="name of a registered model")],
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Make the previous champion the champion again; scheduled runs will not promote the withdrawn version again."""
    from flows.registered.compare import roll_back

    name = model.removeprefix("models:/").partition("@")[0]
    if "/" in name:
        raise AttendError(
            f"{model}: a rollback restores the champion before this one: give the model's name without a version"
        )
    typer.echo(roll_back(workspace.expanduser().absolute(), name))


def _config(on: str | None, overrides: Overrides, workspace: Path) -> Config | None:
    """Return the config that --on names, with `workspace` as its workspace; None where --on is not given."""
    from flows.configs import load

    if on is None and overrides:
        raise AttendError(f"{overrides[0]}: settings belong to a config: give it with --on")
    return load(on, with_workspace(overrides, workspace)) if on is not None else None
