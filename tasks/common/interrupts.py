"""Deferring Ctrl-C (SIGINT) until work can stop without a loss."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tasks.common.log import log


@contextmanager
def deferred_interrupt(work: str) -> Iterator[Callable[[], bool]]:
    """Defer SIGINT: yield a function that returns whether one came. A second one raises KeyboardInterrupt at once.

    work: the work that is finished first, for the message. Outside the main thread, where signals never arrive, nothing
    is deferred.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return

    def handle(*_: object) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()
        log.info(f"stopping after {work}; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before)
