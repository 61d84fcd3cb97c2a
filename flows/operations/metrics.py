"""Metrics of the pipeline for Prometheus, as files for node_exporter's textfile collector.

`metrics/NAME.prom` in the workspace describes the latest successful run of a name, `metrics/NAME.attempt.prom` the
latest run, successful or not. Only runs of the whole pipeline count: the success of an hourly extraction says nothing
about the nightly run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from tasks.config.schema import Config
from tasks.evaluation.score_record import read_scores
from tasks.grids.store import folder_size
from tasks.pipeline.plan import Plan

METRICS = "metrics"
Values = dict[tuple[str, ...], float]  # values of a gauge, by the values of its labels
_STORES = ("grids", "artifacts", "mlartifacts", "prefect")


@contextlib.contextmanager
def measured(config: Config, until: str) -> Iterator[list[Plan]]:
    """Write the metrics of a run up to a stage when the block ends.

    It yields a list, to which the block adds the plan if the run succeeds; if it stays empty, the run has failed.
    """
    succeeded: list[Plan] = []
    try:
        yield succeeded
    except BaseException:
        succeeded.clear()
        raise
    finally:
        if until == "register":
            with contextlib.suppress(OSError):  # no workspace yet, a read-only workspace, or a full disk
                (config.workspace / METRICS).mkdir(exist_ok=True)
                _write_attempt(config, failed=not succeeded)
                for plan in succeeded:
                    _write_success(config, plan)


def _write_attempt(config: Config, failed: bool) -> None:
    """Write when a run ended and whether it failed."""
    registry = CollectorRegistry()
    _set(registry, config, "attend_last_run_timestamp_seconds", "end of the latest run (Unix)", {(): time.time()})
    _set(registry, config, "attend_last_run_failed", "1 if the latest run failed, else 0", {(): float(failed)})
    write_to_textfile(str(config.workspace / METRICS / f"{config.name}.attempt.prom"), registry)


def _write_success(config: Config, plan: Plan) -> None:
    """Write the results of a successful run: its time, the stages' seconds, pictures, scores and sizes on the disk."""
    artifacts, registry = plan.by_kind, CollectorRegistry()
    seconds: Values = {(stage.name,): artifact.ledger.seconds for stage, artifact in plan.artifacts.items()}
    counts = artifacts["ingest"].ledger.counts if "ingest" in artifacts else {}
    scores = read_scores(artifacts["evaluate"].path)["scores"] if "evaluate" in artifacts else {}
    sizes: Values = {(name,): float(folder_size(config.workspace / name)) for name in _STORES}
    ended: Values = {(): time.time()}
    _set(registry, config, "attend_success_timestamp_seconds", "end of the latest run that succeeded (Unix)", ended)
    _set(registry, config, "attend_stage_seconds", "seconds that a stage took when it last ran", seconds, "stage")
    _set(registry, config, "attend_pictures", "pictures of a split", _by(counts, ("train", "dev", "test")), "split")
    failed = artifacts["extract"].ledger.counts.get("failed", 0) if "extract" in artifacts else 0
    _set(registry, config, "attend_unreadable_pictures", "pictures that cannot be read", {(): float(failed)})
    _set(registry, config, "attend_score", "score of the captions, in percent", _by(scores, scores), "score")
    _set(registry, config, "attend_store_bytes", "size of a folder of the workspace, in bytes", sizes, "store")
    write_to_textfile(str(config.workspace / METRICS / f"{config.name}.prom"), registry)


def _by(values: Mapping[str, int | float], names: Iterable[str]) -> Values:
    return {(name,): float(values[name]) for name in names if name in values}


def _set(registry: CollectorRegistry, config: Config, name: str, about: str, values: Values, *labels: str) -> None:
    """Add a gauge to a registry, with the label `run` and `labels`. values: by the values of `labels`."""
    gauge = Gauge(name, about, ["run", *labels], registry=registry)
    for metric_name, value in values.items():
        gauge.labels(config.name, *metric_name).set(value)
