"""What every section of the config has in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class NotInKey:
    """Marks a field that changes nothing that is kept, such as where a file lies: it never enters a key."""


class Section(BaseModel):
    """A frozen section of the config; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def key_part(self) -> dict[str, Any]:
        """What of this section a stage's key depends on, as plain JSON values.

        A field that is None is not set, and stays out: a field that a later version brings makes nothing stale.
        """
        places = {
            name
            for name, field in type(self).model_fields.items()
            if any(isinstance(mark, NotInKey) for mark in field.metadata)
        }
        return self.model_dump(mode="json", exclude=places, exclude_none=True)
