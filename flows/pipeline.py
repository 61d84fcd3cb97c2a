"""The whole story in order: six stages, from photographs and captions to a registered captioner.

Prefect schedules the stages and shows them; the ledger alone decides what runs (see tasks/ledger.py). A stage
that is fresh completes as `Cached`, with the reason.
"""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks import tracking
from tasks.config import Config
from tasks.stages import Status, plan, run_stage

_stage = task(cache_policy=NO_CACHE, persist_result=False)


@_stage
def ingest(config: Config) -> Any:
    """Data set -> manifest."""
    return _told(run_stage(config, "ingest"))


@_stage
def extract(config: Config) -> Any:
    """Photographs -> grids, once a picture."""
    return _told(run_stage(config, "extract"))


@_stage
def tensorise(config: Config) -> Any:
    """Captions -> vocabulary and token ids."""
    return _told(run_stage(config, "tensorise"))


@_stage
def train(config: Config) -> Any:
    """Grids and captions -> a decoder's weights, each epoch logged to MLflow."""
    status = next(status for status in plan(config) if status.stage.name == "train")
    if status.fresh or status.key is None:
        return _told(run_stage(config, "train"))
    params = tracking.params_of(data=config.data, grids=config.grids, decoder=config.decoder, training=config.training)
    model = config.registry.model
    with tracking.training_log(config.workspace, model, config.name, status.key, params) as log:
        return _told(run_stage(config, "train", epoch_done=log.epoch))


@_stage
def evaluate(config: Config) -> Any:
    """Held-out pictures -> captions -> scores."""
    return _told(run_stage(config, "evaluate"))


@_stage
def register(config: Config) -> Any:
    """Everything -> a version in MLflow's registry, champion or challenger."""
    return _told(run_stage(config, "register"))


STAGE_TASKS = (ingest, extract, tensorise, train, evaluate, register)


@flow(name="attend")
def pipeline(config: Config, until: str = "register") -> None:
    """Bring every stage up to date, in order, up to and including `until`."""
    for stage in STAGE_TASKS:
        stage.submit(config).result()
        if stage.name == until:
            break


def _told(status: Status) -> Any:
    if status.fresh:
        return Completed(name="Cached", message=f"fresh: {'; '.join(status.why)}")
    return Completed(message=f"ran, because: {'; '.join(status.why)}")
