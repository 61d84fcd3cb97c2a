"""`attend serve`: serve a registered or exported model over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import RuntimeOption, WorkspaceOption, whole_number
from tasks.common.errors import AttendError


def serve(
    model: Annotated[
        str | None,
        typer.Option(
            envvar="ATTEND_MODEL",
            help="models:/NAME@ALIAS or models:/NAME/VERSION, or a folder written by `attend export`",
        ),
    ] = None,
    runtime: RuntimeOption = None,
    host: Annotated[
        str,
        typer.Option(
            envvar="ATTEND_LISTEN_HOST",
            help="address to listen on; other machines can connect unless it is a loopback address",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="ATTEND_LISTEN_PORT", help="port to listen on", **whole_number(1, 65535))
    ] = 8000,
    batch: Annotated[
        int, typer.Option(help="maximum number of pictures captioned at once", **whole_number(1, 32))
    ] = 32,
    refresh: Annotated[float, typer.Option(help="seconds between checks for a new champion")] = 15,
    drain: Annotated[float, typer.Option(help="seconds to keep answering after SIGTERM, while /ready returns 503")] = 5,
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Serve a registered model over HTTP, with a page to try it (by default the champion: see `attend models use`)."""
    if not 1 <= refresh <= 86_400:  # NaN is refused too
        raise AttendError(f"--refresh: is {refresh}: give 1 to 86,400 seconds")
    if not 0 <= drain <= 600:
        raise AttendError(f"--drain: is {drain}: give 0 to 600 seconds")
    from flows.serving.serve import serve as run_server

    folder = None if model is None else Path(model).expanduser()
    if folder is not None and (folder / "bundle.json").is_file():
        from flows.serving.exported_model import ExportedModel

        if runtime is not None:
            raise AttendError("--runtime: an exported folder has one runtime: leave it out")
        run_server(lambda: ExportedModel(folder, refresh), host, port, batch, drain)
    else:
        if folder is not None and (folder.is_absolute() or folder.is_dir()):
            raise AttendError(f"{folder}: is no folder that `attend export` wrote: it has no bundle.json")
        from flows.serving.registered_model import RegisteredModel

        run_server(lambda: RegisteredModel(model, workspace, refresh, runtime), host, port, batch, drain)
