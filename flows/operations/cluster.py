"""Shards of grids made by the workers of a Dask cluster, each a Prefect task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial
from queue import SimpleQueue
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.common.errors import AttendError, PassingError
from tasks.config.schema import MachineConfig
from tasks.grids.shard_jobs import Publish, ShardExecutor, ShardJob, ShardResult, make_shard

_SECONDS = 20.0  # that a scheduler has to answer
_AHEAD = 256  # shards that are handed out and not published yet, at least: a worker that joins finds work


@task(name="shard", task_run_name="shard {job.number}", cache_policy=NO_CACHE, persist_result=False)
def make_shard_task(job: ShardJob) -> ShardResult:
    """Photographs -> the files of one shard, not published. A lost worker's is made again by another."""
    return make_shard(job)


def executor_of(machine: MachineConfig) -> ShardExecutor | None:
    """What has shards made by `machine.dask`; None where that is not set."""
    return None if machine.dask is None else _Cluster(machine.dask, machine.dask_resources)


class _Cluster:
    def __init__(self, address: str, resources: dict[str, float]) -> None:
        self._address, self._resources = address, resources

    def __call__(self, jobs: Sequence[ShardJob], publish: Publish) -> None:
        try:
            from dask.base import annotate
            from prefect_dask.task_runners import DaskTaskRunner
        except ImportError:
            raise AttendError("machine.dask: prefect-dask is not installed: uv pip install prefect-dask") from None
        ahead = max(_AHEAD, 2 * self._threads())
        runner: Any = DaskTaskRunner(address=self._address)
        made: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        under_way = 0

        def take() -> None:
            nonlocal under_way
            number, future = made.get()
            under_way -= 1
            publish(self._result(number, future))

        # Not a flow of its own: with every task Prefect sends the flow it is of, and this one would hold all the jobs.
        with runner:
            for job in jobs:
                with annotate(**({"resources": self._resources} if self._resources else {})):
                    future = runner.submit(make_shard_task, {"job": job})
                future.add_done_callback(partial(_put, made, job.number))
                under_way += 1
                while under_way >= ahead or not made.empty():
                    take()
            while under_way:
                take()

    def _result(self, number: int, future: Any) -> ShardResult:
        """What came of a shard. PassingError where the scheduler was lost, which knew of it."""
        from distributed import KilledWorker

        try:
            made: ShardResult = future.result()
        except CancelledError:
            raise PassingError(f"machine.dask: {self._address} does not answer any more: start its scheduler") from None
        except KilledWorker:
            raise AttendError(
                f"machine.dask: shard {number}: each worker that made it died: see their logs, and their memory"
            ) from None
        return made

    def _threads(self) -> int:
        """Of all workers. AttendError where no scheduler answers, or none of its workers has what a shard needs."""
        try:
            workers = asyncio.run(asyncio.wait_for(self._workers(), _SECONDS))
        except (OSError, ValueError, TypeError) as error:
            told = (str(error) or type(error).__name__).splitlines()[0]
            raise AttendError(f"machine.dask: {self._address} does not answer ({told}): start its scheduler") from None
        fit = [w for w in workers if all(w["resources"].get(k, 0) >= v for k, v in self._resources.items())]
        if not fit:
            asked = ", ".join(f"{name}={value:g}" for name, value in self._resources.items())
            has = f"no worker with --resources {asked}" if workers else "no worker"
            raise AttendError(f"machine.dask: {self._address} has {has}: start one")
        return sum(worker["nthreads"] for worker in fit)

    async def _workers(self) -> list[Any]:
        """What the scheduler says of its workers; it has all of `_SECONDS`, and what is none may never answer."""
        from distributed import rpc
        from distributed.security import Security

        secure = Security().get_connection_args("client")  # of Dask's own configuration
        ask: Any = rpc
        async with ask(self._address, connection_args=secure) as scheduler:
            told = await scheduler.identity(n_workers=-1)
        return list(told["workers"].values())


def _put(made: SimpleQueue[tuple[int, Any]], number: int, future: Any) -> None:
    made.put((number, future))
