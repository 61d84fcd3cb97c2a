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
from tasks.common.wording import counted

if TYPE_CHECKING:
    from tasks.config.schema import Config

_SHOWN = ("bleu4", "meteor", "rouge_l", "cider", "truth")
_ADDRESS = "models:/NAME/VERSION or models:/NAME@ALIAS"
_Address = Annotated[str, typer.Argument(metavar="VERSION", help=_ADDRESS)]
_On = Annotated[
    str | None,
    typer.Option(metavar="CONFIG", help="score on the current held-out pictures of this preset or YAML file"),
]


app = typer.Typer(help="Registered models: compare versions, and choose the champion.", no_args_is_help=True)


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="list only the versions of this model")] = None,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """List the registered versions with their aliases, such as champion, and scores."""
    from tasks.mlflow_store.catalogue import all_versions
    from tasks.mlflow_store.versions import REVIEWED

    versions = all_versions(workspace, name)
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
    """Show the model card of a version, with its data, training and scores."""
    from tasks.mlflow_store.catalogue import one_version

    entry = one_version(workspace, version)
    if as_json:
        print_json(vars(entry))
        return
    typer.echo(f"{entry.address}  {', '.join(entry.aliases)}  {entry.created}\n\n{entry.card}")


@app.command()
def report(
    version: _Address,
    out: Annotated[Path, typer.Option(help="file to write")] = Path("report.html"),
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Write the evaluation report of a version, from MLflow, as an HTML page that needs no network."""
    from tasks.mlflow_store.catalogue import write_version_report

    write_version_report(workspace, version, out)
    typer.echo(f"{out}: the report of {version}")


@app.command()
def compare(
    versions: Annotated[
        list[str], typer.Argument(metavar="VERSION...", help=f"two or more of {_ADDRESS}; then overrides for --on")
    ],
    on: _On = None,
    captions: Annotated[
        int, typer.Option(help="number of pictures whose captions are printed", **whole_number(0))
    ] = 10,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write an HTML page with photographs and attention maps; needs --on"),
    ] = None,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """Compare registered versions with the first one given, on the same pictures: scores, intervals and captions."""
    from flows.registered.compare import compare_versions

    addresses, settings = [item for item in versions if "=" not in item], [item for item in versions if "=" in item]
    config = _config(on, settings or None, workspace)
    page = None if page is None else page.expanduser().absolute()
    result = compare_versions(workspace, addresses, config, page)
    first, *others = result.names
    if as_json:
        scores = [
            {"version": name, "against_first": [vars(score) for score in item.scores]}
            for name, item in zip(others, result.against_first, strict=True)
        ]
        output = [
            {"digest": digest, "captions": [" ".join(one.caption) for one in items]}
            for digest, items in result.captions.items()
        ]
        print_json({"versions": result.names, "scores": scores, "captions": output})
        return
    width = max(map(len, result.names)) + 2
    typer.echo(f"in brackets: the 95 % interval of the difference from {first}")
    for scores_ in zip(*(item.scores for item in result.against_first), strict=True):
        typer.echo(f"{scores_[0].score}\n  {first:<{width}}{scores_[0].first:6.2f}")
        for name, score in zip(others, scores_, strict=True):
            low, high = score.interval
            gain = f"{score.second - score.first:+.2f}  ({low:+.2f} to {high:+.2f})"
            typer.echo(f"  {name:<{width}}{score.second:6.2f}  {gain}  better in {score.better:.1%} of resamples")
    differ = {
        digest: items for digest, items in result.captions.items() if len({" ".join(one.caption) for one in items}) > 1
    }
    typer.echo(f"{counted(len(result.captions), 'picture')}; the captions of {len(differ):,} differ")
    for digest, items in list(differ.items())[:captions]:
        typer.echo(f"\n{digest[:12]}  a person wrote: {' '.join(items[0].references[0])}")
        for name, one in zip(result.names, items, strict=True):
            typer.echo(f"  {name:<{width}}{' '.join(one.caption)}")
    if page is not None:
        typer.echo(f"page: {page}")


@app.command()
def promote(
    version: _Address,
    overrides: Overrides = None,
    score: Annotated[
        str | None, typer.Option(help="score to compare by; default: registry.promote_on of CONFIG, or bleu4")
    ] = None,
    certainty: Annotated[
        float | None,
        typer.Option(
            min=0.5,
            max=0.9999,
            help="share of bootstrap resamples in which it must score higher; default: registry.certainty of CONFIG, "
            "or 0.95",
        ),
    ] = None,
    on: _On = None,
    force: Annotated[
        bool, typer.Option("--force", help="promote it without a comparison, even if a gate refused it")
    ] = False,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Make a version the champion if the rule in docs/champions.md allows it, or with --force."""
    from flows.registered.compare import force_champion, promote_version
    from tasks.config.stages import RegistryConfig

    if force:
        if score is not None or certainty is not None or on is not None:
            raise AttendError("--force: promotes without a comparison: leave out --score, --certainty and --on")
        typer.echo(force_champion(workspace, version))
        return
    config = _config(on, overrides, workspace)
    registry = config.registry if config is not None else RegistryConfig(model="any")
    changes = {"promote_on": score or registry.promote_on, "certainty": certainty or registry.certainty}
    decision = promote_version(workspace, version, registry.model_copy(update=changes), config)
    if decision.alias != "champion":
        raise AttendError(f"not promoted: {decision.why} (--force promotes it anyway)")
    typer.echo(decision.why)


@app.command()
def use(
    model: Annotated[
        str | None, typer.Argument(metavar="NAME", help="model name; default: the one promoted last")
    ] = None,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Set the model whose champion `caption`, `serve` and `export` use by default (no NAME: the last promoted)."""
    from tasks.mlflow_store.versions import fix_model

    fix_model(workspace, model)
    typer.echo(f"in use: models:/{model}@champion" if model else "in use: the champion that was promoted last")


@app.command()
def evaluate(
    preset: Preset,
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    results: Annotated[
        Path | None, typer.Option(help="write results.json and annotations.json, in COCO's formats, to this folder")
    ] = None,
    workspace: ConfigWorkspace = None,
    as_json: Json = False,
) -> None:
    """Score a registered model (by default the config's champion) on the current held-out pictures of the config."""
    from flows.configs import load
    from flows.registered.evaluate import evaluate_registered

    for name in (override.partition("=")[0] for override in overrides or []):
        if name.startswith("evaluation.") and name.partition(".")[2] not in ("split", "metrics", "acceptable"):
            raise AttendError(f"{name}: a registered model has the search that it was registered with: leave it out")
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
    typer.echo(roll_back(workspace, name))


def _config(on: str | None, overrides: Overrides, workspace: Path) -> Config | None:
    """Return the config that --on names, with `workspace` as its workspace; None if --on is not given."""
    from flows.configs import load

    if on is None and overrides:
        raise AttendError(f"{overrides[0]}: settings belong to a config: give it with --on")
    return load(on, with_workspace(overrides, workspace)) if on is not None else None
