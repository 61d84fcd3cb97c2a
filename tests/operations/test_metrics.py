"""Metrics of the pipeline, logs that do not grow for ever, and Prefect's settings that remove old runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flows.operations import service
from flows.operations.metrics import METRICS, measured
from flows.operations.prefect_settings import environment
from tests.cli import refused, written
from tests.support import planned, small


def read(path: Path) -> dict[tuple[str, ...], float]:
    """The values of a file, by name and the labels' values."""
    families = text_string_to_metric_families(path.read_text(encoding="utf-8"))
    return {(item.name, *item.labels.values()): item.value for family in families for item in family.samples}


def test_a_run_that_succeeds_leaves_what_it_measured(finished_copy: Path) -> None:
    plan = planned(small(finished_copy), "evaluate")
    with measured(small(finished_copy), "register") as succeeded:
        succeeded.append(plan)
    values = read(finished_copy / METRICS / "small.prom")
    counts = plan.by_kind["ingest"].ledger.counts
    assert values["attend_pictures", "small", "train"] == counts["train"]
    assert values["attend_stage_seconds", "small", "train"] == plan.by_kind["train"].ledger.seconds
    assert values["attend_unreadable_pictures", "small"] == 0
    assert 0 < values["attend_score", "small", "bleu1"] <= 100
    size = sum(path.stat().st_size for path in (finished_copy / "grids").rglob("*") if path.is_file())
    assert values["attend_store_bytes", "small", "grids"] == size
    attempt = read(finished_copy / METRICS / "small.attempt.prom")
    assert attempt["attend_last_run_failed", "small"] == 0
    assert attempt["attend_last_run_timestamp_seconds", "small"] <= values["attend_success_timestamp_seconds", "small"]


def test_a_run_that_fails_leaves_the_time_of_the_last_good_one(finished_copy: Path) -> None:
    config = small(finished_copy)
    with measured(config, "register") as succeeded:
        succeeded.append(planned(config, "evaluate"))
    before = (finished_copy / METRICS / "small.prom").read_text()
    with pytest.raises(ZeroDivisionError), measured(config, "register") as succeeded:
        succeeded.append(planned(config, "evaluate"))
        raise ZeroDivisionError  # after the last stage, in a report of it
    assert (finished_copy / METRICS / "small.prom").read_text() == before
    assert read(finished_copy / METRICS / "small.attempt.prom")["attend_last_run_failed", "small"] == 1
    with measured(config, "extract") as succeeded:  # an hourly extraction says nothing of the nightly run
        succeeded.append(planned(config, "extract"))
    assert read(finished_copy / METRICS / "small.attempt.prom")["attend_last_run_failed", "small"] == 1
    assert (finished_copy / METRICS / "small.prom").read_text() == before


def test_data_that_cannot_be_read_is_a_run_that_failed(
    finished_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = written(tmp_path, data={"adapter": "table", "path": str(tmp_path / "gone.csv")})
    assert "gone.csv" in refused(monkeypatch, capsys, "run", gone, "--workspace", str(finished_copy))
    assert read(finished_copy / METRICS / "small.attempt.prom")["attend_last_run_failed", "small"] == 1


def test_a_log_that_has_grown_is_moved_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MAX_LOG", 100)
    (tmp_path / "worker.log").write_bytes(b"short\n")
    with (tmp_path / "server.log").open("ab", buffering=0) as log_file:  # as a program that runs has it open
        log_file.write(b"a" * 101)
        service._rotate_logs(tmp_path)
        log_file.write(b"after\n")
    assert (tmp_path / "server.log").read_bytes() == b"after\n"
    assert (tmp_path / "server.log.1").read_bytes() == b"a" * 101
    assert (tmp_path / "worker.log").read_bytes() == b"short\n" and len(list(tmp_path.iterdir())) == 3


def test_prefect_removes_runs_of_more_than_a_month_unless_a_person_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings.models.root import Settings

    def vacuum() -> tuple[set[str], timedelta]:
        with monkeypatch.context() as patch:
            for name, value in environment(tmp_path).items():
                patch.setenv(name, value)
            found = Settings().server.services.db_vacuum
            return found.enabled_vacuum_types, found.retention_period

    kinds, period = vacuum()
    assert kinds >= {"events", "flow_runs"} and period == timedelta(days=30)
    monkeypatch.setenv("PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD", "7200")
    assert vacuum()[1] == timedelta(hours=2)
