"""`attend`: the command line. Heavy imports are inside the commands, so that help answers at once."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tasks.errors import AttendError, is_disk_full

if TYPE_CHECKING:
    from tasks.config import Config
    from tasks.housekeeping import Item
    from tasks.stages import Status

app = typer.Typer(
    name="attend",
    help="From photographs and captions to a registered captioner: every picture's grid is extracted once, "
    "attention decoders train on the cached grids, and the model is registered in MLflow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
cache_app = typer.Typer(help="The grid cache: what is in it, and whether it is sound.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

Preset = Annotated[str, typer.Argument(metavar="PRESET_OR_YAML", help="a preset's name or a YAML file")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[SECTION.FIELD=VALUE]...", help="settings laid over it")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
Until = Annotated[str, typer.Option(help="the last stage to run")]
Verify = Annotated[bool, typer.Option("--verify", help="read every file and check its digest, not only its size")]
WorkspaceOption = Annotated[
    Path, typer.Option("--workspace", envvar="ATTEND_WORKSPACE", help="the folder that `attend run` works in")
]
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
    from tasks.config import load
    from tasks.stages import plan
    from tasks.stages import verify as read_all

    config = load(preset, overrides or [])
    if verify:
        read_all(config, until)
    before = _run(config, until, quiet=as_json)
    if as_json:
        after = plan(config, until)
        _print_json([{**_as_json(now), "ran": not was.fresh} for was, now in zip(before, after, strict=True)])


@app.command()
def status(preset: Preset, overrides: Overrides = None, verify: Verify = False, as_json: Json = False) -> None:
    """Say what `attend run` would do, and why, without running anything."""
    from tasks.config import load
    from tasks.stages import plan
    from tasks.stages import verify as read_all

    config = load(preset, overrides or [])
    statuses = read_all(config) if verify else plan(config)
    if as_json:
        _print_json([_as_json(item) for item in statuses])
    else:
        _print_plan(statuses)


@app.command()
def demo(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Generate pictures, train a captioner on them, register it, and show what it says. Minutes, offline."""
    from flows.demo import show
    from tasks.config import load

    config = load("demo", [f"machine.workspace={json.dumps(str(workspace))}"])
    _run(config, "register")
    show(config)


@app.command()
def caption(
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE...", help="pictures, or folders of them")],
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    beam: Annotated[int | None, typer.Option(min=1, max=32, help="beam width; the model's own if not given")] = None,
    attention: Annotated[
        Path | None, typer.Option(help="write a PNG of where the model looked for each word (one picture)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="keep the captions of one folder in this file (JSON lines); again: new ones only"),
    ] = None,
    workspace: WorkspaceOption = Path("workspace"),
    as_json: Json = False,
) -> None:
    """Caption pictures with a registered model (the newest champion, unless one is named)."""
    from flows.caption import caption_files, caption_into

    if out is not None:
        if len(pictures) != 1 or attention is not None or as_json:
            raise AttendError("--out: goes with one folder, and with neither --attention nor --json")
        new, known, without = caption_into(out, pictures[0], model, beam, workspace.expanduser().absolute())
        typer.echo(f"{new:,} captioned, {known:,} were known, {without:,} without a caption: {out}")
        raise typer.Exit(1 if without else 0)
    failed = caption_files(pictures, model, beam, attention, workspace.expanduser().absolute(), as_json)
    if failed:
        raise typer.Exit(1)


@app.command()
def evaluate(
    preset: Preset,
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="models:/NAME@ALIAS or models:/NAME/VERSION")] = None,
    as_json: Json = False,
) -> None:
    """Score a registered model on a config's held-out pictures, as they are today (its champion, if none is named)."""
    from tasks.config import load
    from tasks.rescoring import evaluate_registered

    told = evaluate_registered(load(preset, overrides or []), model)
    if as_json:
        _print_json(told)
        return
    for name, value in told["scores"].items():
        typer.echo(f"{name:<10} {value:.2f}")
    typer.echo(f"{told['model']}: {told['pictures']:,} pictures; {told['signature']}")


