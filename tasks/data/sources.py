"""What a data set consists of, as digests: the inputs of stage `ingest`. Imports nothing heavy, for `attend status`."""

from __future__ import annotations

from pathlib import Path

from tasks.config.schema import MachineConfig
from tasks.datasets.base import DatasetOptions, find_pictures
from tasks.pipeline.file_digests import Digests
from tasks.pipeline.ledger import digest_of


def digests_of(data: DatasetOptions, machine: MachineConfig) -> dict[str, str]:
    """Return the content digests of a data set's annotation files and of all pictures in its folder, by name."""
    files = data.annotation_files()
    if not files:
        return {}
    workspace = machine.folder
    store = Digests(workspace / "digests.sqlite")
    if data.unpacks:
        digests = store.of(files)
        return {"annotations": digest_of([[path.name, digests[path]] for path in files])}
    folder = data.image_folder(Path())
    digests, found = store.of(files), find_pictures(folder, without=workspace)
    return {
        "annotations": digest_of([[path.name, digests[path]] for path in files]),
        "photographs": store.of_pictures(folder, [picture for picture in found if _is_utf8(picture.name)]),
    }


def _is_utf8(name: str) -> bool:
    """Whether annotations, which are UTF-8, can name it: a file that they cannot name is none of theirs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
