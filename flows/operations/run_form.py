"""The parameters in Prefect's form for a new run, and the name of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prefect import runtime
from pydantic import Field

# The kinds of stages, in order; a config has those of its sections.
STAGES = (
    "ingest",
    "extract",
    "tensorise",
    "train",
    "tune",
    "self_critical",
    "remember",
    "evaluate",
    "register",
)

ConfigName = Annotated[str, Field(description="name of a preset, or path of a YAML file on the worker's machine")]
ConfigOverrides = Annotated[
    list[str] | None, Field(description="settings that replace those of the preset or file: section.field=value")
]
LastStage = Annotated[str, Field(description="the last stage to run", json_schema_extra={"enum": list(STAGES)})]


def run_name() -> str:
    """Return the name of the current flow run: the name of its preset or file."""
    return Path(str(runtime.flow_run.parameters.get("preset", "attend"))).stem
