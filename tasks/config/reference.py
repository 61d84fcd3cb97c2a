"""The reference of a config's settings, generated from its sections, for `attend settings` and docs/settings.md."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tasks.config.schema import Config, section_of
from tasks.datasets import ADAPTERS

_GENERAL = "general"
_ABOUT = {"data.adapter": "format of the data set; the settings below belong to it"}


@dataclass(frozen=True)
class Setting:
    """A setting. default: as YAML; empty if it is not set by default, None if it is required."""

    name: str
    type: str
    default: str | None
    bounds: str
    about: str


@dataclass(frozen=True)
class SectionReference:
    """A section of the config, in one line, with its settings."""

    about: str
    settings: list[Setting]


def sections() -> dict[str, SectionReference]:
    """Return every section of a config by name; `data` has an entry for each adapter, `data.NAME`."""
    references = {_GENERAL: SectionReference("Settings outside the sections.", [])}
    for name, field in Config.model_fields.items():
        if field.exclude:
            continue
        if name == "data":
            for adapter, kind in ADAPTERS.items():
                references[f"data.{adapter}"] = _section(kind, "data")
            continue
        section = section_of(field)
        if section is None:
            references[_GENERAL].settings.append(_setting(name, field))
        else:
            references[name] = _section(section, name)
    return references


def _section(kind: Any, name: str) -> SectionReference:
    about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    model_fields = {key: field for key, field in kind.model_fields.items() if key not in getattr(kind, "SHARED", ())}
    return SectionReference(about, [_setting(f"{name}.{key}", field) for key, field in model_fields.items()])


def _setting(name: str, field: FieldInfo) -> Setting:
    bounds = [
        f"{sign} {getattr(mark, name)}"
        for mark in field.metadata
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        if hasattr(mark, name)
    ]
    about = field.description or _ABOUT.get(name, "")
    return Setting(name, _type(field.annotation), _default(field), " and ".join(bounds), about)


def _default(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    default = field.get_default()
    if default is None or field.default_factory is not None:  # computed, as its description says
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"[{', '.join(default)}]"
    return str(default)


def _type(annotation: Any) -> str:
    """Return a field's type in words."""
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type(part) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is tuple:
        return "list of texts"
    if get_origin(annotation) is list:
        return f"list of {_type(get_args(annotation)[0])}"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return names.get(annotation, "path" if getattr(annotation, "__name__", "") == "Path" else "mapping")
