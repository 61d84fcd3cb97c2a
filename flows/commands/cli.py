"""`attend`: the command line. Heavy imports are inside the commands, so that help answers at once."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands import cache as cli_cache
from flows.commands import models as cli_models
from flows.commands import score as cli_score
from flows.commands.options import Json, Overrides, Preset, Until, Verify, WorkspaceOption, print_json
from tasks.common.errors import AttendError, is_disk_full

if TYPE_CHECKING:
    from tasks.config.schema import Config
    from tasks.pipeline.plan import Status

app = typer.Typer(
    name="attend",
    help="From photographs and captions to a registered captioner: every picture's grid is extracted once, "
    "attention decoders train on the cached grids, and the model is registered in MLflow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(cli_cache.app, name="cache")
for command in (cli_models.compare, cli_models.promote, cli_models.rollback, cli_score.score):
    app.command()(command)

_STATE_COLOURS = {"fresh": "green", "stale": "yellow", "missing": "yellow", "damaged": "red", "interrupted": "magenta"}


@app.command()
def run(
    preset: Preset,
    overrides: Overrides = None,
    until: Until = "register",
    verify: Verify = False,
    as_json: Json = False,
) -> None:
    """Bring a captioner up to date: run what is stale, and nothing else."""
    from flows.pipeline import pipeline_of
    from tasks.config.schema import load
    from tasks.pipeline.plan import plan, up_to
    from tasks.pipeline.plan import verify as read_all

    config = load(preset, overrides or [])
    pipeline = up_to(pipeline_of(config), until)
    with _led(config.machine.device) as leads:
        if not leads:
            return
        if verify:
            read_all(pipeline)
        before = _run(config, until, quiet=as_json)
    if as_json:
        after = plan(pipeline)
        print_json([{**_as_json(now), "ran": not was.fresh} for was, now in zip(before, after, strict=True)])


@app.command()
def status(preset: Preset, overrides: Overrides = None, verify: Verify = False, as_json: Json = False) -> None:
    """Say what `attend run` would do, and why, without running anything."""
    from flows.pipeline import pipeline_of
    from tasks.config.schema import load
    from tasks.pipeline.plan import plan
    from tasks.pipeline.plan import verify as read_all

    config = load(preset, overrides or [])
    pipeline = pipeline_of(config)
    statuses = read_all(pipeline) if verify else plan(pipeline)
    if as_json:
        print_json([_as_json(item) for item in statuses])
    else:
        _print_plan(statuses)


@app.command()
def demo(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Generate pictures, train a captioner on them, register it, and show what it says. Minutes, offline."""
    from flows.commands.demo import show
    from tasks.config.schema import load

    config = load("demo", [f"machine.workspace={json.dumps(str(workspace))}"])
    _run(config, "register")
    show(config)


@app.command()
def caption(
    pictures: Annotated[
        list[str], typer.Argument(metavar="PICTURE...", help="pictures, folders, patterns, or a Parquet file of them")
    ],
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    beam: Annotated[int | None, typer.Option(min=1, max=32, help="beam width; the model's own if not given")] = None,
    attention: Annotated[
        Path | None, typer.Option(help="write a PNG of where the model looked for each word (one picture)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="write the captions into this .jsonl or .parquet file; again: captions new pictures only"),
    ] = None,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """Caption pictures with a registered model (the newest champion, unless one is named)."""
    from flows.registered.caption import caption_files, caption_into

    if out is not None:
        if attention is not None or as_json:
            raise AttendError("--out: goes with neither --attention nor --json")
        kept = caption_into(out, pictures, model, beam, workspace.expanduser().absolute())
        typer.echo(f"{kept}: {out}")
        raise typer.Exit(1 if kept.without else 0)
    failed = caption_files(pictures, model, beam, attention, workspace.expanduser().absolute(), as_json)
    if failed:
        raise typer.Exit(1)


@app.command()
def serve(
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; others than this machine's own are open to all")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    batch: Annotated[int, typer.Option(min=1, max=32, help="pictures of waiting requests captioned at once")] = 32,
    refresh: Annotated[float, typer.Option(help="seconds between two looks for a new champion")] = 15,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Serve a registered model over HTTP, with a page to try it on (the newest champion, unless one is named)."""
    if not 1 <= refresh <= 86_400:  # not a number is neither
        raise AttendError(f"--refresh: is {refresh}: give 1 to 86,400 seconds")
    from flows.serving.serve import serve as run_server

    run_server(model, workspace.expanduser().absolute(), host, port, batch, refresh)


@app.command()
def evaluate(
    preset: Preset,
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    results: Annotated[
        Path | None, typer.Option(help="write results.json and annotations.json of COCO's formats into this folder")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a registered model on a config's held-out pictures, as they are today (its champion, if none is named)."""
    from flows.registered.evaluate import evaluate_registered
    from tasks.config.schema import load

    told = evaluate_registered(load(preset, overrides or []), model, results)
    if as_json:
        print_json(told)
        return
    for name, value in told["scores"].items():
        low, high = told["intervals"][name]
        typer.echo(f"{name:<12} {value:.2f}  ({low:.2f} to {high:.2f})")
    typer.echo(f"{told['model']}: {told['pictures']:,} pictures; {told['signature']}")


@app.command()
def datasets(as_json: Json = False) -> None:
    """The data set formats that can be read, and the settings of each."""
    from tasks.datasets import ADAPTERS

    if as_json:
        print_json({name: kind.model_json_schema()["properties"] for name, kind in ADAPTERS.items()})
        return
    for name, kind in ADAPTERS.items():
        fields = [field for field in kind.model_fields if field != "adapter"]
        typer.echo(f"{name:<10} {(kind.__doc__ or '').strip().splitlines()[0]}")
        typer.echo(f"{'':<10} settings: {', '.join(f'data.{field}' for field in fields)}")


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="show this preset's whole file")] = None, as_json: Json = False
) -> None:
    """The known captioners, each a YAML file to start from."""
    import yaml

    from tasks.common.errors import nearest
    from tasks.config.presets import presets as known

    files = known()
    if name is not None and name not in files:
        raise AttendError(f"{name}: no such preset{nearest(name, files)}")
    told = {preset: yaml.safe_load(path.read_text(encoding="utf-8")) for preset, path in files.items()}
    if as_json:
        print_json(told if name is None else told[name])
    elif name is not None:
        typer.echo(files[name].read_text(encoding="utf-8"), nl=False)
    else:
        for preset, values in told.items():
            typer.echo(f"{preset:<24}{values.get('about', '')}\n{'':<24}[{values.get('source', '')}]")


