"""Compare registered versions on the same held-out pictures, and promote one to champion or roll it back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.pipeline import build_pipeline
from flows.registered.evaluate import evaluate_registered
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.config.stages import RegistryConfig
from tasks.data.manifest import files_by_digest
from tasks.evaluation.caption_and_score import PREDICTIONS, read_predictions, was_trained_on
from tasks.evaluation.cards import cards_of
from tasks.evaluation.comparison_page import CURVES, Column, pictures_to_show, write_comparison
from tasks.metrics import METRICS, ScoredCaption
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.runs import dev_scores
from tasks.mlflow_store.version_pictures import pictures_of_version
from tasks.mlflow_store.versions import (
    address_of,
    download_predictions,
    download_version_predictions,
    files_of,
    number,
    scores_of,
    version_of_address,
    version_with_alias,
)
from tasks.pipeline.plan import Plan
from tasks.pipeline.workspace import Workspace
from tasks.registry import promotion
from tasks.registry.champion_rule import Candidate, Decision, Match, decide, grown
from tasks.registry.comparison import ModelComparison, side_by_side

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class VersionsCompared:
    """Versions compared on the same pictures.

    names: of the versions, such as `photos/3`. captions: digest of a picture -> the caption and references of each
    version. against_first: each version after the first, compared with the first.
    """

    names: list[str]
    captions: dict[str, list[ScoredCaption]]
    against_first: list[ModelComparison]


def compare_versions(
    workspace: Path, addresses: Sequence[str], on: Config | None = None, page: Path | None = None
) -> VersionsCompared:
    """Compare each version after the first with the first, by the captions from their evaluation.

    addresses: two or more of `models:/NAME@ALIAS` or `models:/NAME/VERSION`. on: a config; all versions are then
    scored on its held-out pictures. page: an HTML file for the comparison, with the photographs of `on`. Raises
    AttendError if the versions were scored on different pictures or settings and `on` is None.
    """
    if page is not None and (on is None or on.data.has_grids):
        raise AttendError("--page: needs --on CONFIG, whose photographs it shows; a data set of grids has none")
    if page is not None and not page.parent.is_dir():
        raise AttendError(f"--page: {page.parent}: no such folder")
    if len(addresses) < 2:
        raise AttendError(f"{' '.join(addresses)}: give two versions or more, such as models:/photos@champion")
    client = tracking.connect(workspace, must_exist=True)
    versions = [version_of_address(client, address) for address in addresses]
    names = [f"{version.name}/{version.version}" for version in versions]
    result = _compare(client, versions, on)
    captions = {
        digest: [first, *(comparison.captions[digest][1] for comparison in result)]
        for digest, (first, _) in result[0].captions.items()
    }
    compared = VersionsCompared(names, captions, result)
    if page is not None and on is not None:
        _write_page(page, client, versions, compared, on)
    return compared


def _write_page(
    page: Path, client: MlflowClient, versions: list[ModelVersion], compared: VersionsCompared, on: Config
) -> None:
    """Write the page of a comparison, with the photographs of `on`."""
    ingested = Plan(build_pipeline(on), "ingest").update().by_kind.get("ingest")  # it ran to score the versions
    if ingested is None:
        raise AttendError(f"--page: {on.name}: its data changed meanwhile: run the command again")
    files = files_by_digest(ingested.path, on.data)
    shown = pictures_to_show(list(compared.captions.items()))
    columns = []
    against_first = [[], *(comparison.scores for comparison in compared.against_first)]
    for version, name, scores in zip(versions, compared.names, against_first, strict=True):
        captioner = load_captioner(address_of(version), files_of(client, version), "torch")
        cards = cards_of(shown, captioner, files, None, captioner.decoding, ())
        columns.append(Column(name, cards, scores, dev_scores(client, version, CURVES)))
    references = {digest: compared.captions[digest][0].references for digest in shown}
    pictures = f"{len(compared.captions):,} pictures of the split {on.evaluation.split} of {on.name}"
    write_comparison(page, columns, references, pictures)


def promote_version(workspace: Path, address: str, rule: RegistryConfig, on: Config | None) -> Decision:
    """Make a version champion if champion_rule.py decides so, and return the decision.

    on: a config; both versions are then scored on its held-out pictures. Raises AttendError if they were scored on
    different pictures and `on` is None.
    """
    client = tracking.connect(workspace, must_exist=True)
    version = version_of_address(client, address)
    with _registry_lock(workspace, version.name):
        champion = version_with_alias(client, version.name, "champion")
        if champion is not None and number(champion) == number(version):
            return Decision("champion", f"version {version.version} is champion already")
        failed = json.loads(version.tags.get(promotion.FAILED_GATES, "[]"))
        trained_on_scored = on is None and was_trained_on(version.tags.get("attend.signature", ""))
        candidate = Candidate(f"version {version.version}", failed, trained_on_scored)
        decision = decide(rule, candidate, None if champion is None else _match(client, champion, version, on))
        promotion.apply(client, version, decision)
    return decision


def force_champion(workspace: Path, address: str) -> str:
    """Make a version champion regardless of its scores and failed gates, and return a sentence that states this.

    The sentence is stored as the reason for its promotion, with any earlier decision against it.
    """
    client = tracking.connect(workspace, must_exist=True)
    version = version_of_address(client, address)
    objection = promotion.objection_to(version)
    why = f"version {version.version} is champion: by hand" + (f", although {objection}" if objection else "")
    with _registry_lock(workspace, version.name):
        promotion.make_champion(client, version, why)
    return why


def roll_back(workspace: Path, model: str) -> str:
    """Restore the model's previous champion, and return a sentence that states this."""
    client = tracking.connect(workspace, must_exist=True)
    with _registry_lock(workspace, model):
        restored, dropped = promotion.roll_back(client, model)
    return f"{model}: version {restored} is champion again, version {dropped} was rolled back"


