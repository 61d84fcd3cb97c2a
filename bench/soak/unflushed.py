"""Run `attend` with a defect: files whose names contain a given text are not flushed to the disk.

    python -m bench.soak.unflushed TEXT run CONFIG

bench/soak/power_cuts.py uses it to show that it would find such a defect.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flows.commands.cli import main


def skip_flushes(text: str) -> None:
    """Make `os.fsync` do nothing for files whose names contain `text`."""
    flush = os.fsync

    def flush_others(handle: int) -> None:
        if text not in Path(f"/proc/self/fd/{handle}").readlink().name:
            flush(handle)

    os.fsync = flush_others  # type: ignore[assignment]


if __name__ == "__main__":
    skip_flushes(sys.argv.pop(1))
    main()
