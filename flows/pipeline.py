"""The whole story in order: six stages, from photographs and captions to a registered captioner.

Prefect schedules the stages and shows them; the ledgers alone decide what runs (see tasks/staleness.py). A stage
that is fresh completes as `Cached`, with the reason.
"""

from __future__ import annotations

from typing import Any

from prefect import Task, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from flows import reports
from flows.cluster import spread_of
from tasks import processes, progress, tracking
from tasks.config import Config
from tasks.errors import AttendError, is_disk_full
from tasks.precision import computes_on
from tasks.running import run_stage, saved
from tasks.sessions import prepare, session
from tasks.stages import kind_of, up_to
from tasks.staleness import Inputs, Status, artifacts, inputs_of, plan
from tasks.weights import IMPORTED, weight_digests
from tasks.workspace import Workspace


def _passing(_task: Any, run: Any, state: Any) -> bool:
    """Whether a failure may be gone in a minute: a file system or a server that hiccups, not a person's mistake."""
    error = state.data if isinstance(state.data, BaseException) else None
    told = type(error).__module__.split(".")[0]
    passing = isinstance(error, OSError) or told in ("mlflow", "sqlite3", "sqlalchemy", "requests", "urllib3")
    if error is None or not passing or is_disk_full(error):
        return False
    if processes.size() > 1:  # the others are still in the middle of it
        return False
    progress.say(f"{run.name}: {error}: tried again in a moment")
    return True


_stage = task(
    cache_policy=NO_CACHE,
    persist_result=False,
    task_run_name="{name}",
    retries=2,
    retry_delay_seconds=[10, 60],
    retry_condition_fn=_passing,
)


@_stage
def ingest(config: Config, inputs: Inputs, name: str) -> Any:
    """Data set -> manifest."""
    return _told(run_stage(config, name, inputs))


@_stage
def extract(config: Config, inputs: Inputs, name: str) -> Any:
    """Photographs -> grids, once a picture."""
    return _told(run_stage(config, name, inputs, **_extraction("grids", config)))


@_stage
def views(config: Config, inputs: Inputs, name: str) -> Any:
    """Training photographs, cropped and mirrored -> grids, once a view (only where `views` is set)."""
    return _told(run_stage(config, name, inputs, **_extraction("views", config)))


@_stage
def tensorise(config: Config, inputs: Inputs, name: str) -> Any:
    """Captions -> vocabulary and token ids."""
    return _told(run_stage(config, name, inputs))


@_stage
def train(config: Config, inputs: Inputs, name: str) -> Any:
    """Grids and captions -> a decoder's weights, each epoch logged to MLflow."""
    more = ["views"] if kind_of(name) != name else ["views", "tuning"]  # the frozen grids come before it
    return _logged(config, inputs, name, more)


@_stage
def self_critical(config: Config, inputs: Inputs, name: str) -> Any:
    """The decoder goes on, rewarded by the CIDEr-D of its own captions (only where `self_critical` is set)."""
    return _logged(config, inputs, name, ["views", "tuning", "self_critical"])


@_stage
def tune(config: Config, inputs: Inputs, name: str) -> Any:
    """Photographs and captions -> a backbone of a new identity (only where `tuning` is set)."""
    return _told(run_stage(config, name, inputs))


@_stage
def evaluate(config: Config, inputs: Inputs, name: str) -> Any:
    """Held-out pictures -> captions -> scores."""
    return _told(run_stage(config, name, inputs))


@_stage
def register(config: Config, inputs: Inputs, name: str) -> Any:
    """Everything -> a version in MLflow's registry, champion or challenger."""
    return _told(run_stage(config, name, inputs))


TASKS: dict[str, Task[..., Any]] = {
    task.name: task for task in (ingest, extract, views, tensorise, train, self_critical, tune, evaluate, register)
}


@flow(name="attend", flow_run_name="{config.name}")
def pipeline(config: Config, until: str = "register") -> Any:
    """Bring every stage up to date, in order, up to and including `until`."""
    if until == "register" and config.grids.backbone == IMPORTED:  # before hours of training
        raise AttendError("imported grids have no backbone to caption photographs with: add --until evaluate")
    prepare(config)
    with progress.also(get_run_logger().info), session(Workspace(config.workspace), f"run of {config.name}"):
        inputs = inputs_of(config, until)  # one state of the world for the whole run
        before = plan(config, until, inputs, read="suspects")
        reports.show_plan(before, computes_on(config, before))
        for stage in up_to(config, until):
            _: Any = TASKS[stage.kind].with_options(name=stage.name)(config, inputs, stage.name)
            plan(config, until, inputs)  # refuses, before hours of work, a split that has no picture
        made = artifacts(config, until, inputs)
        if "evaluate" in made:
            reports.show_scores(config, made)
        if "register" in made:
            reports.show_registration(made["register"])
    if all(status.fresh for status in before):
        return Completed(name="Cached", message=f"nothing to do: every stage is fresh; {saved(before, made)}")
    return Completed(message=saved(before, made) or "up to date")


def _logged(config: Config, inputs: Inputs, name: str, more: list[str]) -> Any:
    """Run a training stage, each epoch logged to MLflow; more: sections it depends on, where they are set."""
    status = plan(config, until=name, inputs=inputs)[-1]
    if status.fresh or status.key is None:
        return _told(run_stage(config, name, inputs))
    names = ["data", "grids", "captions", "decoder", "training", *more]
    sections = {section: getattr(config, section) for section in names if getattr(config, section) is not None}
    files = {"grids.weights": weight_digests(config)["weights"]}
    trained = name.replace("self_critical", "train")
    files |= {f"decoder.{file}": digest for file, digest in inputs[trained].items()}
    params = tracking.params_of(sections, files)
    with tracking.training_log(config.workspace, config.registry.model, status.key, params) as log:
        return _told(run_stage(config, name, inputs, epoch_done=log.epoch_if_it_answers))


def _extraction(what: str, config: Config) -> dict[str, Any]:
    return {"extracted": reports.show_progress(what), "spread": spread_of(config.machine)}


def _told(status: Status) -> Any:
    if status.fresh:
        return Completed(name="Cached", message=f"fresh: {'; '.join(status.why)}")
    return Completed(message=f"ran, because: {'; '.join(status.why)}")
