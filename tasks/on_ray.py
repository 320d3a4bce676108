"""Ray as workers: the cluster that RAY_ADDRESS names, or one on this machine for the time of the run."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, WorkerCrashedError

from loader.errors import ShardflowError
from loader.pool import leave_if_imported, processes
from tasks.cluster import Cluster, attempt

_PATIENCE = 10  # seconds for a cluster to answer
_PLACE = re.compile(r"([\w.-]+):(\d+)$")
_TRIES = 3  # times that a call is given to another worker after one has died


class NoRay(ShardflowError, ConnectionError):
    """No Ray cluster is to be had."""


class RayWorkers(Cluster):
    """As many calls at a time as the cluster has processors, at most `n_jobs` (0: no limit)."""

    name = "Ray"

    def __init__(self, n_jobs: int) -> None:
        leave_if_imported()
        super().__init__(processes(n_jobs, 1 << 30))
        self._refs: dict[Future[Any], ray.ObjectRef[Any]] = {}
        self._started = False
        self._connect()
        processors = int(ray.cluster_resources().get("CPU", 1))
        self.n_jobs = min(n_jobs, processors) if n_jobs else processors

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not ray.is_initialized():
            elsewhere = os.environ.get("RAY_ADDRESS")
            mine: dict[str, Any] = {} if elsewhere else {"num_cpus": self.n_jobs, "include_dashboard": False}
            try:
                if elsewhere and (place := _PLACE.search(elsewhere)):  # Ray itself would try for many minutes
                    socket.create_connection((place[1], int(place[2])), _PATIENCE).close()
                ray.init(configure_logging=False, log_to_driver=False, **mine)
            except (OSError, RuntimeError, ValueError) as error:
                raise NoRay(
                    f"Ray doesn't start, or doesn't answer at {elsewhere or 'this machine'} ({error}): correct or "
                    "unset RAY_ADDRESS, or choose another runner"
                ) from error
            self._started = True
        self._remote = ray.remote(max_retries=_TRIES, num_cpus=1)(attempt)

    def submit(self, function: Callable[..., Any], item: Any, arguments: tuple[Any, ...]) -> Future[Any]:
        """Hand out one call."""
        if not ray.is_initialized():
            self._connect()
        ref = self._remote.remote(function, item, arguments)
        future: Future[Any] = ref.future()
        self._refs[future] = ref
        future.add_done_callback(lambda done: self._refs.pop(done, None))
        return future

    def died(self, failure: BaseException) -> bool:
        """Ray gives up after so many tries."""
        return isinstance(failure, (WorkerCrashedError, OutOfMemoryError))

    def terminate(self) -> None:
        """Cancel what waits, interrupt what is under way, and end what was started for this run."""
        self.forget()
        if ray.is_initialized():
            for ref in list(self._refs.values()):
                ray.cancel(ref)
            if self._started:
                ray.shutdown()
        self._started = False
