"""Load a captioner from its bundle with the code saved there; this file needs neither MLflow nor torch.

A captioner of another format, written by another version of attend, is refused.
"""

from __future__ import annotations

import io
import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from tasks.captioner.copied_loader import DIGEST, digest_of_files
from tasks.common.errors import AttendError

FORMAT = 4  # of config.json: raise it if this program can no longer use earlier captioners
ORIGIN = "origin.json"  # in an exported folder: the version that was exported
LOADER = "load.py"  # in a bundle: the code that loads it


class LoadedBundle(NamedTuple):
    """A captioner, and the module `requests` of its saved code, which answers requests for it."""

    captioner: Any
    requests: Any


def stored_digest(folder: Path) -> str:
    """Return the digest in a bundle's bundle.json.

    Raises OSError, ValueError, KeyError or TypeError if there is none.
    """
    return str(json.loads((folder / DIGEST).read_text(encoding="utf-8"))["digest"])


def is_intact(folder: Path) -> bool:
    """Return whether a bundle's files match the digest in its bundle.json, which is also checked when it is loaded.

    Raises OSError if a file cannot be read.
    """
    try:
        return stored_digest(folder) == digest_of_files(folder)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def load_bundle(folder: Path, shown: str) -> LoadedBundle:
    """Load the captioner of a bundle's folder. shown: the model's name, for messages.

    Raises AttendError if files are missing or damaged, or need a package that is not installed.
    """
    if not ((folder / LOADER).is_file() and (folder / DIGEST).is_file()):
        raise AttendError(f"{shown}: is no whole captioner: {folder} lacks {LOADER} or {DIGEST}")
    try:
        captioner, requests = runpy.run_path(str(folder / LOADER))["load"](folder)
    except (ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{folder}: ")
        raise AttendError(f"{shown}: {reason}") from None
    except ModuleNotFoundError as error:
        raise AttendError(f"{shown}: needs {error.name}, which is not installed: install it") from None
    check_captioner(captioner.config, shown)
    return LoadedBundle(captioner, requests)


def check_bundle(folder: Path, shown: str) -> None:
    """Raise AttendError if another version of attend wrote a bundle. shown: its name, for the message."""
    check_captioner(json.loads((folder / "config.json").read_text(encoding="utf-8")), shown)


def check_captioner(config: Mapping[str, Any], shown: str) -> None:
    """Raise AttendError if another version of attend wrote a captioner.

    config: its config.json. shown: its name, for the message.
    """
    version = config.get("format")
    if version != FORMAT:
        raise AttendError(
            f"{shown}: another version of attend wrote it (format {version or 1}; this one reads {FORMAT}): train it "
            "again, or use the version that wrote it; MLflow captions with a registered one as before"
        )


def example() -> bytes:
    """Return a small PNG, an example of a captioner's input."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize((32, 32)).convert("RGB").save(file, "PNG")
    return file.getvalue()
