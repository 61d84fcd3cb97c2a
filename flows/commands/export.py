"""`attend export`: write a registered model into a folder that needs neither MLflow nor this program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import WorkspaceOption
from models.options import Runtime


def export(
    to: Annotated[Path, typer.Option("--to", help="folder to write; it must not exist yet")],
    model: Annotated[
        str | None,
        typer.Argument(help="models:/NAME@ALIAS or models:/NAME/VERSION; default: see `attend models use`"),
    ] = None,
    runtime: Annotated[Runtime, typer.Option(help="what the folder runs on")] = "onnx",
    workspace: WorkspaceOption = Path("workspace"),
) -> None:
    """Export a registered model to a folder that runs with onnxruntime, NumPy and Pillow; its README.md documents it.

    With --runtime torch, the folder is a captioner that other trainings can start from.
    """
    from flows.registered.export import export_model

    folder = to.expanduser()
    size = export_model(model, folder, runtime, workspace)
    use = f"{folder / 'README.md'} says how to use it"
    if runtime == "torch":
        use = f"a training starts from it with training.start_from={folder}, or attend init --from {folder}"
    typer.echo(f"{folder}: {size / 1e6:.1f} MB; {use}")
