"""The pipeline's graph: which stages a config has, in which order, what feeds what, and a stage added from outside."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flows.operations import local_run
from flows.pipeline import build_pipeline
from flows.planned_run import planned_run
from tasks.common.errors import AttendError
from tasks.common.section import Section
from tasks.config.schema import Config
from tasks.evaluation.evaluate import Evaluate
from tasks.pipeline import run as running
from tasks.pipeline.ledger import Outcome, digest_of
from tasks.pipeline.plan import Plan, Status
from tasks.pipeline.stage import Pipeline, Product, Stage, Work
from tasks.pipeline.workspace import Workspace
from tasks.registry.register import Register
from tests.support import WITHOUT_MLFLOW, run_all, run_stage, small

TUNING = {"epochs": 1, "batch_pictures": 8}
CRITICAL = {"epochs": 1}


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({}, "ingest extract tensorise train remember evaluate register"),
        ({"self_critical": CRITICAL}, "ingest extract tensorise train self_critical remember evaluate register"),
        (
            {"tuning": TUNING},
            "ingest extract-frozen tensorise train-frozen tune extract train remember evaluate register",
        ),
        (
            {"tuning": TUNING, "self_critical": CRITICAL},
            "ingest extract-frozen tensorise train-frozen tune extract train self_critical remember evaluate register",
        ),
    ],
    ids=["plain", "self_critical", "tuning", "all"],
)
def test_the_stages_of_a_config(tmp_path: Path, sections: dict[str, dict[str, object]], names: str) -> None:
    assert build_pipeline(small(tmp_path, **sections)).names() == names.split()


@pytest.mark.parametrize("sections", [{}, {"tuning": TUNING, "self_critical": CRITICAL}])
def test_every_stage_comes_after_what_it_needs(tmp_path: Path, sections: dict[str, dict[str, object]]) -> None:
    pipeline = build_pipeline(small(tmp_path, **sections))
    for index, stage in enumerate(pipeline.stages):
        assert set(stage.upstream()) <= set(pipeline.stages[:index])
    assert len(set(pipeline.names())) == len(pipeline.stages)


def test_a_pipeline_survives_pickling(tmp_path: Path) -> None:
    """Followers of several processes are sent a stage and its artifacts: the same stage must be the same object."""
    pipeline = build_pipeline(small(tmp_path, tuning=TUNING))
    stages, by_stage = pickle.loads(pickle.dumps((pipeline.stages, {stage: stage.name for stage in pipeline.stages})))
    assert [by_stage[stage] for stage in stages] == pipeline.names()
    assert all(upstream in by_stage for stage in stages for upstream in stage.upstream())


@dataclass(frozen=True, eq=False, kw_only=True)
class Longest(Stage):
    """Scores -> the longest caption of the held-out pictures: all that a new stage has to say."""

    kind: ClassVar[str] = "longest"
    version: ClassVar[int] = 1

    scores: Evaluate
    minimum: int = 0

    @property
    def words(self) -> Product:
        return Product(self, "words")

    def sections(self) -> dict[str, Section]:
        return {}

    def needs(self) -> tuple[Product, ...]:
        return (self.scores.scores,)

    def inputs(self) -> dict[str, str]:
        return {"minimum": str(self.minimum)}

    def run(self, work: Work, hooks: Any = None) -> Outcome:
        scores = json.loads((work.artifacts[self.scores].path / "scores.json").read_text(encoding="utf-8"))
        (work.out / "longest.json").write_text(json.dumps(scores["language"]), encoding="utf-8")
        return Outcome({"words": digest_of(scores["language"])}, {"captions": scores["pictures"]})


def longer(config: Config, minimum: int = 0) -> Pipeline:
    """A pipeline with one more stage: its line."""
    registration = build_pipeline(config).last
    assert isinstance(registration, Register)
    return Pipeline.ending_in(Longest(machine=config.machine, scores=registration.scores, minimum=minimum), config)


def of_last(pipeline: Pipeline) -> Status:
    """Return the status of a pipeline's last stage."""
    return Plan(pipeline).update().statuses[-1]


def run_last(pipeline: Pipeline) -> Status:
    """Run a pipeline's last stage, and return its status from before."""
    return running.run_stage(Plan(pipeline, read="suspects").update(), pipeline.last.name)


