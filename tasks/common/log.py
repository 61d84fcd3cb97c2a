"""The program's log: one logger, `attend`, shown by rich on a terminal and as plain lines elsewhere."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("attend")
_shown: list[logging.Handler] = []  # the handler of `show_log`, after its first call


@functools.cache
def terminal() -> Console:
    """Return the console of standard error, shared by log and progress bar, so that lines appear above the bar."""
    from rich.console import Console

    return Console(stderr=True)


class _PlainLines(logging.Handler):
    """Writes lines to the current standard error, which tests and notebooks may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def show_log() -> None:
    """Show the program's log on standard error: by rich on a terminal, as plain lines elsewhere.

    Standard output is reserved for the results of commands. Prefect receives the log through its setting
    PREFECT_LOGGING_EXTRA_LOGGERS.
    """
    if _shown:
        return
    handler: logging.Handler = _PlainLines()
    if sys.stderr.isatty():
        from rich.highlighter import NullHighlighter
        from rich.logging import RichHandler

        handler = RichHandler(
            console=terminal(), show_time=False, show_level=False, show_path=False, highlighter=NullHighlighter()
        )
    _shown.append(handler)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


@contextmanager
def unlogged() -> Iterator[None]:
    """Log nothing in a block: a first reading of something that is read, and logged, once more."""
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def silence() -> None:
    """Show nothing in this process from now on, because another process reports the same work."""
    log.setLevel(logging.CRITICAL + 1)
