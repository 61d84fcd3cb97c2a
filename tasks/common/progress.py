"""Progress of long work: a bar with rate and time left on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")
_LINE_SECONDS = 15.0
_listeners: list[Callable[[str], None]] = []
_silent = False


class Bar:
    """A bar (or lines) for `total` units of work; `advance` it, and `note` what stands beside it."""

    def __init__(self, total: int, label: str, unit: str = "", done: int = 0) -> None:
        self._total, self._label, self._unit = total, label, unit
        self._done = self._skipped = done
        self._note = ""
        self._start = self._last = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not _silent:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
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
        elif kind is None and self._done > self._skipped:
            self._line()

    def note(self, text: str) -> None:
        self._note = text

    def log(self, text: str) -> None:
        """A line for the log; a terminal has the bar."""
        if self._bar is None:
            say(text)

    def advance(self, units: int = 1) -> None:
        self._done += units
        if self._bar:
            self._bar.update(
                self._task, completed=self._done, note=self._note, rate=f"{self._rate():.1f} {self._unit}/s"
            )
        elif time.monotonic() - self._last >= _LINE_SECONDS:
            self._line()

    def _rate(self) -> float:
        return (self._done - self._skipped) / max(time.monotonic() - self._start, 1e-6)

    def _line(self) -> None:
        self._last = time.monotonic()
        left = (self._total - self._done) / max(self._rate(), 1e-6)
        note = f", {self._note}" if self._note else ""
        say(
            f"{self._label}: {self._done:,}/{self._total:,} {self._unit}, {self._rate():.1f}/s, {left:.0f} s left{note}"
        )


def track(items: Iterable[Item], total: int, label: str, unit: str = "") -> Iterator[Item]:
    """The items, with progress shown."""
    with Bar(total, label, unit) as bar:
        for item in items:
            yield item
            bar.advance()


def lasting(seconds: float) -> str:
    """A time in words: `12 s`, `5 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def say(text: str) -> None:
    """A line for the person who waits. Standard output is kept for what a command answers."""
    if _silent:
        return
    print(text, file=sys.stderr, flush=True)
    for listener in _listeners:
        listener(text)


def silence() -> None:
    """From now on this process shows nothing: another one tells of the same work."""
    global _silent  # noqa: PLW0603 -- like the listeners, one for the process
    _silent = True


@contextmanager
def also(listener: Callable[[str], None]) -> Iterator[None]:
    """While the block takes, every line is told to this one too: the log of a scheduled run."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start
