"""A config's values before they are checked: presets, YAML files and dotted overrides, laid over each other."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.common.errors import AttendError, check_known, nearest


def presets() -> dict[str, Path]:
    """Name -> file of every preset that comes with the program."""
    folder = Path(str(importlib.resources.files(__package__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def values_of(preset_or_file: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What a preset's name or a YAML file says, with `section.field=value` overrides laid over it; AttendError."""
    known = presets()
    path = Path(preset_or_file)
    if preset_or_file in known:
        values: dict[str, Any] = {"preset": preset_or_file}
    elif path.suffix not in (".yaml", ".yml"):
        raise AttendError(f"{preset_or_file}: no such preset{nearest(preset_or_file, known)} (or give a .yaml file)")
    elif not path.is_file():
        raise AttendError(f"{path}: no such file")
    else:
        values = {"name": path.stem, **_read(path)}
    for override in overrides:
        values = _merged(values, _parsed(override))
    return values


def over_preset(values: dict[str, Any], seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values laid over those of their `preset`, a known one or a YAML file, which may have a preset too."""
    values = dict(values)
    preset = values.pop("preset", None)
    if preset is None:
        return values
    if not isinstance(preset, str):
        raise ValueError(f"preset: {preset!r} is no name: give one preset's, or a file's")
    if preset in seen:
        raise ValueError(f"preset: {preset} is laid over itself")
    if preset.endswith((".yaml", ".yml")):
        path = Path(preset).expanduser()
        if not path.is_file():
            raise ValueError(f"preset: {path}: no such file")
    else:
        known = presets()
        check_known(preset, "preset", known)
        path = known[preset]
    under = over_preset({"name": path.stem, **_read(path)}, (*seen, preset))
    return _merged(under, values)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AttendError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise AttendError(f"{path}: a config is a mapping of sections, this is {type(values).__name__}")
    return values


def _parsed(text: str) -> dict[str, Any]:
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise AttendError(f"{text}: an override reads section.field=value")
    try:
        tree: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        tree = value
    for part in reversed(path.split(".")):
        tree = {part: tree}
    assert isinstance(tree, dict)
    return tree


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
