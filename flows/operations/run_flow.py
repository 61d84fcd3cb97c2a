"""The Prefect flow that brings a captioner up to date: a task for each stage of flows/pipeline.py.

Prefect schedules the stages and shows them; the ledgers alone decide what runs (see tasks/pipeline/plan.py). A stage
that is fresh completes as `Cached`, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.operations import reports
from flows.operations.cluster import executor_of
from flows.pipeline import pipeline_of
from flows.prepare import prepare
from tasks.common import progress
from tasks.common.errors import AttendError, is_disk_full
from tasks.config.schema import Config
from tasks.grids.extract import Grids
from tasks.grids.views import Views
from tasks.grids.weights import IMPORTED
from tasks.pipeline import distributed
from tasks.pipeline.plan import Inputs, artifacts, inputs_of, plan, up_to
from tasks.pipeline.run import run_stage, saved
from tasks.pipeline.sessions import session
from tasks.pipeline.stage import Hooks, Stage
from tasks.registry import tracking
from tasks.registry.params import params_of
from tasks.training.precision import computes_on
from tasks.training.train import TrainedDecoder


def _may_pass(_task: Any, run: Any, state: Any) -> bool:
    """Return whether a failure may be gone in a minute: a file system or server that hiccups, not a user's mistake."""
    error = state.data if isinstance(state.data, BaseException) else None
    module = type(error).__module__.split(".")[0]
    passing = isinstance(error, OSError) or module in ("mlflow", "sqlite3", "sqlalchemy", "requests", "urllib3")
    if error is None or not passing or is_disk_full(error):
        return False
    if distributed.size() > 1:  # the other processes are still in the middle of the stage
        return False
    progress.say(f"{run.name}: {error}: tried again in a moment")
    return True


@task(
    name="stage",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[10, 60],
    retry_condition_fn=_may_pass,
)
def run_task(config: Config, name: str, inputs: Inputs) -> State[Any]:
    """Bring one stage of a config up to date."""
    pipeline = up_to(pipeline_of(config), name)
    with _hooks(pipeline.last, config, inputs) as hooks:
        status = run_stage(pipeline, name, inputs, hooks)
    if status.fresh:
        return Completed(name="Cached", message=f"fresh: {'; '.join(status.why)}")
    return Completed(message=f"ran, because: {'; '.join(status.why)}")


@flow(name="attend", flow_run_name="{config.name}")
def run_pipeline(config: Config, until: str = "register") -> Any:
    """Bring every stage up to date, in order, up to and including `until`."""
    if until == "register" and config.grids.backbone == IMPORTED:  # before hours of training
        raise AttendError("imported grids have no backbone to caption photographs with: add --until evaluate")
    pipeline = up_to(pipeline_of(config), until)
    prepare(config)
    with progress.also(get_run_logger().info), session(pipeline.workspace, f"run of {config.name}"):
        inputs = inputs_of(pipeline)  # one state of the world for the whole run
        before = plan(pipeline, inputs, read="suspects")
        reports.show_plan(before, computes_on(config, before))
        states: dict[Stage, State[Any]] = {}
        for stage in pipeline.stages:
            runs = run_task.with_options(name=stage.kind, task_run_name=stage.name, description=type(stage).__doc__)
            upstream = [states[item] for item in stage.upstream()]  # edges of the run's graph in Prefect's UI
            states[stage] = runs(config, stage.name, inputs, wait_for=upstream, return_state=True)
            states[stage].result()  # raises what the stage raised
            plan(pipeline, inputs)  # refuses, before hours of work, a split that has no picture
        made = artifacts(pipeline, inputs)
        if "evaluate" in made:
            reports.show_scores(config, made)
        if "register" in made:
            reports.show_registration(made["register"])
    if all(status.fresh for status in before):
        return Completed(name="Cached", message=f"nothing to do: every stage is fresh; {saved(before, made)}")
    return Completed(message=saved(before, made) or "up to date")


@contextlib.contextmanager
def _hooks(stage: Stage, config: Config, inputs: Inputs) -> Iterator[Hooks]:
    """Give what a stage reports to: Prefect's UI, and for one that trains a decoder the model's run in MLflow."""
    hooks = Hooks()
    if isinstance(stage, Grids | Views):
        what = "grids" if isinstance(stage, Grids) else "views"
        hooks = replace(hooks, shards_done=reports.show_progress(what), executor=executor_of(config.machine))
    if not isinstance(stage, TrainedDecoder):
        yield hooks
        return
    status = plan(up_to(pipeline_of(config), stage.name), inputs)[-1]
    if status.fresh or status.key is None:
        yield hooks
        return
    with tracking.training_log(config.workspace, config.registry.model, status.key, params_of(stage, inputs)) as log:
        yield replace(hooks, epoch_done=log.epoch_if_it_answers)
