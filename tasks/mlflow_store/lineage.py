"""Log the origin of a run to MLflow: the program's commit, and the pictures that it was trained and scored on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.common.source import commit
from tasks.config.schema import Config
from tasks.data.manifest import read_pictures
from tasks.pipeline.ledger import Artifact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class LoggedPictures:
    """Pictures that a model was trained or scored on, as MLflow records them.

    name: of the data set and its split. digest: of the pictures and their captions. source: where they were read.
    """

    name: str
    digest: str
    source: str
    counts: dict[str, int]

    @property
    def short_digest(self) -> str:
        """Return the digest as far as MLflow takes one."""
        return self.digest[:32]


def pictures_of(manifest: Artifact, config: Config, split: str) -> LoggedPictures:
    """Return the pictures of a split, as MLflow records them."""
    captions = sum(len(picture.captions) for picture in read_pictures(manifest.path, split))
    counts = {"pictures": int(manifest.ledger.counts[split]), "captions": captions}
    return LoggedPictures(f"{config.name} {split}", manifest.products[split], config.data.place, counts)


def source_tags() -> dict[str, str]:
    """Return MLflow's own tags for the program that a run is of, and its commit."""
    tags = {"mlflow.source.name": "attend", "mlflow.source.type": "LOCAL"}
    return tags | ({"mlflow.source.git.commit": commit()} if commit() else {})


def log_model_scores(
    client: MlflowClient, run_id: str, scores: Mapping[str, float], model_id: str | None, pictures: LoggedPictures
) -> None:
    """Log the scores of a logged model on a data set, so that MLflow compares models by them.

    run_id: of the evaluation. pictures: those that were captioned. model_id: None for a version of no logged model.
    """
    from mlflow.entities import Metric

    log_pictures(client, run_id, pictures, "evaluation")
    now = int(time.time() * 1000)
    metrics = [
        Metric(name, value, now, 0, model_id, pictures.name, pictures.short_digest, run_id)
        for name, value in scores.items()
    ]
    client.log_batch(run_id, metrics=metrics)


def log_pictures(client: MlflowClient, run_id: str, pictures: LoggedPictures, context: str) -> None:
    """Log a data set as an input of a run. context: what it is for, such as training."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    data = Dataset(
        name=pictures.name,
        digest=pictures.short_digest,
        source_type="local",
        source=json.dumps({"uri": pictures.source}),
        profile=json.dumps(pictures.counts),
    )
    client.log_inputs(run_id, datasets=[DatasetInput(data, [InputTag("mlflow.data.context", context)])])


def version_tag(version: ModelVersion) -> dict[str, str]:
    """Return the tag by which MLflow's pages list a logged model with the version that was registered of it."""
    return {"mlflow.modelVersions": json.dumps([{"name": version.name, "version": version.version}])}
