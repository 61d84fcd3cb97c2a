"""Caption pictures, by schedule: those that came since the last time."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, get_run_logger

from flows.registered.caption import caption_into
from tasks.common import progress
from tasks.config.schema import MachineConfig


@flow(name="caption")
def caption_pictures(pictures: str, out: Path, model: str | None = None, beam: int | None = None) -> str:
    """Bring `out` (.jsonl or .parquet) up to date with the pictures; says how many were captioned.

    pictures: a folder, a pattern, or a Parquet file with a column of encoded pictures. model: `models:/NAME@ALIAS` or
    `models:/NAME/VERSION`; the champion registered last where not given.
    """
    with progress.also(get_run_logger().info):
        workspace = MachineConfig().folder
        told = f"{caption_into(out.expanduser(), [pictures], model, beam, workspace)}: {out}"
        progress.say(told)
    return told
