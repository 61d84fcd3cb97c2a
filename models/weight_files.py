"""Files of weights in safetensors' format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a file that has the permissions of any new file.

    Safetensors' own `save_file` lets nobody but the owner read what it writes, whatever the umask.
    """
    path.write_bytes(safetensors.torch.save({name: value.contiguous().cpu() for name, value in tensors.items()}))
