"""The pictures of a version's data set, stored in its run: pictures.parquet (digest, split, number of captions)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.log import log
from tasks.data.manifest import read_pictures
from tasks.datasets.base import SPLITS
from tasks.mlflow_store.versions import EVALUATION, PICTURES, address_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class VersionPictures:
    """The pictures of a version's data set.

    train: digest -> number of captions, of the train split. digests: of all splits.
    """

    train: dict[str, int]
    digests: frozenset[str]

    @classmethod
    def of(cls, table: pa.Table) -> VersionPictures:
        """Return the pictures in a table from `pictures_table`."""
        rows = table.to_pylist()
        train = {row["digest"]: row["captions"] for row in rows if row["split"] == "train"}
        return cls(train, frozenset(row["digest"] for row in rows))


def pictures_table(manifest: Path) -> pa.Table:
    """Return the pictures of a manifest: digest, split and number of captions."""
    rows = [
        {"digest": picture.digest, "split": split, "captions": len(picture.captions)}
        for split in SPLITS
        for picture in read_pictures(manifest, split)
    ]
    schema = pa.schema([("digest", pa.string()), ("split", pa.string()), ("captions", pa.int32())])
    return pa.Table.from_pylist(rows, schema=schema)


def of_run(evaluation: Path) -> VersionPictures | None:
    """Return a version's pictures from the folder of an evaluation in its run; None if the file is missing."""
    path = evaluation / PICTURES
    return VersionPictures.of(pq.read_table(path)) if path.exists() else None


def pictures_of_version(client: MlflowClient, version: ModelVersion, folder: Path) -> VersionPictures | None:
    """Return the pictures of a version's data set; None if its run is missing or does not list them.

    folder: to download the file to.
    """
    from mlflow.exceptions import MlflowException

    evaluation = version.tags.get(EVALUATION)
    name = f"{evaluation}/{PICTURES}"
    try:
        if evaluation is None or name not in [
            item.path for item in client.list_artifacts(str(version.run_id), evaluation)
        ]:
            return None  # registered by another program
        folder.mkdir(parents=True, exist_ok=True)
        path = client.download_artifacts(str(version.run_id), name, str(folder))
    except MlflowException as error:
        log.warning(f"{address_of(version)}: its run cannot be read ({error}): what is new since it is not known")
        return None
    return VersionPictures.of(pq.read_table(path))
