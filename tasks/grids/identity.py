"""What identifies a store of grids. Read by `attend status`: imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.schema import GridsConfig
from tasks.pipeline.ledger import digest_of

FORMAT = 1  # of shards
# Raised by hand when photographs are decoded, resized or encoded otherwise than before.
EXTRACT_VERSION = 2


@dataclass(frozen=True)
class Identity:
    """What made the grids: two stores with the same identity hold the same numbers."""

    backbone: str
    weights: str
    image_size: int
    fit: str
    grid: int | None
    precision: str
    version: int  # of the extract stage: how photographs are decoded, resized and encoded
    dtype: str = "float16"
    format: int = FORMAT
    view: str = ""  # which part of a photograph; the whole of it where nothing is said

    @property
    def told(self) -> dict[str, Any]:
        """As it is written down. A view of the whole photograph stays out: it was not told of, once."""
        return {name: value for name, value in self.__dict__.items() if name != "view" or value}

    @property
    def digest(self) -> str:
        return digest_of(self.told)

    def folder(self, grids: Path) -> Path:
        """Of its store, below a workspace's folder of grids."""
        return grids / self.digest[:20]


def identity_of(grids: GridsConfig, weights: str) -> Identity:
    """The identity of the grids that this config asks for; weights: their digest."""
    return Identity(grids.backbone, weights, grids.image_size, grids.fit, grids.grid, grids.precision, EXTRACT_VERSION)
