"""Log the origin of a run to MLflow: the program's commit, and the pictures that it was trained and scored on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tasks.common.source import commit
from tasks.config.schema import Config
from tasks.data.manifest import read_pictures
from tasks.pipeline.ledger import Artifact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Dataset

_DIGEST = 32  # the maximum number of characters of a digest in MLflow


def pictures_of(manifest: Artifact, config: Config, split: str) -> Dataset:
    """Return the pictures of a split, on which a model was trained or scored, in MLflow's form."""
    from mlflow.entities import Dataset

    captions = sum(len(picture.captions) for picture in read_pictures(manifest.path, split))
    return Dataset(
        name=f"{config.name} {split}",
        digest=manifest.products[split][:_DIGEST],
        source_type="local",
        source=json.dumps({"uri": config.data.place}),
        profile=json.dumps({"pictures": int(manifest.ledger.counts[split]), "captions": captions}),
    )


def source_tags() -> dict[str, str]:
    """Return MLflow's own tags for the program of a run and its commit."""
    tags = {"mlflow.source.name": "attend", "mlflow.source.type": "LOCAL"}
    return tags | ({"mlflow.source.git.commit": commit()} if commit() else {})


def log_pictures(client: MlflowClient, run_id: str, pictures: Dataset, context: str) -> None:
    """Log a data set as an input of a run. context: its purpose, such as training."""
    from mlflow.entities import DatasetInput, InputTag

    client.log_inputs(run_id, datasets=[DatasetInput(pictures, [InputTag("mlflow.data.context", context)])])
