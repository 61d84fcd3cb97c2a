"""Extraction of grid shards on the workers of a Dask cluster, each shard as a Prefect task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.common.errors import AttendError, TransientError
from tasks.common.log import show_log
from tasks.config.machine import MachineConfig
from tasks.grids.extraction import Executor, Publish, ShardJob, ShardResult, make_shard

_ANSWER_SECONDS = 20.0  # how long a scheduler may take to answer
_SUBMITTED_AHEAD = 256  # the minimum number of shards submitted but not published, so that new workers have work


@task(name="shard", task_run_name="shard {job.number}", cache_policy=NO_CACHE, persist_result=False)
def make_shard_task(job: ShardJob) -> ShardResult:
    """Make the files of one shard from photographs, without publishing them.

    Dask runs the task again on another worker if its worker is lost.
    """
    show_log()
    return make_shard(job)


def executor_of(machine: MachineConfig) -> Executor | None:
    """Return an executor that runs shard jobs on the cluster `machine.dask`; None if that is not set."""
    return None if machine.dask is None else _Cluster(machine.dask, machine.dask_resources)


class _Cluster:
    """An executor of shard jobs on the workers of the Dask scheduler at `address`.

    resources: what a worker must offer to run a job, as in its option --resources.
    """

    def __init__(self, address: str, resources: dict[str, float]) -> None:
        self._address, self._resources = address, resources

    def __call__(self, jobs: Sequence[ShardJob], publish: Publish) -> None:
        """Run the jobs, and call `publish` in this process for each shard when it is done."""
        try:
            from dask.base import annotate
            from prefect_dask.task_runners import DaskTaskRunner
        except ImportError:
            raise AttendError("machine.dask: prefect-dask is not installed: uv pip install prefect-dask") from None
        ahead = max(_SUBMITTED_AHEAD, 2 * self._threads())
        runner: Any = DaskTaskRunner(address=self._address)
        done: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        pending = 0

        def publish_next() -> None:
            nonlocal pending
            number, future = done.get()
            pending -= 1
            publish(self._result(number, future))

        # This is not a separate flow: Prefect sends each task its flow, which would contain all the jobs.
        with runner:
            for job in jobs:
                with annotate(**({"resources": self._resources} if self._resources else {})):
                    future = runner.submit(make_shard_task, {"job": job})
                future.add_done_callback(lambda future, number=job.number: done.put((number, future)))
                pending += 1
                while pending >= ahead or not done.empty():
                    publish_next()
            while pending:
                publish_next()

    def _result(self, number: int, future: Any) -> ShardResult:
        """Return the result of a finished shard.

        Raises TransientError if the scheduler was lost, AttendError if every worker that tried the shard died.
        """
        from distributed import KilledWorker

        try:
            result: ShardResult = future.result()
        except CancelledError:
            raise TransientError(
                f"machine.dask: {self._address} does not answer any more: start its scheduler"
            ) from None
        except KilledWorker:
            raise AttendError(
                f"machine.dask: shard {number}: every worker that tried it died: look at the workers' logs and memory"
            ) from None
        return result

    def _threads(self) -> int:
        """Return the number of threads of all workers that can run a job.

        Raises AttendError if no scheduler answers, or no worker has the resources that a job needs.
        """
        try:
            workers = asyncio.run(asyncio.wait_for(self._workers(), _ANSWER_SECONDS))
        except (OSError, ValueError, TypeError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise AttendError(
                f"machine.dask: {self._address} does not answer ({reason}): start its scheduler"
            ) from None
        able = [w for w in workers if all(w["resources"].get(k, 0) >= v for k, v in self._resources.items())]
        if not able:
            resources = ", ".join(f"{name}={value:g}" for name, value in self._resources.items())
            missing = f"no worker with --resources {resources}" if workers else "no worker"
            raise AttendError(f"machine.dask: {self._address} has {missing}: start one")
        return sum(worker["nthreads"] for worker in able)

    async def _workers(self) -> list[Any]:
        """Return the scheduler's information about each of its workers.

        The caller limits the time: a program at this address that is not a scheduler may never answer.
        """
        from distributed import rpc
        from distributed.security import Security

        security = Security().get_connection_args("client")  # from Dask's configuration
        connect: Any = rpc
        async with connect(self._address, connection_args=security) as scheduler:
            identity = await scheduler.identity(n_workers=-1)
        return list(identity["workers"].values())
