"""Run the stages of a config in this process, without Prefect."""

from __future__ import annotations

from flows.pipeline import build_pipeline
from tasks.config.schema import Config
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.plan import Plan
from tasks.pipeline.run import run_stage


def planned(config: Config, until: str | None = None) -> Plan:
    """Return the plan of a run of a config up to a stage, by default the last."""
    return Plan(build_pipeline(config), until, read="suspects").update()


def run_until(config: Config, until: str | None = None) -> dict[str, Artifact]:
    """Run the stages up to `until`, by default the last, and return their artifacts by kind."""
    plan = planned(config, until)
    for stage in plan.stages:
        run_stage(plan, stage.name)
    return plan.by_kind


def run_one(config: Config, name: str) -> Artifact:
    """Run one stage and return its artifact. Its upstream stages must be fresh."""
    plan = planned(config, name)
    run_stage(plan, name)
    return plan.by_kind[plan.stages[-1].kind]
