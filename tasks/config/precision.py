"""Which precision a device computes in natively: bfloat16 where it has it in hardware, else float32.

A processor without it emulates bfloat16, tens of times slower than float32. Names of processors and flags do not tell
what will be used: environment variables and libraries restrict the instruction set. So both are timed.
"""

from __future__ import annotations

import functools
import time
from typing import Literal

import torch

from tasks.common.progress import say

Precision = Literal["float32", "bfloat16"]
# Of float32's time bfloat16 takes half where it is native, at least twice as much where it is emulated.
NATIVE = 1.0
_ROWS, _WIDTH, _ROUNDS = 128, 512, 7  # of the products timed: 0.4 ms in float32, 25 ms where bfloat16 is emulated


def native_precision(device: torch.device) -> Precision:
    """Return bfloat16 where the device computes it faster than float32, else float32."""
    return "bfloat16" if bfloat16_cost(device) < NATIVE else "float32"


def warn_if_emulated(device: torch.device, section: str) -> None:
    """Say what bfloat16 costs, asked for in a section of the config, where the device only emulates it."""
    cost = bfloat16_cost(device)
    if cost >= NATIVE:
        say(
            f"{section}.precision: bfloat16 is emulated here: its matrix products take {cost:.1f} times as long as "
            f"float32's; set {section}.precision=float32"
        )


@functools.cache
def bfloat16_cost(device: torch.device) -> float:
    """Return the time of a matrix product in bfloat16 as a share of its time in float32, the fastest of a few each.

    A GPU is known by its compute capability: 0.5 from 8.0 on, where bfloat16 came, else 2.
    """
    if device.type == "cuda":
        return 0.5 if torch.cuda.get_device_capability(device) >= (8, 0) else 2.0
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    weights = {dtype: torch.ones(_WIDTH, _WIDTH, dtype=dtype) for dtype in best}
    inputs = {dtype: torch.ones(_ROWS, _WIDTH, dtype=dtype) for dtype in best}
    with torch.inference_mode():
        for _ in range(_ROUNDS):  # in turns, so that other programs disturb both alike
            for dtype, weight in weights.items():
                began = time.perf_counter()
                inputs[dtype] @ weight
                best[dtype] = min(best[dtype], time.perf_counter() - began)
    return best[torch.bfloat16] / best[torch.float32]
