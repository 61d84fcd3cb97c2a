"""The running sums of an epoch, gathered on the device, so that no step waits for the one before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.device.copies import Arrival, Copies

_MOST_STEPS_AHEAD = 8


@dataclass
class Sums:
    """The running sums of the current epoch, which are saved in the checkpoint."""

    total: float = 0.0  # of the objective's metric
    count: int = 0  # tokens or captions that `total` is summed over
    seconds: float = 0.0
    bfloat16: int = 0  # steps computed in bfloat16

    @property
    def mean(self) -> float:
        """Return the metric's mean; NaN before the first step."""
        return self.total / self.count if self.count else float("nan")


class NotFiniteError(Exception):
    """A step's loss was not finite. step: its number, counted from 0."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step


class Tally:
    """Sums that grow on a device; `latest` tells what has come back of them, `read` waits for all.

    Both raise NotFiniteError once the loss of a step was not finite.
    """

    def __init__(self, device: torch.device, copies: Copies, sums: Sums) -> None:
        """Begin with `sums`, whose seconds and bfloat16 are the caller's to count."""
        self.sums, self._copies = sums, copies
        # Total, count, and the number of the first step whose loss was not finite, -1 where there is none.
        self._values = torch.tensor([sums.total, float(sums.count), -1.0], dtype=torch.float64, device=device)
        self._arrival: Arrival | None = None
        self._asked = 0  # how often `latest` was called since the copy on its way began

    @torch.no_grad()
    def add(self, outcome: Tensor, step: int) -> None:
        """Add a step's outcome, (3,): its loss, and the total and the count of its metric."""
        loss, first = outcome[0], self._values[2]
        is_first = ~loss.isfinite() & (first < 0)
        # A new tensor each time: a copy of the old one may still be on its way.
        self._values = torch.cat([self._values[:2] + outcome[1:], torch.where(is_first, step, first).view(1)])

    def latest(self) -> Sums:
        """Return the sums as far as they have come back.

        It waits only where the device is `_MOST_STEPS_AHEAD` steps behind: what these need is in its memory already.
        """
        if self._arrival is None:
            self._arrival, self._asked = self._copies.download([self._values]), 0
        self._asked += 1
        if self._arrival.has_come() or self._asked > _MOST_STEPS_AHEAD:
            self._take(self._arrival)
        return self.sums

    def read(self) -> Sums:
        """Return the sums of all steps so far, once the device has taken them."""
        self._take(self._copies.download([self._values]))
        return self.sums

    def _take(self, arrival: Arrival) -> None:
        total, count, first = arrival.wait()[0].tolist()
        self._arrival = None
        if first >= 0:
            raise NotFiniteError(int(first))
        self.sums.total, self.sums.count = total, int(count)
