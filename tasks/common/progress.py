"""Progress of long work: on a terminal a bar with rate and remaining time, in a log a plain line every 15 seconds."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tasks.common.log import log, terminal

Item = TypeVar("Item")
_LINE_SECONDS = 15.0  # between two lines without a bar


class Bar:
    """A progress bar for `total` units of work; plain lines if standard error is not a terminal."""

    def __init__(self, total: int, label: str, unit: str = "", done: int = 0, says_end: bool = True) -> None:
        """Start the clock.

        done: units that were finished before, which the rate does not count. says_end: whether, without a bar, a line
        reports the end; False if the caller reports it.
        """
        self._says_end = says_end
        self._total, self._label, self._unit = total, label, unit
        self._done = self._done_before = done
        self._note = ""
        self._start = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty() and log.isEnabledFor(logging.INFO):
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=terminal(),
            )
            self._task = self._bar.add_task(label, total=total, completed=done, note="", rate="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        elif self._says_end and kind is None and self._done > self._done_before:
            self._print_line()

    def log(self, text: str) -> None:
        """Print a line if there is no bar."""
        if self._bar is None:
            log.info(text)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count units as done, and show it. note: text to show beside the bar."""
        self._done, self._note = self._done + units, note
        if self._bar:
            self._bar.update(
                self._task, completed=self._done, note=self._note, rate=f"{self._rate():.1f} {self._unit}/s"
            )
        elif time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._print_line()

    def _rate(self) -> float:
        return (self._done - self._done_before) / max(time.monotonic() - self._start, 1e-6)

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        seconds_left = (self._total - self._done) / max(self._rate(), 1e-6)
        note = f", {self._note}" if self._note else ""
        log.info(
            f"{self._label}: {self._done:,}/{self._total:,} {self._unit}, {self._rate():.1f}/s, "
            f"{seconds_left:.0f} s left{note}"
        )


def track(items: Iterable[Item], total: int, label: str, unit: str = "") -> Iterator[Item]:
    """Yield the items, and show how many of `total` have been processed."""
    with Bar(total, label, unit) as bar:
        for item in items:
            yield item
            bar.advance()


def in_parts(items: Sequence[Item], size: int, label: str) -> Iterator[Sequence[Item]]:
    """Yield pictures, or items of one picture each, `size` at a time, and show how many have been processed."""
    with Bar(len(items), label, "pictures") as bar:
        for start in range(0, len(items), size):
            part = items[start : start + size]
            yield part
            bar.advance(len(part))


def duration(seconds: float) -> str:
    """Return a duration in words: `12 s`, `5 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
