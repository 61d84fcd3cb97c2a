"""The device of a part, how long its work takes, and what all parts print first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch


def begin(about: str | None) -> torch.device:
    """Read the arguments, print the machine, and return the device; SystemExit where there is none."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = torch.device(parser.parse_args().device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this machine has no GPU that torch can use: --device cpu rehearses on the processor")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "a rehearsal on the processor"
    print(f"{name}, torch {torch.__version__}, {time.strftime('%F')}")
    return device


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 10) -> float:
    """Return the seconds that `work` takes, the fastest third of its repetitions, after three that do not count."""
    for _ in range(3):
        work()
    taken = []
    for _ in range(times):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 3]


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak(precision: str, device: torch.device) -> float:
    """Return the TFLOP/s of a large matrix product."""
    size = 8192 if device.type == "cuda" else 512
    one = torch.randn(size, size, device=device, dtype=getattr(torch, precision))
    return 2 * size**3 / seconds_of(lambda: one @ one, device) / 1e12


def head(columns: Sequence[str]) -> None:
    """Print the head of a table."""
    print("\n| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")


def row(*cells: object) -> None:
    """Print a row of a table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