def test_a_stage_is_one_file_and_one_line(finished_copy: Path) -> None:
    config = small(finished_copy)
    pipeline = longer(config)
    assert pipeline.names()[-2:] == ["evaluate", "longest"]
    assert of_last(pipeline).state == "missing"
    assert run_last(pipeline).state == "missing"
    (made,) = (finished_copy / "artifacts" / "longest").glob("*/longest.json")
    artifact = of_last(pipeline).artifact
    assert artifact is not None and artifact.path == made.parent

    made.unlink()  # damage is seen, and mended
    assert of_last(pipeline).state == "damaged"
    run_last(pipeline)
    assert made.is_file()

    status = of_last(longer(config, minimum=3))  # and so is a change of what comes from outside
    assert status.state == "stale" and status.why == ["minimum: 0 -> 3"]

    other = small(finished_copy, evaluation__beam=1)
    waiting = of_last(longer(other))
    assert waiting.state == "stale" and "evaluate must run first" in waiting.why[0]
    run_all(other)
    assert run_last(longer(other)).key != of_last(pipeline).key


def test_running_a_part_of_a_pipeline_forgets_nothing_of_the_rest(finished_copy: Path) -> None:
    """What a run did last is what `prune` keeps and `status` compares with."""
    config = small(finished_copy)
    workspace = Workspace(finished_copy)
    before = workspace.last_run(config.name).done
    assert set(before) == set(WITHOUT_MLFLOW)
    for name in ("ingest", "extract"):
        run_stage(config, name)
        assert workspace.last_run(config.name).done == before


def test_a_product_that_is_missing_is_named(finished_copy: Path) -> None:
    pipeline = longer(small(finished_copy))

    class Needy(Longest):
        def needs(self) -> tuple[Product, ...]:
            return (Product(self.scores, "nothing"),)

    last = pipeline.last
    assert isinstance(last, Longest)
    needy = replace(pipeline, stages=(*pipeline.stages[:-1], Needy(machine=last.machine, scores=last.scores)))
    with pytest.raises(Exception, match=r"small: longest cannot run: evaluate\.nothing is missing in .*: remove"):
        of_last(needy)


def test_a_plan_stays_whole_where_it_cannot_be_updated(finished_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect tries a stage again with the same plan, and sends the plan, empty, to the workers of a cluster."""
    plan = Plan(build_pipeline(small(finished_copy)), "evaluate", read="suspects").update()
    before = plan.statuses
    with monkeypatch.context() as patch, pytest.raises(OSError, match="stale"):
        patch.setattr(Workspace, "last_run", lambda *_: (_ for _ in ()).throw(OSError(116, "stale file handle")))
        plan.update(plan.stages[2])
    assert plan.statuses == before and running.run_stage(plan, "evaluate").fresh
    assert len(pickle.dumps(plan)) < 100


def test_the_locks_of_two_runs_never_have_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the runs are called: a run named after another's lock would wait for it for ever."""
    taken: list[str] = []

    @contextlib.contextmanager
    def noted(_: Workspace, name: str, *__: object) -> Iterator[None]:
        taken.append(name)
        yield

    monkeypatch.setattr(Workspace, "lock", noted)
    by_run = {}
    for name in ("demo", "of-demo", "record-demo", "running-demo", "run-demo"):
        taken.clear()
        with planned_run(small(tmp_path, name=name), "register", alone=True):
            Workspace(tmp_path).remember(name, "train", "key", done=True)
        by_run[name] = set(taken)
    shared = {name for name in taken if all(name in names for names in by_run.values())}  # `sessions`, say
    assert sum(len(names - shared) for names in by_run.values()) == len(set.union(*by_run.values()) - shared) == 10


def test_a_prefect_server_that_does_not_answer_is_named_with_where_its_address_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n')
    before = dict(os.environ)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    try:
        with pytest.raises(AttendError, match=r"http://127\.0\.0\.1:9/api, from profile 'work' in .*PREFECT_API_URL= "):
            local_run._start_prefect(small(tmp_path / "workspace"), quiet=True)
    finally:
        os.environ.clear()
        os.environ.update(before)
