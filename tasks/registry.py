"""Stage `register`, and the registered models. This file and tracking.py are the only ones that speak to MLflow.

A registered version is a self-contained bundle (see bundle.py); `champion` is the alias of the best one, and is
moved only by a better score on the same evaluation data.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from tasks.config import (
    CaptionsConfig,
    DecoderConfig,
    EvaluationConfig,
    GridsConfig,
    MachineConfig,
    RegistryConfig,
    TrainingConfig,
    TuningConfig,
)
from tasks.datasets.base import DatasetOptions
from tasks.errors import AttendError
from tasks.ledger import Artifact, Outcome, Work, Workspace, digest_of
from tasks.progress import say
from tasks.section import Section
from tasks.tracking import TRAIN_KEY, TrainingLog, log_scores, params_of, tracking_uri, training_log

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

REGISTRATION = "registration.json"
_KEY = "attend.key"
_SAMPLES = 4
_REQUIREMENTS = ("mlflow", "torch", "torchvision", "torchcodec", "safetensors", "pillow", "numpy", "pandas")


def register(
    registry: RegistryConfig,
    data: DatasetOptions,
    grids: GridsConfig,
    captions: CaptionsConfig,
    decoder: DecoderConfig,
    training: TrainingConfig,
    tuning: TuningConfig | None,
    evaluation: EvaluationConfig,
    machine: MachineConfig,
    work: Work,
) -> Outcome:
    """Log the trained model with its history, scores and samples, register it, and decide who is champion."""
    from tasks.bundle import make_captioner, write_bundle

    workspace = machine.workspace.expanduser().absolute()
    trained, evaluated = work.upstream["train"], work.upstream["evaluate"]
    scores = json.loads((evaluated.path / "scores.json").read_text(encoding="utf-8"))
    sections: dict[str, Section] = {
        "data": data,
        "grids": grids,
        "captions": captions,
        "decoder": decoder,
        "training": training,
    }
    if tuning is not None:
        sections["tuning"] = tuning
    params = params_of(sections, _files_behind(work.upstream))
    with (
        Workspace(workspace).lock(f"registry-{registry.model}", f"registration of {registry.model}"),
        training_log(workspace, registry.model, trained.ledger.key, params) as log,
        work.scratch() as scratch,
    ):
        for row in pq.read_table(trained.path / "history.parquet").to_pylist():
            log.epoch(row)
        version = _version_with_key(log.client, registry.model, work.key)
        if version is None:
            captioner = make_captioner(grids, evaluation, work.upstream)
            bundle = scratch / "bundle"
            digest = write_bundle(captioner, bundle)
            _log_files(log, work, scores)
            _log_samples(log, captioner, work, data, scratch)
            _drop_unregistered(log, registry.model)
            source = _log_model(log.run_id, bundle, ("timm",) if grids.backbone.startswith("timm:") else ())
            version = _create_version(log, registry.model, source, work, scores, digest)
        alias, why = _promote(log.client, registry, version, scores, data, evaluation, work)
    uri = f"models:/{registry.model}/{version.version}"
    told = {"model": registry.model, "version": version.version, "alias": alias, "why": why, "uri": uri}
    told |= {"store": tracking_uri(workspace), "run_id": log.run_id}
    (work.out / REGISTRATION).write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
    return Outcome({"version": digest_of([registry.model, version.version])}, {"version": int(version.version)}, [why])


def _files_behind(made: Mapping[str, Artifact]) -> dict[str, str]:
    """What came from outside beside the data set, for MLflow: backbone weights and word vectors."""
    given = {"grids.weights": made["extract"].ledger.parts["inputs"]["weights"]}
    vectors = made["train"].ledger.parts["inputs"]
    return given | {f"decoder.{name}": digest for name, digest in vectors.items()}


def _version_with_key(client: MlflowClient, model: str, key: str) -> ModelVersion | None:
    found = client.search_model_versions(f"name = '{model}'")
    return next((version for version in found if version.tags.get(_KEY) == key), None)


def _log_files(log: TrainingLog, work: Work, scores: dict[str, Any]) -> None:
    log_scores(log.client, log.run_id, scores["scores"])
    log.client.set_tag(log.run_id, "attend.signature", scores["signature"])
    places = {
        "train": (("weights.safetensors", "checkpoints"), ("last.safetensors", "checkpoints"), ("history.parquet", "")),
        "evaluate": (("predictions.parquet", ""), ("scores.json", "")),
        "tensorise": (("vocabulary.json", ""),),
        "tune": (("history.parquet", "tune"),),
    }
    for stage, files in places.items():
        if stage not in work.upstream:
            continue
        for file, folder in files:
            log.client.log_artifact(log.run_id, str(work.upstream[stage].path / file), folder or None)


def _log_samples(log: TrainingLog, captioner: Any, work: Work, data: DatasetOptions, scratch: Path) -> None:
    """A few evaluated pictures with their captions and where the model looked."""
    from models.photographs import decode
    from tasks.attention_maps import draw
    from tasks.manifest import GENERATED, files_of

    manifest = work.upstream["ingest"].path
    files = files_of(manifest, data.image_folder(manifest / GENERATED))
    digests = pq.read_table(work.upstream["evaluate"].path / "predictions.parquet").column("digest").to_pylist()
    photographs = {digest: files[digest].read_bytes() for digest in digests[:_SAMPLES]}
    captioned = captioner.caption(list(photographs.values()), attention=captioner.attends)
    for (digest, photograph), item in zip(photographs.items(), captioned, strict=True):
        if item.tokens and item.attention is not None:
            path = scratch / f"{digest[:12]}.png"
            draw(decode(photograph), item.tokens, item.attention.numpy(), captioner.config["backbone"]["fit"]).savefig(
                path
            )
            log.client.log_artifact(log.run_id, str(path), "samples")


def _log_model(run_id: str, bundle: Path, libraries: tuple[str, ...] = ()) -> str:
    """Log the bundle as a pyfunc model, from code, and return its `models:/m-...` address.

    libraries: what its backbone needs beside the usual.
    """
    requirements = (*_REQUIREMENTS, *libraries)
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.binary, "image")]),
        outputs=Schema([ColSpec(DataType.string, "caption"), ColSpec(DataType.double, "log_probability")]),
        params=ParamSchema(
            [
                ParamSpec("beam_size", DataType.long, 0),
                ParamSpec("max_length", DataType.long, 0),
                ParamSpec("n_best", DataType.long, 0),
                ParamSpec("return_attention", DataType.boolean, False),
            ]
        ),
    )
    with mlflow.start_run(run_id=run_id):
        info = mlflow.pyfunc.log_model(
            name="captioner",
            python_model=str(Path(__file__).with_name("registered_model.py")),
            artifacts={"bundle": str(bundle)},
            signature=signature,
            pip_requirements=[f"{name}=={metadata.version(name).split('+')[0]}" for name in requirements],
        )
    return str(info.model_uri)


def _drop_unregistered(log: TrainingLog, model: str) -> None:
    """Delete what a killed registration logged of this run and did not come to register."""
    experiment = log.client.get_run(log.run_id).info.experiment_id
    registered = {version.source for version in log.client.search_model_versions(f"name = '{model}'")}
    for logged in log.client.search_logged_models([experiment], f"source_run_id = '{log.run_id}'"):
        if f"models:/{logged.model_id}" not in registered:
            log.client.delete_logged_model(logged.model_id)
            place = urlsplit(logged.artifact_location)
            if place.scheme == "file":
                shutil.rmtree(place.path, ignore_errors=True)


def _create_version(
    log: TrainingLog, model: str, source: str, work: Work, scores: dict[str, Any], digest: str
) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):  # it exists already
        log.client.create_registered_model(model)
    tags = {
        _KEY: work.key,
        TRAIN_KEY: work.upstream["train"].ledger.key,
        "attend.bundle": digest,
        "attend.data": scores["data"],
        "attend.signature": scores["signature"],
        **{f"score.{name}": repr(value) for name, value in scores["scores"].items()},
    }
    return log.client.create_model_version(
        model, source, log.run_id, tags=tags, model_id=source.removeprefix("models:/")
    )


def _promote(
    client: MlflowClient,
    registry: RegistryConfig,
    version: ModelVersion,
    scores: dict[str, Any],
    data: DatasetOptions,
    evaluation: EvaluationConfig,
    work: Work,
) -> tuple[str, str]:
    """Give the version its alias: champion where it beats the champion on these pictures, else challenger."""
    metric, mine = registry.promote_on, scores["scores"][registry.promote_on]
    champion = version_with_alias(client, registry.model, "champion")
    name = f"version {version.version}"
    if champion is not None and champion.version == version.version:
        return "champion", f"{name} is champion ({metric} {mine:.2f})"
    if champion is None:
        alias, why = "champion", f"{name} is champion: the first ({metric} {mine:.2f})"
    else:
        theirs = _score_of(champion, metric, scores, data, evaluation, work)
        alias = "champion" if mine > theirs else "challenger"
        verdict = "beats" if mine > theirs else "does not beat"
        why = f"{name} is {alias}: {metric} {mine:.2f} {verdict} the {theirs:.2f} of version {champion.version}"
        if alias == "champion":
            client.set_registered_model_alias(registry.model, "previous", champion.version)
    client.set_registered_model_alias(registry.model, alias, version.version)
    client.set_model_version_tag(registry.model, version.version, "attend.decision", why)
    return alias, why


def _score_of(
    champion: ModelVersion,
    metric: str,
    scores: dict[str, Any],
    data: DatasetOptions,
    evaluation: EvaluationConfig,
    work: Work,
) -> float:
    """The champion's score on the same pictures and settings: as recorded, or else taken now, from photographs."""
    tags = champion.tags
    same = tags.get("attend.data") == scores["data"] and tags.get("attend.signature") == scores["signature"]
    if same and f"score.{metric}" in tags:
        return float(tags[f"score.{metric}"])
    from tasks.captions import read_vocabulary
    from tasks.rescoring import rescore

    name = f"{champion.name} version {champion.version}"
    say(f"register: {name} was scored on other pictures or settings; scoring it on these")
    captioner = load_bundle(f"models:/{champion.name}/{champion.version}")
    with work.scratch() as scratch:
        found = rescore(
            captioner,
            name,
            work.upstream["ingest"],
            data,
            read_vocabulary(work.upstream["tensorise"].path),
            evaluation,
            scratch / "predictions.parquet",
            pq.read_table(work.upstream["evaluate"].path / "predictions.parquet").column("digest").to_pylist(),
        )
    return float(found["scores"][metric])