@cache_app.command("list")
def cache_list(workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """The stores of grids: backbone, pictures, bytes."""
    from tasks.grid_cache import bytes_in, stores
    from tasks.ledger import Workspace

    rows = []
    for store in stores(Workspace(workspace.expanduser().absolute()).grids):
        shards = store.shards()
        pictures = len({digest for shard in shards for digest in shard.digests})
        size = {"pictures": pictures, "shards": len(shards), "bytes": bytes_in(store.folder)}
        rows.append({"store": store.folder.name, **store.identity.__dict__, **size})
    if as_json:
        _print_json(rows)
    elif not rows:
        typer.echo(f"no grids in {workspace}")
    for row in [] if as_json else rows:
        typer.echo(
            f"{row['store']}  {row['backbone']} {row['image_size']} px, weights {str(row['weights'])[:24]}: "
            f"{row['pictures']:,} pictures in {row['shards']} shards, {row['bytes'] / 2**20:,.1f} MiB"
        )


@cache_app.command("usage")
def cache_usage(workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """What takes how much room, and who needs it."""
    from tasks.grid_cache import bytes_in
    from tasks.housekeeping import usage
    from tasks.ledger import Workspace

    place = Workspace(workspace.expanduser().absolute())
    items = usage(place)
    others = {name: bytes_in(place.root / name) for name in ("mlartifacts", "prefect") if (place.root / name).exists()}
    if as_json:
        _print_json([_item_as_json(item) for item in items])
        return
    _print_items(items, place.root)
    for name, size in others.items():
        typer.echo(f"{_mib(size)}  {name}")
    free = sum(item.size for item in items if not item.needed_by)
    typer.echo(f"{_mib(sum(item.size for item in items) + sum(others.values()))}  in all; nobody needs {_mib(free)}")


@cache_app.command("prune")
def cache_prune(
    workspace: WorkspaceOption = Path("workspace"),
    forget: Annotated[list[str] | None, typer.Option(help="need no more what the run of this name made")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="remove it; without this it is only listed")] = False,
) -> None:
    """List what no run and no registered model needs, and remove it with --yes."""
    from tasks import housekeeping
    from tasks.ledger import Workspace
    from tasks.sessions import alone

    place = Workspace(workspace.expanduser().absolute())
    without = forget or []
    with alone(place, "prune"):
        items = [item for item in housekeeping.usage(place, without) if not item.needed_by]
        if yes:
            housekeeping.prune(place, items, without)
    _print_items(items, place.root)
    told = "removed" if yes else "would be removed: add --yes"
    typer.echo(f"{len(items)} items, {_mib(sum(item.size for item in items)).strip()} {told}")


@cache_app.command("compact")
def cache_compact(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Rewrite shards without the grids that nobody needs any more."""
    from tasks.config import MachineConfig
    from tasks.housekeeping import compact
    from tasks.ledger import Workspace
    from tasks.sessions import alone

    place = Workspace(workspace.expanduser().absolute())
    with alone(place, "compact"):
        before, after = compact(place, MachineConfig().shard_rows)
    typer.echo(f"{before} shards before, {after} after")


@cache_app.command("verify")
def cache_verify(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Read every shard and check it against its digest; a damaged one is set aside, and the exit code is 1."""
    from tasks.grid_cache import set_aside, stores
    from tasks.ledger import Workspace

    found: list[str] = []
    checked = 0
    for store in stores(Workspace(workspace.expanduser().absolute()).grids):
        for shard in store.shards():
            checked += 1
            damage = shard.damage(verify=True)
            if damage is not None:
                set_aside(shard.path.with_suffix(".parquet"))
                found.append(f"{damage}: set aside; `attend run` extracts its pictures again")
    for line in found:
        typer.echo(line, err=True)
    typer.echo(f"{checked - len(found)} of {checked} shards are sound")
    if found:
        raise typer.Exit(1)


@cache_app.command("import")
def cache_import(
    grids: Annotated[Path, typer.Argument(help=".npy, .npz or HDF5 file with one 4-D array of grids")],
    config: Annotated[str, typer.Argument(help="a preset or YAML file with grids.backbone=imported")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.field=value")] = None,
    ids: Annotated[Path | None, typer.Option(help="ids of the grids: .npy, .json or a line each")] = None,
    layout: Annotated[str | None, typer.Option(help="nchw or nhwc, where the shape does not tell")] = None,
) -> None:
    """Take grids that others extracted; their ids name pictures of the config's data set."""
    from tasks.config import load
    from tasks.grid_import import import_grids
    from tasks.ledger import Workspace
    from tasks.sessions import session

    if layout not in (None, "nchw", "nhwc"):
        raise AttendError(f"--layout: {layout}: is nchw or nhwc")
    found = load(config, overrides or [])
    Workspace(found.workspace).prepare()
    with session(Workspace(found.workspace), f"import of {grids.name}"):
        count = import_grids(found, grids, ids, layout)  # type: ignore[arg-type]
    typer.echo(f"{count:,} grids of {grids.name} are in the cache as {found.grids.weights}")


@app.command()
def datasets(as_json: Json = False) -> None:
    """The data set formats that can be read, and the settings of each."""
    from tasks.datasets import ADAPTERS

    if as_json:
        _print_json({name: kind.model_json_schema()["properties"] for name, kind in ADAPTERS.items()})
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

    from tasks.config import nearest
    from tasks.config import presets as known

    files = known()
    if name is not None and name not in files:
        raise AttendError(f"{name}: no such preset{nearest(name, files)}")
    told = {preset: yaml.safe_load(path.read_text(encoding="utf-8")) for preset, path in files.items()}
    if as_json:
        _print_json(told if name is None else told[name])
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
    from flows.service import up as start

    found = start(project.expanduser().absolute(), workspace.expanduser().absolute(), port, mlflow_port)
    typer.echo(f"Prefect: {found.prefect}")
    if found.mlflow is not None:
        typer.echo(f"MLflow:  {found.mlflow}")
    typer.echo("stop it with `attend down`; what is scheduled: PREFECT_API_URL=" + found.api + " prefect deployment ls")


@app.command()
def down(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Stop what `attend up` started."""
    from flows.service import down as stop

    stop(workspace.expanduser().absolute())
    typer.echo("stopped")


@app.command()
def ui(
    workspace: WorkspaceOption = Path("workspace"), port: Annotated[int, typer.Option(min=1, max=65535)] = 5000
) -> None:
    """MLflow's UI on the store that `attend run` logs to."""
    from tasks.tracking import mlflow_ui

    mlflow_ui(workspace.expanduser().absolute(), port)


def _run(config: Config, until: str, quiet: bool = False) -> list[Status]:
    """Show the plan and carry it out; the states before."""
    from flows.local import look, run
    from tasks.stages import artifacts, saved, upstream_of

    statuses = look(config, until)
    if not quiet:
        _print_plan(statuses)
    if not all(status.fresh for status in statuses):
        try:
            run(config, until, quiet)
        except KeyboardInterrupt:  # caught here: Typer would end in its own, silent way
            _fail("stopped; run the same command again to go on where it stood", 130)
    elif not quiet:
        typer.echo("nothing to do: every stage is fresh")
    if not quiet:
        fresh = all(status.fresh for status in statuses)
        made = upstream_of(statuses) if fresh else artifacts(config, until)
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


def _print_items(items: list[Item], root: Path) -> None:
    """A line each; the shards of a store that the same people need in one."""
    lines: dict[tuple[Path, str, tuple[str, ...]], list[Item]] = {}
    for item in items:
        place = item.path.parent if item.path.suffix == ".h5" else item.path
        lines.setdefault((place.relative_to(root), item.what, item.needed_by), []).append(item)
    for (place, what, needed_by), those in lines.items():
        shards = f", {len(those)} shards" if those[0].path.suffix == ".h5" else ""
        unneeded = sum(item.unneeded for item in those)
        rest = f" but for {unneeded:,} grids (see `attend cache compact`)" if unneeded else ""
        needed = f"needed by {', '.join(needed_by)}{rest}" if needed_by else "nobody needs it"
        typer.echo(f"{_mib(sum(item.size for item in those))}  {place}  {what}{shards}; {needed}")


def _item_as_json(item: Item) -> dict[str, Any]:
    return {"what": item.what, "path": str(item.path), "bytes": item.size, "needed_by": list(item.needed_by)}


def _mib(size: int) -> str:
    return f"{size / 2**20:10,.1f} MiB"


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


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
        if type(error).__module__.startswith("mlflow."):
            _fail(f"MLflow: {error}")
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            _fail(f"{error.filename}: {error.strerror}: give another place or the right to write there")
        raise


def _fail(message: str, code: int = 1) -> None:
    print(f"attend: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
