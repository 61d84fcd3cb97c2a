"""`attend forget`: remove photographs, and what was made from them, from a workspace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import WorkspaceOption
from tasks.common.wording import counted


def forget(
    photographs: Annotated[list[str], typer.Argument(metavar="PHOTO...", help="name, file or SHA-256 digest of each")],
    workspace: WorkspaceOption = Path("workspace"),
    versions: Annotated[
        bool, typer.Option("--versions", help="also remove versions made with them that are champion or have an alias")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="remove it; without this it is only listed")] = False,
) -> None:
    """List what a workspace holds of photographs that were deleted from the data set; remove it with --yes."""
    from flows.commands import photograph_traces as traces
    from flows.commands.workspace import check_local, open_workspace
    from flows.operations.prefect_settings import environment
    from flows.operations.service import is_locked
    from tasks.common.errors import AttendError
    from tasks.mlflow_store import tracking
    from tasks.pipeline.sessions import exclusive_session

    opened = open_workspace(workspace)
    check_local(opened, "attend forget")
    if is_locked(opened.root):
        raise AttendError(
            f"{opened.root}: Prefect's server is running: `attend down` first, and `attend up` afterwards"
        )
    with exclusive_session(opened, "forget"):
        wanted = traces.photographs(opened, photographs)
        found = traces.traces(opened, wanted, versions)
        for item in wanted:
            typer.echo(f"{item.digest}  {', '.join(sorted(item.names)) or 'no name is known'}")
        for line in found.lines(opened.root):
            typer.echo(f"  {line}")
        if yes:
            traces.remove(opened, wanted, found)
        left = [Path(place).parent for place in traces.places_left(opened, wanted)] if yes else []
    typer.echo("removed" if yes else "would be removed: add --yes")
    for address in found.kept:
        typer.echo(
            f"kept: {address}, {found.roles[address]}: it keeps what it learnt, and its files name the photograph: let "
            "a version without it replace it (`attend run`, `attend models promote`), then forget the digest, or add "
            "--versions"
        )
    if not tracking.is_embedded():
        typer.echo("not looked at: versions in the store of MLFLOW_TRACKING_URI: remove those made with it there")
    for name in environment(opened.root).keys() & {"PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL"}:
        typer.echo(f"not looked at: artifacts, events and logs in the Prefect server that {name} names")
    if left:
        typer.echo("still named in:")
        for place, number in Counter(left).items():
            typer.echo(f"  {place}, {counted(number, 'file')}")
