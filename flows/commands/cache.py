"""`attend cache`: what is kept, what takes how much room, who needs it, and whether it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import Json, WorkspaceOption, print_json
from tasks.common.errors import AttendError

if TYPE_CHECKING:
    from flows.commands.housekeeping import Item
    from tasks.pipeline.workspace import Workspace

app = typer.Typer(help="The grid cache and the artifacts: what is kept, and whether it is sound.", no_args_is_help=True)


@app.command("list")
def cache_list(workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """The stores of grids: backbone, pictures, bytes."""
    from tasks.grids.store import bytes_in, stores

    rows = []
    for store in stores(_existing(workspace).grids):
        shards = store.shards()
        pictures = len({digest for shard in shards for digest in shard.digests})
        size = {"pictures": pictures, "shards": len(shards), "bytes": bytes_in(store.folder)}
        rows.append({"store": store.folder.name, **store.identity.told, **size})
    if as_json:
        print_json(rows)
    elif not rows:
        typer.echo(f"no grids in {workspace}")
    for row in [] if as_json else rows:
        typer.echo(
            f"{row['store']}  {row['backbone']} {row['image_size']} px, weights {str(row['weights'])[:24]}"
            f"{', ' + row['view'] if 'view' in row else ''}: "
            f"{row['pictures']:,} pictures in {row['shards']} shards, {row['bytes'] / 2**20:,.1f} MiB"
        )


@app.command("usage")
def cache_usage(workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """What takes how much room, and who needs it."""
    from flows.commands.housekeeping import usage
    from tasks.grids.store import bytes_in

    place = _existing(workspace)
    items = usage(place)
    others = {name: bytes_in(place.root / name) for name in ("mlartifacts", "prefect") if (place.root / name).exists()}
    if as_json:
        print_json([_item_as_json(item) for item in items])
        return
    _print_items(items, place.root)
    for name, size in others.items():
        typer.echo(f"{_mib(size)}  {name}")
    free = sum(item.size for item in items if not item.needed_by)
    typer.echo(
        f"{_mib(sum(item.size for item in items) + sum(others.values()))}  in all; nobody needs {_mib(free).strip()}"
    )


@app.command("prune")
def cache_prune(
    workspace: WorkspaceOption = Path("workspace"),
    forget: Annotated[list[str] | None, typer.Option(help="need no more what the run of this name made")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="remove it; without this it is only listed")] = False,
) -> None:
    """List what no run and no registered model needs, and remove it with --yes."""
    from flows.commands import housekeeping
    from tasks.pipeline.sessions import alone

    place = _existing(workspace)
    _check_own(place, "prune")
    without = forget or []
    with alone(place, "prune"):
        items = [item for item in housekeeping.usage(place, without) if not item.needed_by]
        if yes:
            housekeeping.prune(place, items, without)
    _print_items(items, place.root)
    told = "removed" if yes else "would be removed: add --yes"
    typer.echo(f"{len(items)} items, {_mib(sum(item.size for item in items)).strip()} {told}")


@app.command("compact")
def cache_compact(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Rewrite shards without the grids that nobody needs any more."""
    from flows.commands.housekeeping import compact
    from tasks.config.schema import MachineConfig
    from tasks.pipeline.sessions import alone

    place = _existing(workspace)
    _check_own(place, "compact")
    with alone(place, "compact"):
        before, after = compact(place, MachineConfig().shard_rows)
    typer.echo(f"{before} shards before, {after} after")


@app.command("verify")
def cache_verify(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Read every shard and check it against its digest; a damaged one is set aside, and the exit code is 1."""
    from tasks.grids.store import set_aside, stores

    found: list[str] = []
    checked = 0
    for store in stores(_existing(workspace).grids):
        for shard in store.shards():
            if store.remote is not None and not shard.path.exists():
                continue  # its digest is read when it is fetched
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


@app.command("import")
def cache_import(
    grids: Annotated[Path, typer.Argument(help=".npy, .npz or HDF5 file with one 4-D array of grids")],
    config: Annotated[str, typer.Argument(help="a preset or YAML file with grids.backbone=imported")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.field=value")] = None,
    ids: Annotated[Path | None, typer.Option(help="ids of the grids: .npy, .json or a line each")] = None,
    layout: Annotated[str | None, typer.Option(help="nchw or nhwc, where the shape does not tell")] = None,
) -> None:
    """Take grids that others extracted; their ids name pictures of the config's data set."""
    from flows.commands.import_grids import import_grids
    from tasks.config.schema import load
    from tasks.pipeline.sessions import session
    from tasks.pipeline.workspace import Workspace

    if layout not in (None, "nchw", "nhwc"):
        raise AttendError(f"--layout: {layout}: is nchw or nhwc")
    found = load(config, overrides or [])
    Workspace(found.workspace).prepare()
    with session(Workspace(found.workspace), f"import of {grids.name}"):
        count = import_grids(found, grids, ids, layout)  # type: ignore[arg-type]
    typer.echo(f"{count:,} grids of {grids.name} are in the cache as {found.grids.weights}")


def _existing(workspace: Path) -> Workspace:
    """The workspace of a folder; AttendError where none is there."""
    from tasks.pipeline.workspace import Workspace

    found = Workspace(workspace.expanduser().absolute())
    if not found.grids.is_dir():
        raise AttendError(f"{found.root}: is no workspace: give --workspace FOLDER, or run `attend run` first")
    return found


def _check_own(place: Workspace, what: str) -> None:
    """AttendError where others may need what no run here does."""
    if place.remote is not None:
        raise AttendError(
            f"{place.root}: is the cache of {place.remote.url}, where other machines work too: "
            f"{what} is for a workspace in a folder; what is here is kept within machine.cache_gib"
        )


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
