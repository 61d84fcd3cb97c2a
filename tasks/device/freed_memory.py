"""Memory that is freed and allocated again, on a processor: the C library can keep it, or give it back in between.

glibc gives each large block back to the system when it is freed, and gets it anew, page by page and filled with zeros.
A network's maps are such blocks, and every batch has them again: see bench/speed/tuning_step.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Parameters of mallopt(3), and what glibc's own adjustment raises them to at most.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
_USUAL = {_MMAP_MAX: 65_536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20, _TOP_PAD: 128 << 10}
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: 256 << 20}  # no blocks of their own, and nothing given back


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory for what is allocated next, in all threads; afterwards give back what is free.

    Where the C library is not glibc, do nothing.
    """
    library: Any = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        yield
        return
    try:
        _set(library, _KEEPING)
        yield
    finally:
        _set(library, _USUAL)
        library.malloc_trim(0)


def _set(library: Any, parameters: dict[int, int]) -> None:
    for parameter, value in parameters.items():
        library.mallopt(parameter, value)
