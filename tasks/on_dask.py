"""A Dask cluster as workers: one that is there, or one on this machine for the time of the run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import distributed
from distributed.scheduler import KilledWorker

from loader.errors import ShardflowError
from loader.pool import leave_if_imported, processes
from tasks.cluster import Cluster, attempt

_PATIENCE = 30  # seconds for a scheduler to answer, and again for a worker to be there


class NoCluster(ShardflowError, ConnectionError):
    """No Dask scheduler answers, or it has no workers."""


class DaskWorkers(Cluster):
    """As many calls at a time as the cluster has threads, at most `n_jobs` (0: no limit)."""

    name = "Dask"

    def __init__(self, n_jobs: int, address: str = "") -> None:
        leave_if_imported()
        super().__init__(processes(n_jobs, 1 << 30))
        self._address = address
        self._own: distributed.LocalCluster | None = None
        self._client: distributed.Client | None = None
        threads = self._connect()
        self.n_jobs = min(n_jobs, threads) if n_jobs else threads

    def _connect(self) -> int:
        """Start or find the cluster; how many threads it has."""
        if not self._address:
            # A process for each: pictures are work for Python.
            self._own = distributed.LocalCluster(
                n_workers=self.n_jobs,
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",  # any port that is free
            )
        try:
            self._client = distributed.Client(self._own or self._address, timeout=_PATIENCE)
            self._client.wait_for_workers(1, timeout=_PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            self.terminate()
            raise NoCluster(
                f"no Dask cluster is ready at {self._address or 'this machine'} ({str(error) or type(error).__name__}): "
                "start a scheduler and at least one worker, correct dask_address, or leave it out for a cluster on "
                "this machine"
            ) from error
        self._executor = self._client.get_executor(pure=False)
        return sum(self._client.nthreads().values())

    def submit(self, function: Callable[..., Any], item: Any, arguments: tuple[Any, ...]) -> Future[Any]:
        """Hand out one call."""
        if self._client is None:
            self._connect()
        future: Future[Any] = self._executor.submit(attempt, function, item, arguments)
        return future

    def died(self, failure: BaseException) -> bool:
        """Dask gives up after `distributed.scheduler.allowed-failures` workers."""
        return isinstance(failure, KilledWorker)

    def terminate(self) -> None:
        """Cancel what waits. What a worker of somebody else's cluster has in hand it does to the end."""
        self.forget()
        client, self._client = self._client, None
        own, self._own = self._own, None
        if client is not None:
            self._executor.shutdown(wait=False)
            client.close()
        if own is not None:
            own.close()
