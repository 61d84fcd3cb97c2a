"""Faults of a data set's rows: the first is raised, or all are gathered and their rows left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tasks.common.errors import AttendError, TransientError


class Faults:
    """The handling of invalid rows.

    gather: keep the message in `found` and go on without the row; otherwise raise it.
    """

    def __init__(self, gather: bool) -> None:
        self._gather = gather
        self.found: list[str] = []

    def add(self, error: AttendError) -> None:
        """Gather a fault, or raise it."""
        if not self._gather or isinstance(error, TransientError):
            raise error
        self.found.append(str(error))

    @contextlib.contextmanager
    def of_row(self) -> Iterator[None]:
        """Treat an AttendError in the block as the fault of the row being read."""
        try:
            yield
        except AttendError as error:
            self.add(error)


REFUSE = Faults(gather=False)
