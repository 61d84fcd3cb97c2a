"""Whether a new version becomes champion or challenger: what the gates find in it, and how it compares to the champion.

Each function is a step of a registration (see register_captioner.py); promotion.py sets the aliases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.config.devices import device_of
from tasks.config.schema import Config
from tasks.config.stages import RegistryConfig
from tasks.data.manifest import sources_by_digest
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions, was_trained_on
from tasks.evaluation.score_record import ScoreRecord
from tasks.evaluation.self_retrieval import self_retrieval
from tasks.grids.index import open_grids
from tasks.registry.bundle import is_whole
from tasks.registry.captioner_artifacts import CaptionerArtifacts
from tasks.registry.comparable_captions import caption_alike
from tasks.registry.gates import GateResult, gate_results
from tasks.registry.logged_model import bundle_of, load_captioner, runtimes_of
from tasks.registry.promotion import (
    GATE_REFUSAL,
    ModelComparison,
    PromotionRule,
    make_challenger,
    make_champion,
    promote,
    was_rolled_back,
)
from tasks.registry.tracking import is_embedded, is_in_workspace
from tasks.registry.versions import address_of, download_version_predictions, files_of, scored_alike, version_with_alias
from tasks.training.outputs import load_ensemble

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def champion_to_beat(client: MlflowClient, model: str, workspace: Path) -> tuple[ModelVersion | None, str]:
    """Return the champion; None where there is none, or none whose files are whole, with why the next is champion."""
    champion = version_with_alias(client, model, "champion")
    flaw = None if champion is None else flaw_of(client, champion, workspace)
    if champion is None or flaw is None:
        return champion, "it is the first"
    return None, f"the files of {label(champion)} are {flaw}"


def flaw_of(client: MlflowClient, version: ModelVersion, workspace: Path) -> str | None:
    """Return what is wrong with the files of a version of the embedded store: where they are, or what is in them."""
    if not is_embedded():
        return None  # a server that does not give them now may do so in a minute
    files = files_of(client, version)
    if files is None:  # of another program: nothing is known of its files
        return None
    if not is_in_workspace(str(files), workspace):
        return "not in this workspace"
    try:
        folders = [files / "artifacts" / bundle_of(name) for name in runtimes_of(files)]
    except AttendError:
        return "damaged"
    return None if all(map(is_whole, folders)) else "damaged"


def predictions_of_champion(
    champion: ModelVersion,
    scores: ScoreRecord,
    config: Config,
    artifacts: CaptionerArtifacts,
    client: MlflowClient,
    scratch: Path,
) -> Path:
    """Return the path of the champion's predictions on the same pictures with the same settings as `scores`.

    They come from the champion's run where it has them; else the champion captions the pictures now.
    """
    if scored_alike(champion, scores):
        stored = download_version_predictions(client, champion, scratch / "kept")
        if stored is not None:
            return stored

    name = f"{champion.name} version {champion.version}"
    log.info(f"register: {name} was scored on other pictures or settings; scoring it on these")
    captioner = load_captioner(address_of(champion), runtime="torch")
    predictions = scratch / "champion.parquet"
    caption_alike(captioner, name, config, artifacts, predictions)
    return predictions


def run_gates(config: Config, artifacts: CaptionerArtifacts, comparison: ModelComparison | None) -> list[GateResult]:
    """Return what the gates found in the evaluated captions.

    comparison: the champion (first) and the version (second); None where there is no champion.
    """
    captions = read_predictions(artifacts.scores.path / PREDICTIONS)
    pairs = None if comparison is None else comparison.captions
    sources = sources_by_digest(artifacts.manifest.path, config.data)
    return gate_results(config.registry, captions, pairs, lambda: _retrieved(config, artifacts), sources)


def _retrieved(config: Config, artifacts: CaptionerArtifacts) -> npt.NDArray[np.bool_]:
    """Return which of the evaluated captions are likelier for their own picture than for others."""
    device = device_of(config.machine)
    decoder, _ = load_ensemble(artifacts.decoder.path, config.evaluation.ensemble)
    table = pq.read_table(artifacts.scores.path / PREDICTIONS, columns=["digest", "tokens"])
    captions = [(row["digest"], row["tokens"]) for row in table.to_pylist()]
    return self_retrieval(decoder.to(device).eval(), open_grids(artifacts.grids, config.machine), captions, device)


def tag_gates(client: MlflowClient, version: ModelVersion, gates: list[GateResult]) -> str | None:
    """Write what the gates found into a version's tags, and return why they refuse it; None where they let it pass.

    gates: none where the version is the champion already, whose tags stay.
    """
    for result in gates:
        client.set_model_version_tag(version.name, version.version, f"attend.gate.{result.name}", str(result))
    refusal = "; ".join(str(result) for result in gates if result.refused)
    if refusal:
        client.set_model_version_tag(version.name, version.version, GATE_REFUSAL, refusal)
    elif GATE_REFUSAL in version.tags:
        client.delete_model_version_tag(version.name, version.version, GATE_REFUSAL)
    return refusal or None


def decide(
    client: MlflowClient,
    registry: RegistryConfig,
    version: ModelVersion,
    champion: ModelVersion | None,
    comparison: ModelComparison | None,
    scores: ScoreRecord,
    why_first: str,
    refusal: str | None,
) -> tuple[str, str]:
    """Decide whether a version becomes champion; return its alias and the reason.

    comparison: the champion (first) and the version (second); None where the version is the champion, or the first.
    why_first: why a version without a champion to compare with becomes champion. refusal: why no gate lets it.
    """
    obstacle = refusal
    if was_trained_on(scores):
        obstacle = "its scores are of pictures it was trained on: set evaluation.split to dev or test"
    if obstacle is not None and (champion is None or comparison is not None):
        return "challenger", make_challenger(client, version, f"{label(version)} is challenger: {obstacle}")
    if champion is None:
        return "champion", make_champion(client, version, f"{label(version)} is champion: {why_first}")
    if comparison is None:
        return "champion", f"{label(version)} is champion"
    if was_rolled_back(client, version):
        why = f"{label(version)} was champion and was rolled back: `attend models promote` makes it champion again"
        return "challenger", why
    if registry.promote_on not in scores["scores"]:
        why = f"{registry.promote_on} is not applicable to these captions: set registry.promote_on to another score"
        return "challenger", make_challenger(client, version, f"{label(version)} is challenger: {why}")
    rule = PromotionRule(registry.promote_on, registry.certainty, registry.min_pictures)
    return promote(client, version, champion, comparison, rule)


def label(version: ModelVersion) -> str:
    """Return how messages name a version."""
    return f"version {version.version}"
