"""The facts that decide between champion and challenger: a version's gates, and its comparison with the champion.

Each function is a step of a registration (see register_captioner.py). champion_rule.py decides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.captioner.load_bundle import FORMAT, is_intact
from tasks.captioner.runtimes import caption_alike
from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.config.devices import device_of
from tasks.config.schema import Config
from tasks.data.manifest import sources_by_digest
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions
from tasks.evaluation.score_record import ScoreRecord
from tasks.evaluation.self_retrieval import self_retrieval
from tasks.grids.index import open_grids
from tasks.mlflow_store.logged_model import bundle_of, load_captioner, runtimes_of
from tasks.mlflow_store.tracking import is_embedded, is_in_workspace
from tasks.mlflow_store.version_pictures import VersionPictures, pictures_table
from tasks.mlflow_store.versions import (
    address_of,
    download_version_predictions,
    files_of,
    scored_on_same,
    version_with_alias,
)
from tasks.registry.champion_rule import Match, grown
from tasks.registry.comparison import ModelComparison, side_by_side
from tasks.registry.gates import GateResult, gate_results
from tasks.registry.promotion import FAILED_GATES
from tasks.training.outputs import load_decoder

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def champion_to_beat(client: MlflowClient, model: str, workspace: Path) -> tuple[ModelVersion | None, str]:
    """Return the champion, or None if none has intact files, and the reason for making the next version champion."""
    champion = version_with_alias(client, model, "champion")
    flaw = None if champion is None else flaw_of(client, champion, workspace)
    if champion is None or flaw is None:
        return champion, "it is the first"
    return None, f"the files of {label(champion)} are {flaw}"


def flaw_of(client: MlflowClient, version: ModelVersion, workspace: Path) -> str | None:
    """Return what is wrong with the files of a version in the embedded store: their location or their content."""
    if not is_embedded():
        return None  # a server's files may be only temporarily unavailable
    files = files_of(client, version)
    if files is None:  # registered by another program, so nothing is known about its files
        return None
    if not is_in_workspace(str(files), workspace):
        return "not in this workspace"
    try:
        folders = [files / "artifacts" / bundle_of(name) for name in runtimes_of(address_of(version), files)]
    except AttendError:
        return "damaged"
    if not all(map(is_intact, folders)):
        return "damaged"
    config = json.loads((folders[0] / "config.json").read_text(encoding="utf-8"))
    return None if config.get("format") == FORMAT else "of another version of attend"


def match_with(
    champion: ModelVersion,
    scores: ScoreRecord,
    config: Config,
    artifacts: CaptionerArtifacts,
    client: MlflowClient,
    scratch: Path,
    champion_pictures: VersionPictures | None,
) -> Match:
    """Compare the champion with the version evaluated in `scores`, on that version's pictures.

    Each is compared with the search that it captions with. The champion's captions come from its run if it was scored
    on these pictures; otherwise it captions them now. champion_pictures: the pictures that the champion was trained on.
    """
    predictions = None
    if scored_on_same(champion, scores):
        predictions = download_version_predictions(client, champion, scratch / "kept")
    if predictions is None:
        name = f"{champion.name} version {champion.version}"
        log.info(f"register: {name} was scored on other pictures; it captions these now")
        predictions = scratch / "champion.parquet"
        captioner = load_captioner(address_of(champion), files_of(client, champion), "torch")
        caption_alike(captioner, name, config, artifacts, predictions)
    now = VersionPictures.of(pictures_table(artifacts.manifest.path))
    before = None if champion_pictures is None else champion_pictures.train
    predictions_file = artifacts.scores.path / PREDICTIONS
    comparison = side_by_side(predictions, predictions_file, config.evaluation.metrics, {*now.train, *(before or ())})
    return Match(label(champion), comparison, grown(before, now.train))


def run_gates(config: Config, artifacts: CaptionerArtifacts, comparison: ModelComparison | None) -> list[GateResult]:
    """Return the results of the gates for the evaluated captions.

    comparison: the champion (first) and the version (second); None if there is no champion.
    """
    captions = read_predictions(artifacts.scores.path / PREDICTIONS)
    pairs = None if comparison is None else comparison.captions or None
    sources = sources_by_digest(artifacts.manifest.path, config.data)
    is_compared = config.registry.min_over_copied is not None
    copied = read_predictions(artifacts.scores.path / PREDICTIONS, "copied") if is_compared else None
    return gate_results(config.registry, captions, pairs, lambda: _retrieved(config, artifacts), sources, copied)


def _retrieved(config: Config, artifacts: CaptionerArtifacts) -> npt.NDArray[np.bool_]:
    """Return which of the evaluated captions are likelier for their own picture than for others."""
    device = device_of(config.machine)
    decoder, _ = load_decoder(artifacts.decoder.path)
    table = pq.read_table(artifacts.scores.path / PREDICTIONS, columns=["digest", "tokens"])
    captions = [(row["digest"], row["tokens"]) for row in table.to_pylist()]
    return self_retrieval(decoder.to(device).eval(), open_grids(artifacts.grids, config.machine), captions, device)


def tag_gates(client: MlflowClient, version: ModelVersion, gates: list[GateResult]) -> list[str]:
    """Write the gates' results into a version's tags, and return a sentence for each gate that it fails."""
    for result in gates:
        client.set_model_version_tag(version.name, version.version, f"attend.gate.{result.name}", str(result))
    failed = [str(result) for result in gates if result.refused]
    if failed:
        client.set_model_version_tag(version.name, version.version, FAILED_GATES, json.dumps(failed))
    elif FAILED_GATES in version.tags:
        client.delete_model_version_tag(version.name, version.version, FAILED_GATES)
    return failed


def label(version: ModelVersion) -> str:
    """Return the name of a version in messages."""
    return f"version {version.version}"
