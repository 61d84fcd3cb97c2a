"""Grids of pictures in a workspace, from which its models caption without their backbone."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.common.errors import reason_of
from tasks.common.log import log
from tasks.grids.identity import Identity
from tasks.grids.index import IDENTITY, INDEX
from tasks.grids.reader import GridReader
from tasks.grids.store import GridStore
from tasks.mlflow_store.versions import key_of_grids
from tasks.pipeline.workspace import Workspace


def cached_grids(address: str, workspace: Path, digests: Collection[str]) -> GridReader | None:
    """Return a reader of the grids in this workspace that a version's backbone extracted from these photographs.

    address: of the version, `models:/NAME/VERSION`. digests: SHA-256 of the photographs; only the shards with their
    grids are opened. None if there are no grids: the version was trained elsewhere, its artifacts were removed, or the
    workspace's grids are in object storage, where fetching a shard takes longer than encoding the picture.
    """
    key = key_of_grids(address, workspace)
    if key is None:
        return None
    opened_workspace = Workspace(workspace)
    identity = opened_workspace.folder("extract", key) / IDENTITY
    if not identity.is_file():
        return None
    store = GridStore(opened_workspace.grids, Identity.read(identity))
    if store.remote is not None:
        return None
    rows, damages = store.rows(only=_shards_with(digests, identity))
    for damage in damages:
        log.warning(f"{damage}: its pictures are encoded again")
    rows_to_read = {digest: rows[digest] for digest in digests if digest in rows}
    return GridReader(store, rows_to_read) if rows_to_read else None


def _shards_with(digests: Collection[str], identity: Path) -> set[int]:
    """Return the numbers of the shards with these pictures' grids, from the indexes of all artifacts of an identity.

    identity: the identity's file in one of these artifacts.
    """
    text, condition = identity.read_bytes(), pc.field("digest").isin(list(digests))
    numbers: set[int] = set()
    for other in identity.parent.parent.glob(f"*/{IDENTITY}"):
        try:
            if other.read_bytes() == text:
                table = pq.read_table(other.with_name(INDEX), columns=["shard"], filters=condition)
                numbers |= set(table["shard"].to_pylist())
        except (OSError, pa.ArrowException) as error:  # damaged, or removed in the meantime
            log.warning(f"{other.with_name(INDEX)}: is not used: {reason_of(error)}")
    return numbers
