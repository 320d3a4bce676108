"""A process pool that a long unattended job can live with.

Children are spawned (safe with threads and fsspec clients), ignore Ctrl-C (the parent decides), and die with
their parent, whatever kills it. A killed child raises `BrokenProcessPool`; the next `run` starts fresh ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def processes(n_jobs: int, items: int) -> int:
    """How many processes serve: at most `n_jobs` (0 = no limit), never more than items or cores."""
    if n_jobs < 0:
        raise ValueError(f"n_jobs is {n_jobs}: a positive number was expected, or 0 for all cores")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(n_jobs or cores, items, cores))


def _start_child(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


class Pool:
    """`n_jobs` child processes, started on first use; with one job the work is done in this process.

    Use it from one thread, as a context manager: the kernel ties a child's life to the thread that
    started it.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs
        self._executor: ProcessPoolExecutor | None = None

    def run(
        self, function: Callable[..., Result], items: Sequence[Item], *arguments: Any
    ) -> Iterator[tuple[Item, Result | Exception]]:
        """``function(item, *arguments)`` for each item; pairs come as they are completed.

        An exception of the function is a result, not raised. BrokenProcessPool is raised if a child was
        killed: what had not been yielded by then may or may not have been done.
        """
        if self.n_jobs <= 1:
            for item in items:
                try:
                    outcome: Result | Exception = function(item, *arguments)
                except Exception as error:  # noqa: BLE001 - handed to the caller, as a pool would
                    outcome = error
                yield item, outcome
            return
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.n_jobs,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_child,
                initargs=(os.getpid(),),
            )
        futures: dict[Future[Result], Item] = {
            self._executor.submit(function, item, *arguments): item for item in items
        }
        try:
            for future in as_completed(futures):
                # pop: a result is held no longer than its consumer wants it
                item = futures.pop(future)
                failure = future.exception()
                if failure is None:
                    yield item, future.result()
                elif isinstance(failure, Exception) and not isinstance(failure, BrokenProcessPool):
                    yield item, failure
                else:
                    raise failure
        except BaseException:
            self.terminate()
            raise

    def terminate(self) -> None:
        """Kill the children now; a later `run` starts new ones."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        children = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for child in children:
            with contextlib.suppress(ProcessLookupError, ValueError):
                child.kill()
        for child in children:
            with contextlib.suppress(ValueError):
                child.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.terminate()
        elif self._executor is not None:
            self._executor.shutdown()
            self._executor = None
