"""The identity of a store of grids. `attend status` imports this file, so it imports nothing heavy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.common.errors import AttendError, check_format, reason_of
from tasks.config.stages import GridsConfig
from tasks.pipeline.ledger import digest_of

FORMAT = 1  # version of the shards' file format
# Raise it by hand when a change to the code decodes, resizes or encodes photographs differently.
EXTRACT_VERSION = 3


@dataclass(frozen=True)
class Identity:
    """All that determines the values of grids: two stores with the same identity hold the same numbers."""

    backbone: str
    weights: str
    image_size: int
    fit: str
    grid: int | None
    precision: str
    version: int  # EXTRACT_VERSION: how photographs are decoded, resized and encoded
    dtype: str = "float16"
    format: int = FORMAT
    layer: int | None = None  # the backbone's layer whose output is the grid; None for the last

    @staticmethod
    def read(path: Path) -> Identity:
        """Return the identity in a file; AttendError if it is damaged or of a later format."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            check_format(values["format"], FORMAT, str(path))
            identity = Identity(**values)
            digest_of(identity.as_dict)  # raises for values that have none, such as NaN
            return identity
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = reason_of(error)
            raise AttendError(
                f"{path}: cannot be read as the identity of grids ({reason}): restore it from a backup, or move its "
                "folder away"
            ) from None

    @property
    def as_dict(self) -> dict[str, Any]:
        """Return the fields as they are written to disk and digested.

        `layer` is left out if it is None, so that grids extracted before the field existed keep their digest.
        """
        return {name: value for name, value in vars(self).items() if (name, value) != ("layer", None)}

    @property
    def digest(self) -> str:
        """Return the digest of the fields. Its first 20 characters name the store's folder."""
        return digest_of(self.as_dict)


def identity_of(grids: GridsConfig, weights: str) -> Identity:
    """Return the identity of the grids that this config describes; weights: the digest or name of the weights."""
    return Identity(
        grids.backbone,
        weights,
        grids.image_size,
        grids.fit,
        grids.grid,
        grids.precision,
        EXTRACT_VERSION,
        layer=grids.layer,
    )
