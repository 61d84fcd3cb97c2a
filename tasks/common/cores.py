"""How many threads this process may keep busy: its share of the machine's cores, not all that the host has.

Torch-free: the number and the wait policy are set in the environment before torch is loaded (see `tasks/__init__.py`).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIP, _MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def settle_threads() -> None:
    """Set how many threads OpenMP takes, where a quota bounds them, and that idle ones sleep.

    What the environment says already stays; affinity and hyperthreads OpenMP and torch see by themselves. Right only
    before torch is loaded: OpenMP reads its settings once.

    Threads that spin while they wait, milliseconds by default, take the processor from every other program, and from
    each other where there are more than cores. GNU's runtime, torch's own on Linux, lets them spin for some 40
    microseconds first: work that is cut small would otherwise wait for a thread to wake at every piece
    (bench/README.md, `threads`).
    """
    if available_cores() < _cores_by_affinity():
        os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def available_cores(membership: Path = _MEMBERSHIP, mounted: Path = _MOUNTED) -> int:
    """Return the cores that affinity and the cgroup's quota leave this process, rounded up; at least 1.

    membership, mounted: where Linux tells the cgroups of a process, and where they are mounted.
    """
    quotas = [math.ceil(quota) for quota in _quotas(membership, mounted)]
    return max(1, min([_cores_by_affinity(), *quotas]))


def _cores_by_affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has none
        return os.cpu_count() or 1


def _quotas(membership: Path, mounted: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the cgroup of this process and of all above it: each holds for those below."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # Version 2 names no controller. A container may see only its own cgroup, mounted as the root.
        places = [mounted] if not controllers else [mounted / controllers, mounted / "cpu"]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for place in places:
            folder = place / group.strip("/")
            for level in (folder, *folder.parents):
                if level.is_relative_to(place):
                    yield from _quota(level)


def _quota(folder: Path) -> Iterator[float]:
    """Yield the quota, in cores, that one cgroup sets, by version 2 or version 1; nothing where it sets none."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        yield int(quota) / int(period)  # `max` is no number: no quota
    with contextlib.suppress(OSError, ValueError):
        micros, period = ((folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        if int(micros) > 0:
            yield int(micros) / int(period)
