"""Caption the pictures of a folder, by schedule: those that came since the last time."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, get_run_logger

from flows.caption import caption_into
from tasks import progress
from tasks.config import MachineConfig


@flow(name="caption")
def caption_folder(folder: Path, out: Path, model: str | None = None, beam: int | None = None) -> str:
    """Bring `out` (JSON lines) up to date with the pictures of `folder`; says how many were captioned.

    model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; the champion registered last where not given.
    """
    with progress.also(get_run_logger().info):
        workspace = MachineConfig().workspace.expanduser().absolute()
        told = f"{caption_into(out.expanduser(), folder.expanduser(), model, beam, workspace)}: {out}"
        progress.say(told)
    return told
