"""The device to compute on, its native precision, and the compiler that torch.compile needs."""

import functools
import os
import shutil
import time
from typing import Literal

import torch

from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.config.machine import MachineConfig

Precision = Literal["float32", "bfloat16"]
# bfloat16 takes half of float32's time where it is native, and at least twice its time where it is emulated.
_COST_IF_EMULATED = 1.0
# Size of the timed matrix products: each takes 0.4 ms in float32, and 25 ms in emulated bfloat16.
_ROWS, _WIDTH, _ROUNDS = 128, 512, 7


def prepare_compiler() -> None:
    """Prepare torch.compile for this processor; AttendError if there is no C++ compiler.

    Compiled kernels are cached on disk in a separate folder for each instruction set. Torch's own folder is shared by
    all, but a kernel compiled for one gives wrong numbers on another, or corrupts memory if oneDNN uses another layout
    of weights. A folder set by TORCHINDUCTOR_CACHE_DIR is used unchanged.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # takes seconds

    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise AttendError(
            f"machine.compile: there is no C++ compiler {compiler}: install one, or set machine.compile=false"
        )
    own = default_cache_dir()  # torch writes it into the environment when torchvision is imported
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", own) == own:
        instructions = (torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA", ""))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "_".join(part for part in (own, *instructions) if part)


def device_of(machine: MachineConfig) -> torch.device:
    """Set torch's number of threads from the config and return the config's device.

    Raises AttendError if the config requires a GPU and torch can use none.
    """
    if machine.threads:
        torch.set_num_threads(machine.threads)
    if machine.device == "cuda" and not torch.cuda.is_available():
        raise AttendError("machine.device: cuda: this machine has no GPU that torch can use: set machine.device=auto")
    if machine.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(machine.device)


def native_precision(device: torch.device) -> Precision:
    """Return bfloat16 if the device computes it faster than float32, else float32."""
    return "bfloat16" if bfloat16_cost(device) < _COST_IF_EMULATED else "float32"


def warn_if_emulated(device: torch.device, section: str) -> None:
    """Warn how much slower bfloat16 is than float32 if the device only emulates it.

    section: the section of the config that sets bfloat16.
    """
    cost = bfloat16_cost(device)
    if cost >= _COST_IF_EMULATED:
        log.warning(
            f"{section}.precision: bfloat16 is emulated here: its matrix products take {cost:.1f} times as long as "
            f"float32's; set {section}.precision=float32"
        )


@functools.cache
def bfloat16_cost(device: torch.device) -> float:
    """Return the time of a matrix product in bfloat16 divided by its time in float32, each the fastest of a few.

    A processor without bfloat16 emulates it, tens of times slower than float32. Its name and flags do not show what
    will be used, because environment variables and libraries restrict the instruction set, so both are timed. For a
    GPU, the cost depends on its compute capability: 0.5 from 8.0 on, the first with bfloat16, else 2.
    """
    if device.type == "cuda":
        return 0.5 if torch.cuda.get_device_capability(device) >= (8, 0) else 2.0
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    weights = {dtype: torch.ones(_WIDTH, _WIDTH, dtype=dtype) for dtype in best}
    inputs = {dtype: torch.ones(_ROWS, _WIDTH, dtype=dtype) for dtype in best}
    with torch.inference_mode():
        for _ in range(_ROUNDS):  # the precisions take turns, so that other programs disturb both equally
            for dtype, weight in weights.items():
                start = time.perf_counter()
                inputs[dtype] @ weight
                best[dtype] = min(best[dtype], time.perf_counter() - start)
    return best[torch.bfloat16] / best[torch.float32]
