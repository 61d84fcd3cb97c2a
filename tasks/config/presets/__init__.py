"""The values of a config before they are checked: presets, YAML files and overrides, merged in that order."""

from __future__ import annotations

import difflib
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.common.errors import AttendError, check_known, suggestion
from tasks.common.files import check_path


def presets() -> dict[str, Path]:
    """Return name -> file for all presets that come with the program."""
    folder = Path(str(importlib.resources.files(__package__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def values_of(preset_or_file: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a preset or YAML file with `section.field=value` overrides merged over them.

    The key `preset` stays in the values for `resolve_preset`. Raises AttendError for an unknown preset, a file that is
    missing or not a mapping in YAML, and a malformed override.
    """
    files = presets()
    path = Path(preset_or_file)
    try:
        check_path(preset_or_file)
    except ValueError as error:
        raise AttendError(f"{preset_or_file}: {error}") from None
    if preset_or_file in files:
        values: dict[str, Any] = {"preset": preset_or_file}
    elif path.suffix not in (".yaml", ".yml"):
        file = path.with_name(f"{path.name}.yaml")
        meant = f"; did you mean {str(file)!r}?" if file.is_file() else suggestion(str(path), files)
        raise AttendError(f"{preset_or_file}: no such preset{meant} (or give a .yaml file)")
    elif not path.is_file():
        near = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.y*ml")], n=1)
        raise AttendError(f"{path}: no such file{f'; did you mean {str(path.with_name(near[0]))!r}?' if near else ''}")
    else:
        values = {"name": path.stem, **_read_with_paths(path)}
    for override in overrides:
        values = merged(values, _parse_override(override))
    return values


def resolve_preset(values: dict[str, Any], ancestors: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values merged over those of their `preset`: a known preset, or a YAML file with its own `preset`.

    ancestors: the presets that led here. Raises ValueError if `preset` is not a name, is unknown or missing, or is
    based on itself; AttendError for a file that is not a mapping in YAML.
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
        try:
            path = Path(check_path(preset)).expanduser()
        except ValueError as error:
            raise ValueError(f"preset: {error}") from None
        if not path.is_file():
            raise ValueError(f"preset: {path}: no such file")
    else:
        files = presets()
        check_known(preset, "preset", files)
        path = files[preset]
    base = resolve_preset({"name": path.stem, **_read_with_paths(path)}, (*ancestors, preset))
    theirs, own = base.get("data"), values.get("data")
    if isinstance(theirs, dict) and isinstance(own, dict) and own.get("adapter", "") not in ("", theirs.get("adapter")):
        base = {**base, "data": {}}  # an adapter's settings do not apply to another
    return merged(base, values)


CAPTIONER = "captioner:"  # prefix of `grids.weights` that names a captioner's folder
WEIGHT_NAMES = ("torchvision:", "timm:", "random:", "imported:", CAPTIONER)  # prefixes of weights that are not a path
_NO_PATHS = (*WEIGHT_NAMES, "models:/")
CHAMPION = "champion"  # the value of `training.start_from` that names the model's own champion
_START_FROM = ("training", "start_from")
# Fields that hold a path (`*`: in each entry); in a YAML file, relative paths are relative to that file.
_PATHS = (
    ("data", "path"),
    ("data", "images"),
    ("data", "captions"),
    ("data", "sources", "*", "path"),
    ("data", "sources", "*", "images"),
    ("data", "sources", "*", "captions"),
    ("grids", "weights"),
    ("encoder", "weights"),
    ("encoder", "projection"),
    ("encoder", "examples"),
    _START_FROM,
    ("training", "start_store"),
    ("machine", "workspace"),
    ("machine", "cache"),
)


def _read_with_paths(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, with its paths made absolute; AttendError if it holds no mapping."""
    values, folder = _read(path), path.expanduser().absolute().parent
    training = values.get("training")
    starts_from_champion = isinstance(training, dict) and training.get("start_from") == CHAMPION
    for field in _PATHS:
        if not (starts_from_champion and field == _START_FROM):
            values = _with_absolute_path(values, field, folder)
    preset = values.get("preset")
    if isinstance(preset, str) and preset.endswith((".yaml", ".yml")) and not preset.startswith("~"):
        values["preset"] = str(folder / preset)
    return values


def _with_absolute_path(values: Any, field: Sequence[str], folder: Path) -> Any:
    """Return nested values in which the field, if it is a relative path, is joined to `folder`."""
    if not field:
        is_path = isinstance(values, str) and not (values.startswith(("~", *_NO_PATHS)) or "://" in values)
        return str(folder / values) if is_path else values
    if not isinstance(values, dict):
        return values
    names = values if field[0] == "*" else [field[0]] if field[0] in values else []
    return values | {name: _with_absolute_path(values[name], field[1:], folder) for name in names}


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; AttendError if it holds none."""
    try:
        values = _parse(path.read_text(encoding="utf-8"), str(path))
    except AttendError:
        raise
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f": line {error.problem_mark.line + 1}"
        raise AttendError(f"{path}{line}: is not YAML: {error.problem or error.context}: correct it") from None
    except Exception as error:  # PyYAML raises various errors for odd scalars
        raise AttendError(f"{path}: not readable as YAML: {error}") from None
    if not isinstance(values, dict):
        raise AttendError(f"{path}: a config must be a mapping of sections, not {type(values).__name__}")
    return values


_DEEPEST = 20  # most levels of a config; PyYAML's time grows with the square of their number


class _Loader(yaml.SafeLoader):
    """A loader that refuses repeated keys in a mapping, numbers not in plain digits, and very deep nesting.

    Its AttendErrors begin with `name`, PyYAML's attribute for the source of the text.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        if self.depth == _DEEPEST:
            raise AttendError(f"{self.name}: is nested too deeply: correct it")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise AttendError(
                        f"{self.name}: line {line}: {key.value} is set already in line {lines[key.value]}: correct it"
                    )
                lines[key.value] = line
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Return an integer or float; raise AttendError for one such as 1_0, 010 or 1:30."""
        digits = node.value.lstrip("+-")
        if set("_:") & set(digits) or (digits.isdecimal() and digits != "0" and digits[0] == "0"):
            line = node.start_mark.line + 1
            raise AttendError(
                f"{self.name}: line {line}: {node.value} is not a number in plain digits (a text needs quotes): "
                "correct it"
            )
        whole = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)
# No setting is a date, but a folder's name may be one.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def _parse(text: str, where: str) -> Any:
    """Return the value of a YAML text; AttendError for what `_Loader` refuses.

    Raises PyYAML's errors for invalid YAML: YAMLError, and other errors for odd scalars. where: the file or override,
    for the message.
    """
    loader = _Loader(text)
    loader.name = where
    return loader.get_single_data()


def _parse_override(text: str) -> dict[str, Any]:
    """Return `section.field=value` as nested mappings, with the value read as YAML; AttendError if malformed."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise AttendError(f"{text}: an override must have the form section.field=value")
    try:
        tree: Any = _parse(value, text)
    except (yaml.YAMLError, ValueError, AttributeError):  # take it as text
        tree = value
    for part in reversed(path.split(".")):
        tree = {part: tree}
    assert isinstance(tree, dict)
    return tree


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with its values replaced by those of `over`; mappings in both are merged recursively."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
