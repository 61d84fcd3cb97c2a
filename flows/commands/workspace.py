"""`attend workspace`: list, measure, prune, compact and verify the contents of a workspace.

workspace_contents.py decides what is needed and what may be removed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import Json, WorkspaceOption, print_json
from tasks.common.errors import AttendError
from tasks.common.wording import counted

if TYPE_CHECKING:
    from flows.commands.old_versions import OldVersion
    from flows.commands.workspace_contents import Item
    from tasks.pipeline.workspace import Workspace

app = typer.Typer(
    help="List, measure, check and clean up the grids and artifacts of a workspace.", no_args_is_help=True
)


@app.command("grids")
def grids(workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """List the grid stores: the backbone, the number of pictures and the size of each."""
    from tasks.grids.store import folder_size, stores

    rows = []
    for store in stores(open_workspace(workspace).grids):
        shards = store.shards()
        pictures = len({digest for shard in shards for digest in shard.digests})
        size = {"pictures": pictures, "shards": len(shards), "bytes": folder_size(store.folder)}
        rows.append({"store": store.folder.name, **store.identity.as_dict, **size})
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"no grids in {workspace}")
    for row in rows:
        typer.echo(
            f"{row['store']}  {row['backbone']} {row['image_size']} px, weights {str(row['weights'])[:24]}"
            f": {row['pictures']:,} pictures in {row['shards']} shards, {row['bytes'] / 2**20:,.1f} MiB"
        )


@app.command("usage")
def show_usage(workspace: WorkspaceOption = Path("workspace"), as_json: Json = False) -> None:
    """Show how much space each item takes, and which runs and registered models need it."""
    from flows.commands.workspace_contents import usage
    from tasks.grids.store import folder_size

    opened = open_workspace(workspace)
    items = usage(opened)
    other_sizes = {
        name: folder_size(opened.root / name) for name in ("mlartifacts", "prefect") if (opened.root / name).exists()
    }
    if as_json:
        print_json([_item_as_json(item) for item in items])
        return
    _print_items(items, opened.root)
    for name, size in other_sizes.items():
        typer.echo(f"{_mib(size)}  {name}")
    total = sum(item.size for item in items) + sum(other_sizes.values())
    unneeded = sum(item.size for item in items if not item.needed_by)
    typer.echo(f"{_mib(total)}  in total; nobody needs {_mib(unneeded).strip()} of it")


@app.command("prune")
def prune(
    workspace: WorkspaceOption = Path("workspace"),
    forget: Annotated[
        list[str] | None,
        typer.Option(help="run whose results are no longer needed; may be repeated"),
    ] = None,
    keep_versions: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="keep this many of the latest versions of each model, and all with an alias (champion, previous, "
            "challenger)",
        ),
    ] = None,
    keep_days: Annotated[
        float, typer.Option(min=0, help="with --keep-versions: also keep versions younger than this many days")
    ] = 30,
    yes: Annotated[bool, typer.Option("--yes", help="remove the items instead of only listing them")] = False,
) -> None:
    """List what no run or registered model needs; with --yes, remove it. By default, all versions are kept."""
    from flows.commands import workspace_contents as housekeeping
    from tasks.pipeline.sessions import exclusive_session

    opened = open_workspace(workspace)
    check_local(opened, "attend workspace prune")
    without = forget or []
    with exclusive_session(opened, "prune"):
        versions: list[OldVersion] = []
        if keep_versions is not None:
            from flows.commands.old_versions import old_versions, remove_versions  # loads torch and MLflow

            versions = old_versions(opened.root, keep_versions, keep_days)
        size = sum(item.size for item in versions)
        for item in versions:
            typer.echo(f"{_mib(item.size)}  {item.address}  with its run and its files")
        # Only the needs of versions that stay count.
        items = housekeeping.usage(opened, without, {item.address for item in versions})
        items = [item for item in items if not item.needed_by]
        if yes:
            if versions:
                remove_versions(opened.root, versions)
            housekeeping.prune(opened, items, without)
    _print_items(items, opened.root)
    outcome = "removed" if yes else "would be removed: add --yes"
    size += sum(item.size for item in items)
    typer.echo(f"{len(versions)} versions, {len(items)} items, {_mib(size).strip()} {outcome}")


@app.command("compact")
def compact(
    workspace: WorkspaceOption = Path("workspace"),
    yes: Annotated[bool, typer.Option("--yes", help="rewrite the shards instead of only listing them")] = False,
) -> None:
    """List the shards with grids that are no longer needed; with --yes, rewrite them without those grids."""
    from flows.commands import workspace_contents as housekeeping
    from tasks.config.machine import MachineConfig
    from tasks.pipeline.sessions import exclusive_session

    opened = open_workspace(workspace)
    check_local(opened, "attend workspace compact")
    with exclusive_session(opened, "compact"):
        planned = housekeeping.planned_compactions(opened)
        for item in planned:
            typer.echo(
                f"{item.store.folder.relative_to(opened.root)}  grids of {item.store.identity.backbone}: "
                f"{len(item.old)} shards hold {item.dropped:,} grids that nobody needs"
            )
        if yes:
            housekeeping.compact(opened, planned, MachineConfig().shard_rows)
    dropped = sum(item.dropped for item in planned)
    outcome = "removed" if yes else "would be removed: add --yes"
    typer.echo(f"{sum(len(item.old) for item in planned)} shards rewritten, {dropped:,} grids {outcome}")


@app.command("verify")
def verify(workspace: WorkspaceOption = Path("workspace")) -> None:
    """Check every shard against its digest; set damaged shards aside, and exit with code 1 if there are any."""
    from tasks.grids.store import DamagedIndexError, read_shard, stores

    opened = open_workspace(workspace)
    problems: list[str] = []
    checked = 0
    for store in stores(opened.grids):
        for index in store.indexes():
            damage: str | None = f"{index}: is damaged"
            with contextlib.suppress(DamagedIndexError):
                shard = read_shard(index)
                if store.remote is not None and not shard.path.exists():
                    continue  # its digest is checked when the shard is downloaded
                damage = shard.damage(verify=True)
            checked += 1
            if damage is not None:
                problems.append(f"{damage}: {_set_aside(opened, index)}")
    for line in problems:
        typer.echo(line, err=True)
    typer.echo(f"{checked - len(problems)} of {checked} shards are sound")
    if problems:
        raise typer.Exit(1)


def _set_aside(workspace: Workspace, index: Path) -> str:
    """Set a damaged shard aside, or let the next run do so if a run is reading it now. Returns what was done."""
    from tasks.grids.store import set_aside
    from tasks.pipeline.sessions import exclusive_session

    try:
        with exclusive_session(workspace, "verify"):
            set_aside(index)
            return "set aside; `attend run` extracts its pictures again"
    except AttendError:
        workspace.suspect([index, index.with_suffix(".h5")])
        return "a run is going on; the next one sets it aside and extracts its pictures again"


def open_workspace(folder: Path) -> Workspace:
    """Return the workspace in a folder. Raises AttendError if the folder holds none."""
    from tasks.pipeline.workspace import Workspace

    workspace = Workspace(folder)
    if not workspace.grids.is_dir():
        raise AttendError(f"{workspace.root}: not a workspace: give --workspace FOLDER, or run `attend run` first")
    return workspace


def check_local(workspace: Workspace, command: str) -> None:
    """Raise AttendError if the workspace is a cache of object storage, whose grids other machines' runs may need.

    command: the refused command.
    """
    if workspace.remote is not None:
        raise AttendError(
            f"{workspace.root}: is a cache of {workspace.remote.url}, which other machines use too: `{command}` "
            f"needs a workspace in a local folder; machine.cache_gib limits the size of this cache"
        )


def _print_items(items: list[Item], root: Path) -> None:
    """Print a line for each item. Shards of one store with the same users share a line."""
    lines: dict[tuple[Path, str, tuple[str, ...]], list[Item]] = {}
    for item in items:
        path = item.path.parent if item.path.suffix == ".h5" else item.path
        lines.setdefault((path.relative_to(root), item.what, item.needed_by), []).append(item)
    for (path, description, needed_by), group in lines.items():
        shards = f", {counted(len(group), 'shard')}" if group[0].path.suffix == ".h5" else ""
        unneeded = sum(item.unneeded for item in group)
        exception = f" except {unneeded:,} grids (see `attend workspace compact`)" if unneeded else ""
        needed = f"needed by {', '.join(needed_by)}{exception}" if needed_by else "nobody needs it"
        typer.echo(f"{_mib(sum(item.size for item in group))}  {path}  {description}{shards}; {needed}")


def _item_as_json(item: Item) -> dict[str, Any]:
    return {"what": item.what, "path": str(item.path), "bytes": item.size, "needed_by": list(item.needed_by)}


def _mib(size: int) -> str:
    """Return a number of bytes as MiB, right-aligned."""
    return f"{size / 2**20:10,.1f} MiB"
