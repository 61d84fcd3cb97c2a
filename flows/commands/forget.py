"""`attend forget`: remove photographs, and everything derived from them, from a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import WorkspaceOption


def forget(
    photographs: Annotated[
        list[str],
        typer.Argument(metavar="PHOTO...", help="name in the data set, file, or SHA-256 digest of each photograph"),
    ],
    workspace: WorkspaceOption = Path("workspace"),
    versions: Annotated[
        bool,
        typer.Option("--versions", help="also remove versions made with them that are champion or have another alias"),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="remove it instead of only listing it")] = False,
) -> None:
    """List what a workspace contains of photographs deleted from the data set; with --yes, remove it."""
    from flows.commands import photograph_traces as traces
    from flows.commands.workspace import check_local, open_workspace
    from flows.operations.service import is_locked
    from tasks.common.errors import AttendError
    from tasks.pipeline.sessions import exclusive_session

    opened = open_workspace(workspace)
    check_local(opened, "attend forget")
    if is_locked(opened.root):
        raise AttendError(f"{opened.root}: Prefect's server is running: `attend down` first, then `attend up`")
    with exclusive_session(opened, "forget"):
        names_by_digest = traces.photographs(opened, photographs)
        all_traces = traces.traces(opened, names_by_digest, versions)
        for digest, names in names_by_digest.items():
            typer.echo(f"{digest}  {', '.join(sorted(names)) or 'no name is known'}")
        for line in all_traces.lines(opened.root):
            typer.echo(f"  {line}")
        if yes:
            traces.remove(opened, names_by_digest, all_traces)
        remaining = traces.remaining_files(opened, names_by_digest) if yes else []
    typer.echo("removed" if yes else "would be removed: add --yes")
    for line in (*traces.stays(all_traces), *traces.not_searched(opened.root, names_by_digest)):
        typer.echo(line)
    for file in remaining:
        typer.echo(f"still there: {file}")
