"""Who does the work of a job: a pool of processes of our own, a Dask cluster or Ray, chosen by name.

Whoever it is does the same to each item, so the bytes are the same. Dask and Ray are imported when they are chosen.
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from types import TracebackType

from loader.errors import BadConfig, ShardflowError
from loader.pool import Pool, processes
from loader.workers import Workers

RUNNERS = ("local", "dask", "ray")
_PACKAGES = {"dask": "distributed", "ray": "ray"}


class NoRunner(ShardflowError, ImportError):
    """The library of the chosen runner is not installed."""


def check(runner: str, dask_address: str = "") -> None:
    """BadConfig for a runner that can't be meant, NoRunner for one whose library is missing."""
    if runner not in RUNNERS:
        raise BadConfig(f"runner is {runner!r:.80}: one of {', '.join(RUNNERS)} was expected")
    if dask_address and runner != "dask":
        raise BadConfig(
            f"dask_address is {dask_address:.80}, but the runner is {runner}: choose runner dask, or leave the address out"
        )
    package = _PACKAGES.get(runner)
    if package and find_spec(package) is None:
        raise NoRunner(
            f"runner is {runner}, and {package} is not installed: pip install 'shardflow[{runner}]', or choose runner "
            "local"
        )


class Crew:
    """The workers of a job, which all of its steps share; hired when they are first needed. A context manager.

    `dask_address` is the scheduler of a Dask cluster; without one it is a cluster on this machine. Ray goes by its own
    RAY_ADDRESS.
    """

    def __init__(self, runner: str = "local", dask_address: str = "") -> None:
        check(runner, dask_address)
        self._runner, self._dask_address = runner, dask_address
        self._stack = contextlib.ExitStack()
        self._workers: Workers | None = None

    def get(self, n_jobs: int, items: int) -> Workers:
        """Workers for so many items, at most `n_jobs` (0: all there are)."""
        local = self._runner == "local"
        if self._workers is None or (local and self._workers.n_jobs < processes(n_jobs, items)):
            self._stack.close()
            self._workers = self._stack.enter_context(self._hired(n_jobs, items))
        return self._workers

    def _hired(self, n_jobs: int, items: int) -> Workers:
        if self._runner == "dask":
            from tasks.on_dask import DaskWorkers

            return DaskWorkers(n_jobs, self._dask_address)
        if self._runner == "ray":
            from tasks.on_ray import RayWorkers

            return RayWorkers(n_jobs)
        return Pool(processes(n_jobs, items))

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
