"""Which work is recorded in graphs on this machine."""

from __future__ import annotations

import torch

from models.graphs import Graphs, cuda_graphs
from tasks.config.machine import MachineConfig
from tasks.pipeline import distributed as processes


def graphs_for(machine: MachineConfig, device: torch.device) -> Graphs | None:
    """Return what makes graphs where `machine.compile` asks for them and the device has them; None otherwise.

    Where several processes train together, there are none: their exchange of gradients is not recorded.
    """
    if not machine.compile or device.type == "cpu" or processes.size() > 1:
        return None
    return cuda_graphs(device)