@app.command()
def up(
    workspace: WorkspaceOption = Path("workspace"),
    project: Annotated[Path, typer.Option(help="the folder with prefect.yaml")] = Path(),
    port: Annotated[int, typer.Option(min=1, max=65535, help="of Prefect's server")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="of MLflow's pages")] = 5000,
) -> None:
    """Start Prefect's server, the deployments of prefect.yaml and a worker on this machine, in the background."""
    from flows.operations.service import up as start

    found = start(project.expanduser().absolute(), workspace.expanduser().absolute(), port, mlflow_port)
    typer.echo(f"Prefect: {found.prefect}")
    if found.mlflow is not None:
        typer.echo(f"MLflow:  {found.mlflow}")
    typer.echo("stop it with `attend down`; what is scheduled: PREFECT_API_URL=" + found.api + " prefect deployment ls")


@app.command()
def down(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Stop what `attend up` started."""
    from flows.operations.service import down as stop

    stop(workspace.expanduser().absolute())
    typer.echo("stopped")


@app.command()
def ui(
    workspace: WorkspaceOption = Path("workspace"), port: Annotated[int, typer.Option(min=1, max=65535)] = 5000
) -> None:
    """MLflow's UI on the store that `attend run` logs to."""
    from tasks.registry.tracking import mlflow_ui

    mlflow_ui(workspace.expanduser().absolute(), port)


@contextmanager
def _led(device: str) -> Iterator[bool]:
    """Whether this process runs the pipeline. One that torchrun started to follow has done its part by then."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    from tasks.pipeline import distributed as processes

    with processes.together(device) as leads:
        if not leads:
            processes.follow()
        yield leads
        if leads:
            processes.dismiss()


def _run(config: Config, until: str, quiet: bool = False) -> list[Status]:
    """Show the plan and carry it out; the states before."""
    from flows.operations.local_run import look, run
    from flows.pipeline import pipeline_of
    from tasks.pipeline.plan import artifacts, artifacts_of, by_kind, up_to
    from tasks.pipeline.run import saved

    statuses = look(config, until)
    if not quiet:
        _print_plan(statuses)
    if not all(status.fresh for status in statuses):
        from tasks.training.precision import computes_on  # loads torch, which the stages will need

        computes = computes_on(config, statuses)
        if computes is not None and not quiet:
            typer.echo(computes)
        try:
            run(config, until, quiet)
        except KeyboardInterrupt:  # caught here: Typer would end in its own, silent way
            _fail("stopped; run the same command again to go on where it stood", 130)
    elif not quiet:
        typer.echo("nothing to do: every stage is fresh")
    if not quiet:
        fresh = all(status.fresh for status in statuses)
        made = by_kind(artifacts_of(statuses)) if fresh else artifacts(up_to(pipeline_of(config), until))
        typer.echo(saved(statuses, made) or "up to date")
    return statuses


def _print_plan(statuses: list[Status]) -> None:
    width = max(len(item.stage.name) for item in statuses)
    for item in statuses:
        typer.secho(f"{item.state:<12}", fg=_STATE_COLOURS[item.state], nl=False)
        typer.echo(f"{item.stage.name:<{width}} {item.why[0] if item.why else ''}")
        for reason in item.why[1:]:
            typer.echo(f"{'':<{width + 13}}{reason}")


def _as_json(item: Status) -> dict[str, Any]:
    return {"stage": item.stage.name, "state": item.state, "why": item.why, "key": item.key}


def main() -> None:
    """Run `attend`: a person's mistake ends in one line and exit code 1, a bug in its traceback."""
    try:
        app()
    except AttendError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if is_disk_full(error):
            place = getattr(error, "filename", None) or "the workspace"
            _fail(f"{place}: the disk is full: make room and run again; what is done is kept")
        if type(error).__module__.startswith(("mlflow.", "prefect.")):
            _fail(_first_told(error) or f"{type(error).__module__.split('.')[0]}: {error}")
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            _fail(f"{error.filename}: {error.strerror}: give another place or the right to write there")
        raise


def _first_told(error: BaseException) -> str | None:
    """What a person was to be told when this error, of a store that keeps the records of runs, came over it."""
    while (before := error.__cause__ or error.__context__) is not None:
        if isinstance(before, AttendError):
            return str(before)
        error = before
    return None


def _fail(message: str, code: int = 1) -> None:
    print(f"attend: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
