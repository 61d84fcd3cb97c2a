"""The device that this machine computes on, and the compiler that torch.compile needs."""

import os
import shutil

import torch

from tasks.common.errors import AttendError
from tasks.config.machine import MachineConfig


def prepare_compiler() -> None:
    """Make torch.compile ready for this processor; AttendError where it would find no C++ compiler.

    Compiled kernels are kept on disk in a folder for each instruction set. Torch's own folder is one for all, and a
    kernel that was compiled for one gives wrong numbers on another, or corrupts memory where oneDNN lays weights out
    otherwise. A folder that TORCHINDUCTOR_CACHE_DIR names is left alone.
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

    Raises AttendError where the config asks for a GPU and torch can use none.
    """
    if machine.threads:
        torch.set_num_threads(machine.threads)
    if machine.device == "cuda" and not torch.cuda.is_available():
        raise AttendError("machine.device: cuda: this machine has no GPU that torch can use: set machine.device=auto")
    if machine.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(machine.device)
