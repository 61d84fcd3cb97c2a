"""Adapter `sources`: several data sets as one, such as your own photographs and a published set, or corrections."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from tasks.common.errors import AttendError
from tasks.common.section import NotInKey
from tasks.common.wording import listed
from tasks.datasets.base import DatasetOptions, Row
from tasks.datasets.faults import REFUSE, Faults
from tasks.datasets.formats import Format

OF_THE_WHOLE = ("dev_share", "test_share", "on_error", "near_duplicates")  # settings of all sources together
# A setting of one source in a message; not a file such as /photos/data.images.
_OWN_FIELD = re.compile(
    r"(?<![\w./])data\.("
    + "|".join(sorted({name for kind in get_args(Format) for name in kind.model_fields} - {*OF_THE_WHOLE, "adapter"}))
    + r")\b"
)


class Sources(DatasetOptions):
    """Several data sets, each with its own name and format. A picture that is in two of them counts once.

    The names of pictures begin with that of their source: `web/beach.jpg`.
    """

    adapter: Literal["sources"] = "sources"
    path: Annotated[Path, NotInKey()] = Field(Path(), exclude=True, description="not used: each source has its own")
    sources: dict[str, Annotated[Format, Field(discriminator="adapter")]] = Field(
        min_length=1,
        description="names and settings of the data sets, as in `data`; the first one that has a picture decides its "
        "split",
    )

    @field_validator("sources", mode="before")
    @classmethod
    def _names_as_texts(cls, sources: Any) -> Any:
        """Return the mapping with all names as texts; YAML reads some as numbers, such as years."""
        if not isinstance(sources, dict):
            return sources
        return {str(name): source for name, source in sources.items() if source is not None}  # null removes a source

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, sources: dict[str, DatasetOptions]) -> dict[str, DatasetOptions]:
        for name, source in sources.items():
            if not name.replace("-", "").replace("_", "").isalnum():
                raise ValueError(f"{name!r} is no name of a source: use letters, digits, - and _")
            if source.has_grids:
                raise ValueError(f"{name}: has grids and no photographs, which cannot be joined with others")
            for field in OF_THE_WHOLE:
                if getattr(source, field) != type(source).model_fields[field].default:
                    raise ValueError(f"{name}.{field}: is for all sources together: set data.{field}")
        return sources

    @model_validator(mode="after")
    def _refuse_paths_of_the_whole(self) -> Self:
        for field in ("path", "images"):
            if getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"{field}: each source has its own: set data.sources.NAME.{field}")
        return self

    @property
    def place(self) -> str:
        return listed([source.place for source in self.sources.values()])

    @property
    def unpacks(self) -> bool:
        return any(source.unpacks for source in self.sources.values())

    def parts(self) -> dict[str, DatasetOptions]:
        return {f"{name}/": source for name, source in self.sources.items()}

    def prefix_of(self, name: str) -> str:
        return f"{name.partition('/')[0]}/"

    def key_part(self) -> dict[str, Any]:
        part = super().key_part()
        # A list, because the first source that has a picture decides its split.
        return {**part, "sources": [[name, source.key_part()] for name, source in self.sources.items()]}

    def annotation_files(self) -> list[Path]:
        return [file for source in self.sources.values() for file in source.annotation_files()]

    def image_folder(self, generated: Path) -> Path:
        """Return the folder that sources unpack pictures to; other sources have their own: see `paths_of`."""
        return generated

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        for name, source in self.sources.items():
            prefix, before = f"{name}/", len(faults.found)
            with in_source(prefix):
                for row in source.rows(generated / name, faults):
                    yield replace(row, name=f"{prefix}{row.name}", split=row.split or source.split)
            faults.found[before:] = [with_source(prefix, fault) for fault in faults.found[before:]]


@contextlib.contextmanager
def in_source(prefix: str) -> Iterator[None]:
    """Name the source in the settings that an AttendError of the block mentions. prefix: of its pictures, or empty."""
    try:
        yield
    except AttendError as error:
        named = with_source(prefix, str(error))
        if named == str(error):
            raise
        raise type(error)(named) from None


def with_source(prefix: str, message: str) -> str:
    """Return a message with a source's settings named as in `data.sources`. prefix: of the source's pictures."""
    return _OWN_FIELD.sub(rf"data.sources.{prefix[:-1]}.\1", message) if prefix else message
