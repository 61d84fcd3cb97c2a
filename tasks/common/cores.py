"""The number of threads that this process may keep busy: its share of the machine's cores, not the host's.

This module does not load torch: the number of threads and the wait policy are set in the environment before torch is
loaded (see `tasks/__init__.py`).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIP_FILE, _MOUNT_POINT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def configure_threads() -> None:
    """Set the number of OpenMP threads if a CPU quota limits it, and make idle threads sleep.

    Existing environment variables are not changed. CPU affinity and hyperthreads need no setting: OpenMP and torch
    detect them. Call this before torch is loaded, because OpenMP reads its settings once.

    By default threads spin for milliseconds while they wait. That takes the processor from every other program, and
    from each other if there are more threads than cores. GNU's OpenMP runtime, which torch includes on Linux, is set
    to spin for about 40 microseconds before it sleeps: otherwise work in small pieces would wait for a thread to wake
    up at every piece (docs/measured.md, "Idle threads").
    """
    if available_cores() < _cores_by_affinity():
        os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def available_cores(membership_file: Path = _MEMBERSHIP_FILE, mount_point: Path = _MOUNT_POINT) -> int:
    """Return the number of cores that affinity and the cgroup's quota leave this process, rounded up; at least 1.

    membership_file: the file in which Linux lists the cgroups of a process. mount_point: where cgroups are mounted.
    """
    quotas = [math.ceil(quota) for quota in _quotas(membership_file, mount_point)]
    return max(1, min([_cores_by_affinity(), *quotas]))


def _cores_by_affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no CPU affinity
        return os.cpu_count() or 1


def _quotas(membership_file: Path, mount_point: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of this process's cgroup and of all its ancestors, which limit it too."""
    try:
        lines = membership_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # A line of cgroup version 2 names no controller.
        roots = [mount_point] if not controllers else [mount_point / controllers, mount_point / "cpu"]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in roots:
            folder = root / group.strip("/")
            # Up to the root, because a container may see its own cgroup mounted there under any name.
            for level in (folder, *folder.parents):
                if level.is_relative_to(root):
                    yield from _quota(level)


def _quota(folder: Path) -> Iterator[float]:
    """Yield the quota, in cores, that one cgroup of version 2 or 1 sets; yield nothing if it sets none."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        yield int(quota) / int(period)  # the quota `max` means no limit: int() raises ValueError
    with contextlib.suppress(OSError, ValueError):
        micros, period = ((folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        if int(micros) > 0:
            yield int(micros) / int(period)
