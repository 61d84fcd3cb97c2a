"""Which device this machine computes on."""

import torch

from tasks.config import MachineConfig
from tasks.errors import AttendError


def device_of(machine: MachineConfig) -> torch.device:
    """The device of the config, with its number of threads set; AttendError for a GPU that is not there."""
    if machine.threads:
        torch.set_num_threads(machine.threads)
    if machine.device == "cuda" and not torch.cuda.is_available():
        raise AttendError("machine.device: cuda: this machine has no GPU that torch can use: set machine.device=auto")
    if machine.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(machine.device)
