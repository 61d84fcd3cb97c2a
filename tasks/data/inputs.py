"""The digests of a data set's files: the inputs of stage `ingest`. Imports nothing heavy, for `attend status`."""

from __future__ import annotations

from pathlib import Path

from tasks.config.machine import MachineConfig
from tasks.datasets.base import DatasetOptions, find_pictures
from tasks.datasets.sources import in_source
from tasks.pipeline.file_digests import Digests
from tasks.pipeline.ledger import digest_of


def digests_of(data: DatasetOptions, machine: MachineConfig) -> dict[str, str]:
    """Return one digest of a data set's annotation files and one of all pictures in its folder, by name.

    For several sources, return those of each. A data set without files has none, and one whose pictures are unpacked
    from the annotation files has none of the pictures.
    """
    store = Digests(machine.folder / "digests.sqlite")
    result: dict[str, str] = {}
    for prefix, part in data.parts().items():
        with in_source(prefix):
            files = part.annotation_files()
            if files:
                digests = store.of(files)
                result[f"{prefix}annotations"] = digest_of([[path.name, digests[path]] for path in files])
            if files and not part.unpacks:
                folder = part.image_folder(Path())
                pictures = [picture for picture in find_pictures(folder) if _is_utf8(picture.name)]
                result[f"{prefix}photographs"] = store.of_pictures(folder, pictures)
    return result


def _is_utf8(name: str) -> bool:
    """Return whether a file name is valid UTF-8: annotations, which are UTF-8, can name no other file."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
