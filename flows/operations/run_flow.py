"""The Prefect flow that brings a captioner up to date, with a task for each stage of flows/pipeline.py.

Prefect runs the stages in order and shows them; only the ledgers decide what runs (see tasks/pipeline/plan.py). A
fresh stage completes as `Cached`, with the reason.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed

from flows.configs import load
from flows.operations import prefect_reports
from flows.operations.metrics import measured
from flows.operations.run_form import ConfigName, ConfigOverrides, LastStage, run_name
from flows.page.history import record_run
from flows.page.project_page import write_page
from flows.planned_run import planned_run, savings_message
from flows.unregistered import log_evaluation
from tasks.common.errors import is_disk_full
from tasks.common.log import log, show_log
from tasks.common.retries import is_transient
from tasks.config.schema import Config
from tasks.grids.extract import Extract
from tasks.mlflow_store import tracking
from tasks.mlflow_store.params import run_params
from tasks.mlflow_store.runs import check_experiment, training_log
from tasks.mlflow_store.versions import aliases_of, champion_bundle, find
from tasks.pipeline import distributed
from tasks.pipeline.plan import Plan
from tasks.pipeline.run import run_stage
from tasks.pipeline.stage import Stage
from tasks.training.precision import computes_on
from tasks.training.train import DecoderHooks, DecoderStage

_STOPPED = "stopped by a person: run again to continue"


def _may_pass(_task: Any, run: Any, state: Any) -> bool:
    """Return whether a retry may help: a file system or server may recover within a minute.

    It does not help for a user's mistake, a full disk, or one of several processes.
    """
    error = state.data
    if not isinstance(error, BaseException) or not is_transient(error) or is_disk_full(error):
        return False
    if distributed.size() > 1:  # the other processes are still in the stage
        return False
    log.warning(f"{run.name}: {error}: trying again in a moment")
    return True


@task(
    name="stage",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[10, 60],
    retry_condition_fn=_may_pass,
)
def run_task(config: Config, plan: Plan, name: str) -> State[Any]:
    """Bring one stage of a config up to date. The state is named `Cached` if the stage was fresh."""
    try:
        with _hooks(config, plan, name) as hooks:
            status = run_stage(plan, name, hooks)
    except KeyboardInterrupt:  # Prefect would treat it as a crash
        return Cancelled(message=_STOPPED)
    if status.fresh:
        return Completed(name="Cached", message=f"fresh: {'; '.join(status.why)}")
    return Completed(message=f"ran, because: {'; '.join(status.why)}")


@flow(name="attend", flow_run_name=run_name)
def run_pipeline(preset: ConfigName, overrides: ConfigOverrides = None, until: LastStage = "register") -> Any:
    """Bring all stages up to and including `until` up to date, in order.

    The state is named `Cached` if all were fresh, and is `Cancelled` if a person stopped the run with Ctrl-C.
    """
    config = load(preset, overrides or [])
    show_log()
    with measured(config, until) as succeeded, planned_run(config, until) as plan:
        state = _bring_up_to_date(config, plan)
        if state.is_completed():
            succeeded.append(plan)
        return state


def run_planned(config: Config, plan: Plan, preset: str, overrides: list[str], until: str) -> None:
    """Run the flow with a config and a plan that the caller has created from these parameters."""

    @flow(name="attend", flow_run_name=run_name)
    def run_pipeline(preset: ConfigName, overrides: ConfigOverrides, until: LastStage) -> Any:  # noqa: ARG001 -- shown
        return _bring_up_to_date(config, plan)

    run_pipeline(preset, overrides, until)


def _bring_up_to_date(config: Config, plan: Plan) -> State[Any]:
    """Run the stages of a plan that are not fresh, report in Prefect's UI, and return the state of the flow run."""
    before = plan.statuses
    prefect_reports.show_plan(before, computes_on(config, before))
    states: dict[Stage, State[Any]] = {}
    if not plan.fresh and any(isinstance(stage, DecoderStage) for stage in plan.stages):
        check_experiment(config.workspace, config.registry.model)
    for stage in plan.stages:
        stage_task = run_task.with_options(name=stage.kind, task_run_name=stage.name, description=type(stage).__doc__)
        upstream = [states[item] for item in stage.upstream()]  # the edges of the graph in Prefect's UI
        states[stage] = stage_task(config, plan, stage.name, wait_for=upstream, return_state=True)
        if states[stage].is_cancelled():
            return Cancelled(message=_STOPPED)
        states[stage].result()  # raises the stage's error
    results = plan.by_kind
    if plan.stages[-1].kind == "evaluate":
        log_evaluation(config, plan)
    if plan.ran:
        record_run(config, results, plan.ran)
    write_page(config, plan.of_all_stages())
    if "evaluate" in results:
        prefect_reports.show_scores(config, results)
    if "register" in results:
        prefect_reports.show_registration(results["register"])
        prefect_reports.show_inspection(results["register"])
    if tracking.is_embedded() and plan.ran:
        with contextlib.suppress(Exception):  # the run has succeeded, even if MLflow fails here
            # The answers are cached, so that `attend caption` and `attend page` need not load MLflow.
            find(None, config.workspace)
            aliases_of(config.workspace, config.registry.model)
    saved = savings_message(before, results)
    if not plan.ran:
        return Completed(name="Cached", message=f"nothing to do: every stage is fresh; {saved}")
    return Completed(message=saved or "up to date")


@contextlib.contextmanager
def _hooks(config: Config, plan: Plan, name: str) -> Iterator[Any]:
    """Yield the hooks of a stage: they report to Prefect's UI and, for training, to the model's run in MLflow."""
    status = plan.status(name)
    stage = status.stage
    if isinstance(stage, Extract) and not status.fresh:
        from flows.operations.dask_shards import executor_of  # loads torch
        from tasks.grids.extraction import ExtractHooks

        yield ExtractHooks(prefect_reports.show_progress("grids"), executor_of(config.machine))
        return
    if not isinstance(stage, DecoderStage) or status.fresh or status.key is None:
        yield None
        return
    model = config.registry.model
    with (
        contextlib.ExitStack() as stack,
        training_log(config.workspace, model, status.key, run_params(stage, plan.inputs)) as log,
    ):

        def champion() -> Path | None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="attend-champion-"))
            return champion_bundle(config.workspace, model, Path(scratch))

        yield DecoderHooks(log.try_log_epoch, champion)
