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
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any, TypeVar

from loader.errors import ShardflowError
from loader.workers import Workers, portable

Item = TypeVar("Item")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GRACE = 3.0  # seconds for children to end by themselves
_HOPELESS = 3  # times that all children died, and nothing was done
_WORKER = "shardflow worker"  # what a child is called, from its first moment on
_UNGUARDED = 79  # exit status of a child that found itself at the work of its parent


class CannotStart(ShardflowError, RuntimeError):
    """The children end before they come to any work: another try would end the same way."""


class _Process(SpawnProcess):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{**keywords, "name": _WORKER})


class _Context(SpawnContext):
    Process = _Process


def leave_if_imported() -> None:
    """End this process, quietly, if it is a pool's child that imports its parent's script, and was led to the parent's work.

    Called where work begins that uses a `Pool`. The parent says what is wrong with the script.
    """
    process = multiprocessing.current_process()
    # What multiprocessing goes by as well when it refuses to start a process in such a place.
    if getattr(process, "_inheriting", False) and process.name == _WORKER:
        sys.exit(_UNGUARDED)


def processes(n_jobs: int, items: int) -> int:
    """How many processes serve: at most `n_jobs` (0 = no limit), never more than items or cores."""
    if n_jobs < 0:
        raise ValueError(f"n_jobs is {n_jobs}: a positive number was expected, or 0 for all cores")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(n_jobs or cores, items, cores))


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block ends; what starts inside it never gets any."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unwind(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _call(function: Callable[..., Result], item: Any, arguments: tuple[Any, ...]) -> Result:
    try:
        return function(item, *arguments)
    except SystemExit:  # of `_unwind`, most likely: what was half-written is removed by now
        os._exit(128 + signal.SIGTERM)
    except Exception as error:
        found = portable(error)  # one that can't travel would break the pool for all
        if found is error:
            raise
        raise found from None


def _start_child(parent: int, begun: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _unwind)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    begun.set()


class Pool(Workers):
    """`n_jobs` child processes, started on first use; with one job the work is done in this process.

    Use it from one thread, as a context manager: the kernel ties a child's life to the thread that
    started it.
    """

    def __init__(self, n_jobs: int) -> None:
        leave_if_imported()
        super().__init__(
            n_jobs, waiting=n_jobs + 1
        )  # one beside each child, and one more: nobody waits for us
        self._executor: ProcessPoolExecutor | None = None
        self._started: Event | None = None  # set by each child that comes as far as to wait for work

    def run(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        *arguments: Any,
        then: Sequence[Item] = (),
    ) -> Iterator[tuple[Item, Result | Exception]]:
        """As `run_all`, but BrokenProcessPool is raised if a child was killed.

        What had not been yielded by then may or may not have been done. CannotStart says what is wrong if children
        can't even begin.
        """
        if self.n_jobs <= 1:
            for item in items:
                try:
                    outcome: Result | Exception = function(item, *arguments)
                except Exception as error:  # noqa: BLE001 - handed to the caller, as a pool would
                    outcome = error
                yield item, outcome
            return
        try:
            for item, future in self.completed(function, items, arguments, then):
                failure = future.exception()
                if failure is None:
                    yield item, future.result()
                elif isinstance(failure, Exception) and not isinstance(failure, BrokenProcessPool):
                    yield item, failure
                else:
                    raise failure
        except BrokenProcessPool:
            self._refuse_to_go_on(self.terminate())
            raise
        except BaseException:
            self.terminate()
            raise

    def submit(
        self, function: Callable[..., Result], item: Any, arguments: tuple[Any, ...]
    ) -> Future[Result]:
        """Hand out one call; starts children as they are needed."""
        if self._executor is None:
            context = _Context()
            self._started = context.Event()
            self._executor = ProcessPoolExecutor(
                self.n_jobs,
                mp_context=context,
                initializer=_start_child,
                initargs=(os.getpid(), self._started),
            )
        with _interrupts_held():  # a child that is started now never gets any
            return self._executor.submit(_call, function, item, arguments)

    def _refuse_to_go_on(self, statuses: Sequence[int | None]) -> None:
        """CannotStart if that is what the exit statuses of the children mean."""
        if self._started is None or self._started.is_set():
            return
        if _UNGUARDED in statuses:
            raise CannotStart(
                'the script that was started has to begin its work under `if __name__ == "__main__":`, since each '
                "worker process imports it again. Put that line above the calls, and the calls below it, indented"
            ) from None
        if 1 in statuses:
            raise CannotStart(
                "the worker processes end with an error as they start: it is shown above. Each of them imports the "
                'script that was started, which has to begin its work under `if __name__ == "__main__":`'
            ) from None

    def run_all(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        *arguments: Any,
        then: Sequence[Item] = (),
    ) -> Iterator[tuple[Item, Result | Exception]]:
        """Outcomes as they come (`Workers.run_all`); a killed child costs no more than the item that it worked on.

        What was under way when a child was killed (for memory, most often) is done again by fresh children, one
        at a time at the end; an item that ends its process twice has BrokenProcessPool as its result. Call this
        for steps that may be done twice. BrokenProcessPool is raised if the children die again and again, and nothing
        gets done.
        """
        left, rounds, done = dict(enumerate(items)), 0, False
        alone: list[Item] = []
        numbers: dict[int, list[int]] = {}  # by id: equal items, and one item twice, are as good as others
        for number, item in left.items():
            numbers.setdefault(id(item), []).append(number)
        while left:
            try:
                for item, outcome in self.run(function, list(left.values()), *arguments, then=then):
                    del left[numbers[id(item)].pop()]
                    done = True
                    yield item, outcome
            except BrokenProcessPool as error:  # noqa: PERF203 - a round is no small step
                rounds += 1
                if rounds == _HOPELESS and not done:
                    raise BrokenProcessPool(
                        "the processes are killed before anything is done: out of memory?"
                    ) from error
                # Items are handed out in order: one in work and one waiting for each child, and one more.
                alone += [left.pop(number) for number in list(left)[: 2 * self.n_jobs + 1]]
        for item in alone:
            outcome = BrokenProcessPool("the process that worked on it was killed, twice: out of memory?")
            for _ in range(2):
                with contextlib.suppress(BrokenProcessPool):
                    ((_, outcome),) = self.run(function, [item], *arguments)
                    break
            yield item, outcome

    def terminate(self) -> list[int | None]:
        """End the children now; a later `run` starts new ones. Their exit statuses, as multiprocessing counts them.

        They get a moment to remove what they have half-written.
        """
        executor, self._executor = self._executor, None
        self.forget()
        if executor is None:
            return []
        children = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _GRACE
        for child in children:
            with contextlib.suppress(ProcessLookupError, ValueError):
                child.terminate()
        for child in children:
            with contextlib.suppress(ProcessLookupError, ValueError):
                child.join(max(0.0, deadline - time.monotonic()))
                child.kill()
                child.join()
        return [child.exitcode for child in children]

    def close(self) -> None:
        """End the children, after what they are at."""
        self.forget()
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
