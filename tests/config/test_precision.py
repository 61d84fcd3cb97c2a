"""`precision: auto`: what the device computes natively, in no key, named in the plan and for each epoch."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from tasks.config import devices
from tasks.config.devices import native_precision
from tasks.config.training import TrainingConfig
from tasks.training.precision import SHARE, computes_on, precision_by_epoch, with_precision
from tests.support import artifacts, plan, run_all, run_stage, small

CPU = torch.device("cpu")
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Have the processor compute bfloat16 natively, or emulate it."""
    return lambda cost: monkeypatch.setattr(devices, "bfloat16_cost", lambda _device: cost)


def test_the_processor_is_timed() -> None:
    cost = devices.bfloat16_cost(CPU)
    assert 0 < cost < float("inf") and devices.bfloat16_cost(CPU) == cost  # once a process
    assert native_precision(CPU) == ("bfloat16" if cost < 1 else "float32")


@pytest.mark.parametrize(("cost", "chosen"), [(0.5, "bfloat16"), (2.0, "float32"), (50.0, "float32")])
def test_auto_is_what_is_native(pretend, capsys: Printed, cost: float, chosen: str) -> None:  # type: ignore[no-untyped-def]
    pretend(cost)
    assert with_precision(TrainingConfig(), CPU).precision == chosen
    assert capsys.readouterr().err == ""


def test_bfloat16_that_is_emulated_is_done_and_said(pretend, capsys: Printed) -> None:  # type: ignore[no-untyped-def]
    asked = TrainingConfig(precision="bfloat16")
    pretend(0.5)
    assert with_precision(asked, CPU) == asked and capsys.readouterr().err == ""
    pretend(48.0)
    assert with_precision(asked, CPU) == asked
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "48.0 times as long" in text and "set training.precision=float32" in text


def test_a_run_that_changes_processors_ends_and_says_both(  # type: ignore[no-untyped-def]
    pretend, workspace: Path, capsys: Printed
) -> None:
    config = small(workspace, training__precision="auto", training__epochs=4, machine__checkpoint_seconds=0)
    for name in ("ingest", "extract", "tensorise"):
        run_stage(config, name)

    def stop(row: dict[str, float], _: Path | None) -> None:
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    pretend(2.0)
    assert "trains in float32 (auto: this processor only emulates bfloat16) on cpu" in str(
        computes_on(config, plan(config))
    )
    with pytest.raises(KeyboardInterrupt):
        run_stage(config, "train", epoch_done=stop)
    pretend(0.5)
    assert plan(config)[3].state == "interrupted"
    assert "trains in bfloat16 (auto: this processor computes bfloat16)" in str(computes_on(config, plan(config)))
    run_all(config)
    artifact = artifacts(config, "evaluate")["train"]
    assert [row[SHARE] for row in pq.read_table(artifact.path / "history.parquet").to_pylist()] == [0, 0, 1, 1]
    both = "float32 (epochs 1 to 2), bfloat16 (epochs 3 to 4)"
    assert artifact.ledger.notes == [f"computed in {both}"] and f"train: computed in {both}" in capsys.readouterr().err
    pretend(2.0)
    assert all(status.fresh for status in plan(config, "evaluate"))
    assert computes_on(config, plan(config, "evaluate")) is None


def test_an_epoch_may_have_both() -> None:
    rows = [{"epoch": epoch, SHARE: share} for epoch, share in enumerate((1.0, 0.25, 0.0, 0.0), 1)]
    expected = "bfloat16 (epoch 1), float32 and bfloat16 (epoch 2), float32 (epochs 3 to 4)"
    assert precision_by_epoch(rows) == expected
    assert precision_by_epoch([{"epoch": 0, SHARE: 0.0}, *rows]) == expected  # of a decoder that was trained before
    assert precision_by_epoch(rows[:1]) == "bfloat16"
