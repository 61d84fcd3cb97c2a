"""Grids of pictures that a workspace has, from which its models caption without their backbone."""

from __future__ import annotations

from pathlib import Path

from tasks.common.log import log
from tasks.grids.identity import Identity
from tasks.grids.index import IDENTITY
from tasks.grids.reader import GridReader
from tasks.grids.store import GridStore
from tasks.pipeline.workspace import Workspace
from tasks.registry.versions import key_of_grids


def cached_grids(address: str, workspace: Path) -> GridReader | None:
    """Return a reader, by the SHA-256 of a photograph, of the grids that a version's backbone made in this workspace.

    address: of the version, `models:/NAME/VERSION`. None where there are none: the version was made elsewhere, its
    artifacts were removed, or the workspace's grids are in object storage, from where a shard takes longer than
    encoding the picture.
    """
    key = key_of_grids(address, workspace)
    if key is None:
        return None
    place = Workspace(workspace)
    identity = place.folder("extract", key) / IDENTITY
    if not identity.is_file():
        return None
    store = GridStore(place.grids, Identity.read(identity))
    if store.remote is not None:
        return None
    rows, damages = store.rows()
    for damage in damages:
        log.warning(f"{damage}: its pictures are encoded again")
    return GridReader(store, rows) if rows else None
