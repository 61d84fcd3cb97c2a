"""The base class of the config's sections."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class NotInKey:
    """A mark for a field that never enters a stage's key, because no result depends on it, such as a file's path."""


class Section(BaseModel):
    """A frozen section of the config; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