def _registry_lock(workspace: Path, model: str) -> AbstractContextManager[None]:
    return Workspace(workspace).lock(f"registry-{model}", f"registration of {model}")


def _match(client: MlflowClient, champion: ModelVersion, version: ModelVersion, on: Config | None) -> Match:
    """Compare the champion with a version, on pictures that neither was trained on."""
    with tempfile.TemporaryDirectory(prefix="attend-") as scratch:
        before, now = (
            None if pictures is None else pictures.train
            for pictures in (
                pictures_of_version(client, item, Path(scratch) / number(item)) for item in (champion, version)
            )
        )
    (comparison,) = _compare(client, [champion, version], on, {*(before or ()), *(now or ())})
    return Match(f"version {champion.version}", comparison, grown(before, now))


def _compare(
    client: MlflowClient, versions: Sequence[ModelVersion], on: Config | None, trained_on: Collection[str] = ()
) -> list[ModelComparison]:
    """Compare versions with the first by their captions of the pictures that all have, each with its own search.

    trained_on: the digests of pictures to leave out.
    """
    with tempfile.TemporaryDirectory(prefix="attend-") as scratch:
        paths: list[Path] = []
        score_names: list[set[str]] = []
        for index, version in enumerate(versions):
            address, folder = address_of(version), Path(scratch) / str(index)
            if on is not None:
                evaluation = evaluate_registered(on, address)
                score_names.append(set(evaluation.scores["scores"]))
                path = download_predictions(client, evaluation.run_id, folder, PREDICTIONS)
            else:
                if version.tags.get("attend.data") != versions[0].tags.get("attend.data"):
                    raise AttendError(
                        f"{address_of(versions[0])} and {address} were scored on different pictures: add --on CONFIG "
                        "to score all on that config's held-out pictures"
                    )
                score_names.append(set(scores_of(version)))
                path = download_version_predictions(client, version, folder)
            if path is None:
                raise AttendError(
                    f"{address}: its run has no captions: add --on CONFIG to score all on that config's pictures"
                )
            paths.append(path)
        common = set.intersection(*score_names)
        metrics = tuple(name for name, metric in METRICS.items() if {*metric.scores} <= common)
        shared = set.intersection(*(set(read_predictions(path)) for path in paths))
        return [side_by_side(paths[0], path, metrics, trained_on, shared) for path in paths[1:]]
