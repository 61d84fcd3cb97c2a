"""Stage `remember`: grids and captions of the training pictures -> the memory of a captioner.

In: the grids of the train split, and its captions as token ids. Out: memory.npz (see models/neighbours.py), and
pictures.parquet, the digests of the pictures in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.common.files import digest_of_file
from tasks.common.section import Section
from tasks.config.stages import MemoryConfig
from tasks.config.starting_point import MEMORY, StartingPoint
from tasks.data.tensorise import Tensorise
from tasks.grids.extract import Extract
from tasks.pipeline.ledger import Outcome
from tasks.pipeline.stage import Product, Stage, Work


@dataclass(frozen=True, eq=False, kw_only=True)
class Remember(Stage):
    """The stage `remember`: training pictures -> the memory of a captioner."""

    kind: ClassVar[str] = "remember"
    version: ClassVar[int] = 4

    memory: MemoryConfig
    grids: Extract
    captions: Tensorise
    start: StartingPoint | None = None  # its memory is kept too if `memory.joined` is set

    @property
    def pictures(self) -> Product:
        """Return the product that represents the vectors and captions of the pictures."""
        return Product(self, "pictures")

    def sections(self) -> dict[str, Section]:
        return {"memory": self.memory}

    def needs(self) -> tuple[Product, ...]:
        captions = self.captions
        return (self.grids.identity, self.grids.failed("train"), captions.vocabulary, captions.train)

    def inputs(self) -> dict[str, str]:
        start = self._joined()
        return {} if start is None else {"memory of start_from": digest_of_file(start.folder / MEMORY)}

    def _joined(self) -> StartingPoint | None:
        return self.start if self.memory.joined else None

    def run(self, work: Work, hooks: Any = None) -> Outcome:
        from tasks.neighbours.make_memory import write_memory

        grids, captions = work.artifacts[self.grids], work.artifacts[self.captions]
        return write_memory(self.memory, self.machine, grids, captions, work.key, work.out, self._joined())
