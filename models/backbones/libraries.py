"""The import of torchvision without torch's compiler."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from types import ModuleType

_COMPILER = "torch._dynamo.utils"


def import_torchvision() -> None:
    """Import torchvision, unless it is loaded already, without `torch._dynamo`, which takes five times as long.

    torchvision's detection operators take one function from there, which they call only where deterministic algorithms
    are asked for on a GPU. A stand-in of it, which loads the compiler once it is called, is in its place while
    torchvision is imported. Where torchvision is not as this expects, the next import loads it in the usual way.
    """
    if "torchvision" in sys.modules or _COMPILER in sys.modules or threading.active_count() > 1:
        return  # another thread might import the compiler meanwhile

    def is_compile_supported(device_type: str) -> bool:
        return bool(importlib.import_module(_COMPILER).is_compile_supported(device_type))

    stand_in = ModuleType(_COMPILER)
    vars(stand_in)["is_compile_supported"] = is_compile_supported
    sys.modules[_COMPILER] = stand_in
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("torchvision")
    finally:
        del sys.modules[_COMPILER]
