"""Shards of grids made by the workers of a Dask cluster, each a Prefect task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed

from tasks.config import MachineConfig
from tasks.errors import AttendError
from tasks.shards import Made, Publish, ShardWork, Spread, make

_SECONDS = 20.0  # that a scheduler has to answer


@task(name="shard", task_run_name="shard {work.number}", cache_policy=NO_CACHE, persist_result=False)
def make_shard(work: ShardWork) -> Made:
    """Photographs -> the files of one shard, not published. A lost worker's is made again by another."""
    return make(work)


def spread_of(machine: MachineConfig) -> Spread | None:
    """What has shards made by `machine.dask`; None where that is not set."""
    return None if machine.dask is None else _Cluster(machine.dask, machine.dask_resources)


class _Cluster:
    def __init__(self, address: str, resources: dict[str, float]) -> None:
        self._address, self._resources = address, resources

    def __call__(self, works: Sequence[ShardWork], publish: Publish) -> None:
        try:
            from dask.base import annotate
            from prefect_dask.task_runners import DaskTaskRunner
        except ImportError:
            raise AttendError("machine.dask: prefect-dask is not installed: uv pip install prefect-dask") from None
        self._check()
        runner: Any = DaskTaskRunner(address=self._address)

        # Not a flow of its own: with every task Prefect sends the flow it is of, and this one would hold all the works.
        with runner:
            with annotate(**({"resources": self._resources} if self._resources else {})):
                futures = [runner.submit(make_shard, {"work": work}) for work in works]
            for future in as_completed(futures):
                publish(future.result())

    def _check(self) -> None:
        """AttendError where no scheduler answers, or none of its workers has what a shard needs."""
        from distributed import Client

        try:
            with Client(self._address, timeout=_SECONDS, set_as_default=False) as client:  # type: ignore[no-untyped-call]
                workers = client.scheduler_info(n_workers=-1)["workers"].values()
        except (OSError, ValueError) as error:
            told = str(error).splitlines()[0]
            raise AttendError(f"machine.dask: {self._address} does not answer ({told}): start its scheduler") from None
        fit = [w for w in workers if all(w["resources"].get(k, 0) >= v for k, v in self._resources.items())]
        if not fit:
            asked = ", ".join(f"{name}={value:g}" for name, value in self._resources.items())
            has = f"no worker with --resources {asked}" if workers else "no worker"
            raise AttendError(f"machine.dask: {self._address} has {has}: start one")
