"""The values of a config before they are checked: presets, YAML files and dotted overrides, merged in that order."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.common.errors import AttendError, check_known, suggestion


def presets() -> dict[str, Path]:
    """Return name -> file for all presets that come with the program."""
    folder = Path(str(importlib.resources.files(__package__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def values_of(preset_or_file: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a preset or YAML file with `section.field=value` overrides merged over them.

    The key `preset` stays in the values, for `resolve_preset` to resolve. Raises AttendError for an unknown preset, a
    file that is missing or not a mapping in YAML, and an override of another form.
    """
    known = presets()
    path = Path(preset_or_file)
    if preset_or_file in known:
        values: dict[str, Any] = {"preset": preset_or_file}
    elif path.suffix not in (".yaml", ".yml"):
        raise AttendError(f"{preset_or_file}: no such preset{suggestion(preset_or_file, known)} (or give a .yaml file)")
    elif not path.is_file():
        raise AttendError(f"{path}: no such file")
    else:
        values = {"name": path.stem, **_read(path)}
    for override in overrides:
        values = _merged(values, _parse_override(override))
    return values


def resolve_preset(values: dict[str, Any], ancestors: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values merged over those of their `preset`: a known preset or a YAML file, which may have one too.

    ancestors: the presets that led here. Raises ValueError where `preset` is not a name, is unknown or missing, or
    leads back to itself; AttendError for a file that is not a mapping in YAML.
    """
    values = dict(values)
    preset = values.pop("preset", None)
    if preset is None:
        return values
    if not isinstance(preset, str):
        raise ValueError(f"preset: {preset!r} is not a name: give the name of a preset or of a YAML file")
    if preset in ancestors:
        raise ValueError(f"preset: {preset} is based on itself: change the `preset` of one of these files")
    if preset.endswith((".yaml", ".yml")):
        path = Path(preset).expanduser()
        if not path.is_file():
            raise ValueError(f"preset: {path}: no such file")
    else:
        known = presets()
        check_known(preset, "preset", known)
        path = known[preset]
    base = resolve_preset({"name": path.stem, **_read(path)}, (*ancestors, preset))
    return _merged(base, values)


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; AttendError where the file holds none."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AttendError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise AttendError(f"{path}: a config must be a mapping of sections, not {type(values).__name__}")
    return values


def _parse_override(text: str) -> dict[str, Any]:
    """Return `section.field=value` as nested mappings, the value read as YAML; AttendError for another form."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise AttendError(f"{text}: an override must have the form section.field=value")
    try:
        tree: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        tree = value
    for part in reversed(path.split(".")):
        tree = {part: tree}
    assert isinstance(tree, dict)
    return tree


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over` in place of its own; mappings in both are merged in the same way."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
