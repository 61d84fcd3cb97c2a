"""The folder of an exported captioner: its graphs, the code that runs them, and a page that documents them."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

from models.captioner import Captioner
from models.options import Runtime
from tasks.captioner.bundle import CODE, seal
from tasks.captioner.exported.graphs import export
from tasks.captioner.exported.small_weights import quantise, store_as_float16

# The code that runs the graphs: files of models/ that need no torch.
TORCH_FREE = (
    "__init__.py",
    "captioned.py",
    "confidence.py",
    "deep_pixels.py",
    "encoded_pictures.py",
    "given_grids.py",
    "out_of_memory.py",
    "matcher.py",
    "neighbours.py",
    "ngrams.py",
    "options.py",
    "picture_formats.py",
    "ranking.py",
    "requests.py",
    "search.py",
    "vocabulary.py",
    "decoding_rules.py",
)
REQUIREMENTS = ("onnxruntime", "numpy", "pillow", "simplejpeg")
_PAGE = Path(__file__).with_name("page.md")


def write_exported(captioner: Captioner, folder: Path, runtime: Runtime) -> str:
    """Export a captioner into a new folder that needs only `REQUIREMENTS`, and return the digest of its files.

    runtime: any but torch. Raises AttendError if it cannot be exported.
    """
    export(captioner, folder)
    return complete(folder, runtime)


def complete(folder: Path, runtime: Runtime) -> str:
    """Convert a folder of float32 graphs to a runtime, add the code that runs them, and return its files' digest."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["onnx"]["runtime"] = runtime
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True), encoding="utf-8")
    if runtime == "onnx-float16":
        store_as_float16(folder)
    if runtime == "onnx-int8":
        quantise(folder)
    for name in TORCH_FREE:
        (folder / "models").mkdir(exist_ok=True)
        shutil.copyfile(CODE / name, folder / "models" / name)
    shutil.copytree(CODE / "onnx", folder / "models" / "onnx", ignore=shutil.ignore_patterns("__pycache__"))
    pinned = [f"{name}=={metadata.version(name).split('+')[0]}\n" for name in REQUIREMENTS]
    (folder / "requirements.txt").write_text("".join(pinned), encoding="utf-8")
    shutil.copyfile(_PAGE, folder / "README.md")
    return seal(folder)
