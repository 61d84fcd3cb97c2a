"""The device that this machine computes on, and the compiler that torch.compile needs."""

import os
import shutil

import torch

from tasks.common.errors import AttendError
from tasks.config.machine import MachineConfig


def check_compiler() -> None:
    """Raise AttendError where torch.compile would find no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise AttendError(
            f"machine.compile: there is no C++ compiler {compiler}: install one, or set machine.compile=false"
        )


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
