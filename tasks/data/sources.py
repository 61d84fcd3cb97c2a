"""The digests of a data set's files: the inputs of stage `ingest`. Imports nothing heavy, for `attend status`."""

from __future__ import annotations

from pathlib import Path

from tasks.config.machine import MachineConfig
from tasks.datasets.base import DatasetOptions, find_pictures
from tasks.pipeline.file_digests import Digests
from tasks.pipeline.ledger import digest_of


def digests_of(data: DatasetOptions, machine: MachineConfig) -> dict[str, str]:
    """Return one digest of a data set's annotation files and one of all pictures in its folder, by name.

    Empty for a data set without files; without the pictures where these are unpacked from the annotation files.
    """
    files = data.annotation_files()
    if not files:
        return {}
    workspace = machine.folder
    store = Digests(workspace / "digests.sqlite")
    if data.unpacks:
        digests = store.of(files)
        return {"annotations": digest_of([[path.name, digests[path]] for path in files])}
    folder = data.image_folder(Path())
    digests, pictures = store.of(files), find_pictures(folder, without=workspace)
    return {
        "annotations": digest_of([[path.name, digests[path]] for path in files]),
        "photographs": store.of_pictures(folder, [picture for picture in pictures if _is_utf8(picture.name)]),
    }


def _is_utf8(name: str) -> bool:
    """Return whether a file name is valid UTF-8: annotations, which are UTF-8, can name no other file."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
