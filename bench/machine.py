"""Describe the machine that a benchmark runs on and its native precisions, and measure time and memory."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from tasks.config.devices import Precision, native_precision

Made = TypeVar("Made")


def describe() -> None:
    """Print the machine, the date and the load, with a warning if other jobs would distort the results."""
    load = os.getloadavg()[0]
    threads = torch.get_num_threads()
    print(f"{processor()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}, {time.strftime('%F')}")
    print(f"{torch.backends.cpu.get_cpu_capability()}, trains in {native_precision(torch.device('cpu'))}")
    if torch.cuda.is_available():
        print(f"GPU: {torch.cuda.get_device_name()}")
    if load > 0.5:
        print(f"the load is {load:.1f}, the machine is not idle: these figures are not to be relied on")


def precisions() -> tuple[Precision, ...]:
    """Return the precisions to measure here: bfloat16 only if the processor does not emulate it."""
    native = native_precision(torch.device("cpu"))
    return ("float32",) if native == "float32" else ("float32", "bfloat16")


def processor() -> str:
    """Return the processor's name, or its architecture if the system does not give a name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def peak_memory(work: Callable[[], object]) -> float:
    """Run `work` and return its peak resident memory in MiB, in addition to the memory in use before."""
    # Not ru_maxrss: that begins with what the parent process had.
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> float:
    """Return a field of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def timed(best: dict[str, float], form: str, work: Callable[[], Made]) -> Made:
    """Run `work` and return its result. `best[form]` becomes the seconds of the fastest run so far."""
    began = time.perf_counter()
    result = work()
    best[form] = min(best.get(form, float("inf")), time.perf_counter() - began)
    return result
