"""The results of people's reviews of a version's captions, stored with the version in MLflow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.datasets.corrections import read_answers
from tasks.mlflow_store import tracking
from tasks.mlflow_store.versions import REVIEWED, version_of_address
from tasks.review.rates import Rate, summarise

if TYPE_CHECKING:
    from mlflow import MlflowClient


def note_answers(workspace: Path, path: Path) -> None:
    """Store the results of the answers in a file with each version, and log a warning if that is not possible."""
    if not path.exists():
        return
    try:
        unknown = note_rates(
            tracking.connect(workspace, must_exist=True), summarise(answer for _, answer in read_answers(path)).versions
        )
    except AttendError as error:
        log.warning(f"the versions in MLflow do not say what people accepted: {error}")
    else:
        for address in unknown:
            log.warning(
                f"{address}: is not registered here: MLflow does not say how many of its captions were accepted"
            )


def note_rates(client: MlflowClient, rates: Iterable[Rate]) -> list[str]:
    """Write the share of captions that people accepted into their versions' tags; return the addresses not found.

    rates: of each version, by its address.
    """
    unknown = []
    for rate in rates:
        try:
            version = version_of_address(client, rate.of)
        except AttendError:
            unknown.append(rate.of)
        else:
            words = f"{100 * rate.share:.0f} % accepted ({rate.counted})"  # 62 % accepted (55 to 69 %; 124 of 200)
            client.set_model_version_tag(version.name, version.version, REVIEWED, words)
    return unknown
