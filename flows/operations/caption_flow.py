"""The Prefect flow that captions, on a schedule, the pictures added since its last run."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.registered.caption import write_captions_file
from tasks.common.log import log, show_log
from tasks.config.machine import MachineConfig


@flow(name="caption")
def caption_pictures(pictures: str, out: Path, model: str | None = None, beam: int | None = None) -> str:
    """Bring `out` (.csv, .jsonl or .parquet) up to date with the pictures. Returns a summary in one line.

    pictures: a folder, a pattern, or a Parquet file with a column of encoded pictures. model: `models:/NAME@ALIAS` or
    `models:/NAME/VERSION`; by default the champion in use. beam: the beam width; by default the model's.
    """
    show_log()
    workspace = MachineConfig().folder
    decoding = {"beam": beam} if beam else None
    summary = f"{write_captions_file(out.expanduser(), [pictures], model, decoding, workspace)}: {out}"
    log.info(summary)
    return summary
