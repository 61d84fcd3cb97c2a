"""Loading of configs for commands and flows, including the captioner that training starts from, if one is named."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.config import schema
from tasks.config.schema import Config
from tasks.registry.starting_points import find_starting_point


def load(preset_or_file: str, overrides: Sequence[str] = ()) -> Config:
    """Return the config of a preset or YAML file: see `schema.load`."""
    return schema.load(preset_or_file, overrides, find_starting_point)


def refusals(preset_or_file: str, overrides: Sequence[str] = ()) -> tuple[list[str], Config | None]:
    """Return all errors of a config, and the config without the fields at fault: see `schema.refusals`."""
    return schema.refusals(preset_or_file, overrides, find_starting_point)