def version_with_alias(client: MlflowClient, model: str, alias: str) -> ModelVersion | None:
    """The version that bears an alias; None where there is none yet."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(model, alias)
    except MlflowException as error:
        # A missing alias and a missing model are told apart by code, and differently by different stores.
        if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
            return None
        raise


def version_at(client: MlflowClient, address: str) -> ModelVersion:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names; AttendError where there is none."""
    from mlflow.exceptions import MlflowException

    path = address.removeprefix("models:/")
    name, at, alias = path.partition("@")
    try:
        if at:
            return client.get_model_version_by_alias(name, alias)
        name, _, version = path.partition("/")
        return client.get_model_version(name, version)
    except MlflowException as error:
        raise AttendError(f"{address}: no such model: {' '.join(str(error).split())[:160]}") from None


def load_bundle(uri: str) -> Any:
    """The Captioner of a registered model, by its own code; AttendError where the address names none."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        model = mlflow.pyfunc.load_model(uri)
    except (MlflowException, OSError) as error:
        raise AttendError(
            f"{uri}: no such model in {mlflow.get_tracking_uri()}: {' '.join(str(error).split())[:160]}"
        ) from None
    return model.unwrap_python_model()._captioner


@dataclass(frozen=True)
class Registered:
    """A registered model and who its champion is."""

    name: str
    champion: str | None


def registered_models(client: MlflowClient) -> list[Registered]:
    """The registered models, newest first."""
    found = client.search_registered_models(order_by=["last_updated_timestamp DESC"])
    return [Registered(model.name, client.get_registered_model(model.name).aliases.get("champion")) for model in found]
