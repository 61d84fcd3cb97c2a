"""Shards made elsewhere are those that one machine makes, each there once, whoever is lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.cluster import config_of, dask_workers, extract, kill_after, shards
from tasks.errors import AttendError
from tasks.shards import Made, Publish, ShardWork, make
from tasks.stages import artifacts, run_stage
from tests.conftest import pictures, run_all, small


def extracted(workspace: Path, spread: object = None, **changes: object) -> dict[str, str]:
    config = small(workspace, **changes)
    run_stage(config, "ingest")
    run_stage(config, "extract", spread=spread)
    return shards(workspace)


def backwards_and_twice(works: Sequence[ShardWork], publish: Publish) -> None:
    """Each shard made twice, as where a worker was thought lost; the later one is published, the last shard first."""
    for work in reversed(works):
        make(work)
        publish(make(work))


def test_shards_made_elsewhere_are_the_same(workspace: Path, tmp_path: Path) -> None:
    here = extracted(tmp_path / "here")
    assert extracted(workspace, backwards_and_twice) == here and len(here) == 4
    run_all(small(workspace))
    assert artifacts(small(workspace), "extract")["extract"].products == (
        artifacts(small(tmp_path / "here"), "extract")["extract"].products
    )


def test_a_photograph_changed_meanwhile_is_refused(workspace: Path) -> None:
    def late(works: Sequence[ShardWork], publish: Publish) -> None:
        pictures(workspace)[0].write_bytes(b"no picture")
        backwards_and_twice(works, publish)

    config = small(workspace)
    run_stage(config, "ingest")
    with pytest.raises(AttendError, match="was changed while the run"):
        run_stage(config, "extract", spread=late)


def test_what_was_made_for_a_run_that_is_no_more_is_not_there(workspace: Path) -> None:
    def lost(works: Sequence[ShardWork], publish: Publish) -> None:
        made: list[Made] = [make(work) for work in works]
        publish(made[0])
        raise KeyboardInterrupt

    config = small(workspace)
    run_stage(config, "ingest")
    with pytest.raises(KeyboardInterrupt):
        run_stage(config, "extract", spread=lost)
    assert len(shards(workspace)) == 1 and list(workspace.glob("grids/*/.*.tmp"))
    run_stage(config, "extract")
    assert len(shards(workspace)) == 4 and not list(workspace.glob("grids/*/.*.tmp"))


@pytest.mark.slow
def test_a_killed_workers_shards_are_made_by_another(tmp_path: Path) -> None:
    alone, config = (config_of(tmp_path / name, 40, 4, 64) for name in ("alone", "cluster"))
    extract(alone, None)
    with dask_workers(tmp_path, 2) as cluster:
        kill_after(cluster.workers[0], config.workspace, 10)
        extract(config, cluster)
        assert cluster.workers[0].wait() == -9 and cluster.workers[1].poll() is None
    assert shards(config.workspace) == shards(alone.workspace) and len(shards(alone.workspace)) == 40
