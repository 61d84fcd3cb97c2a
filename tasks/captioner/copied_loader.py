"""The code that loads a bundle: this file is copied into each bundle as load.py, and the copy loads it.

It imports nothing from this project. A bundle's captioner runs from the code in the bundle, under a package name
derived from the bundle's digest, so that two versions in one process each run the code that they were saved with.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

DIGEST = "bundle.json"


def load(folder: Path) -> tuple[Any, Any]:
    """Return the captioner in a bundle's folder, and the bundle's module `requests`.

    A captioner in torch is on the GPU if there is one. Raise ValueError if the files do not match the bundle's digest.
    """
    digest = json.loads((folder / DIGEST).read_text(encoding="utf-8"))["digest"]
    if digest_of_files(folder) != digest:
        raise ValueError(
            f"{folder}: the model's files do not match the digest that they were registered with: they are damaged or "
            "were changed: register or export the model again"
        )
    name = f"attend_{digest[:20]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "models" / "__init__.py", submodule_search_locations=[str(folder / "models")]
        )
        assert spec is not None and spec.loader is not None  # true for a file that ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    else:  # loaded from a folder that may no longer exist
        sys.modules[name].__path__ = [str(folder / "models")]
    requests = importlib.import_module(f"{name}.requests")
    if (folder / "start.onnx").is_file():
        return importlib.import_module(f"{name}.onnx.captioner").OnnxCaptioner(folder), requests
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return importlib.import_module(f"{name}.captioner").Captioner.load(folder, device), requests


def digest_of_files(folder: Path) -> str:
    """Return the SHA-256 (hex) of the names and digests of a bundle's files, except bundle.json and Python's caches."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    hashed = [name for name in names if name.parts != (DIGEST,) and "__pycache__" not in name.parts]
    digests = [[name.as_posix(), _digest_of_file(folder / name)] for name in hashed]
    return hashlib.sha256(json.dumps(digests, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
