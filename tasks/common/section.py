"""The base class of the config's sections."""

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from tasks.common.files import check_path, check_text


class NotInKey:
    """A mark for a field that is never part of a stage's key, because no result depends on it, such as a path."""


class Checked(BaseModel):
    """A frozen part of the config; unknown keys are refused, and texts that name no file or number where one is due."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, values: Any) -> Any:
        """Raise ValueError for a text that cannot be written, a path that no file can have, and a number like 1_0."""
        texts = values.items() if isinstance(values, dict) else ()
        for name, value in texts:
            if isinstance(value, str) and name in cls.model_fields:
                annotation = cls.model_fields[name].annotation
                kinds = {annotation, *get_args(annotation)}
                try:
                    if "_" in value and kinds & {int, float}:
                        raise ValueError("is not a number in plain digits")
                    check_path(value) if Path in kinds else check_text(value)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return values


class Section(Checked):
    """A section of the config, which is a part of a stage's key."""

    def key_part(self) -> dict[str, Any]:
        """Return the fields on which a stage's key depends, as plain JSON values.

        Fields that are None are left out, so that a field added by a later version makes no artifact stale.
        """
        excluded = {
            name
            for name, field in type(self).model_fields.items()
            if any(isinstance(mark, NotInKey) for mark in field.metadata)
        }
        return self.model_dump(mode="json", exclude=excluded, exclude_none=True)
