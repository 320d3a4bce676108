"""A group of items that one task run works on, and which errors are worth a second try. No Prefect in here."""

from __future__ import annotations

import asyncio
import errno
import http.client
import random
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from loader.errors import ShardflowError, StoreError
from loader.progress import human_size
from loader.workers import Workers

Item = TypeVar("Item")
Result = TypeVar("Result")

RETRIES = 3
BACKOFF = 2.0  # seconds before the first retry; twice as many before each further one
JITTER = 0.5  # ± this share of them

_WILL_NOT_PASS = (PermissionError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_FINAL_ERRNOS = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EFBIG,
    errno.ENOSYS, errno.EMSGSIZE,
}  # fmt: skip
_NETWORK = (TimeoutError, asyncio.TimeoutError, EOFError, http.client.HTTPException, BrokenProcessPool)
# Bases of what network libraries raise beside OSError, by name: none of them is imported for this.
_NETWORK_NAMES = {
    "aiohttp.client_exceptions.ClientError",
    "botocore.exceptions.HTTPClientError",
    "botocore.exceptions.ResponseStreamingError",
    "botocore.exceptions.IncompleteReadError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
    "urllib3.exceptions.HTTPError",
}


def may_pass(error: BaseException) -> bool:
    """Whether another try could succeed: lost connections, throttling, a killed worker; no bad input, no full disk."""
    if isinstance(error, StoreError):  # tried often already: a store may be down for minutes
        return True
    if isinstance(error, (ShardflowError, *_WILL_NOT_PASS)):
        return False
    if isinstance(error, _NETWORK):
        return True
    if isinstance(error, OSError):
        return error.errno not in _FINAL_ERRNOS
    return any(f"{kind.__module__}.{kind.__qualname__}" in _NETWORK_NAMES for kind in type(error).__mro__)


def delay(retry: int) -> float:
    """Seconds to wait before retry 0, 1, 2, …: twice as long each time, and never the same for two who wait."""
    return BACKOFF * float(2**retry) * random.uniform(1 - JITTER, 1 + JITTER)


@dataclass(frozen=True)
class Work(Generic[Item, Result]):
    """What is to be done to each of many items, and how to speak of it.

    `function` is called as ``function(item, *arguments)`` in a worker process, and may be called twice for an
    item. An error of the kinds in `fatal` ends all of the work; any other is its item's alone.
    """

    kind: str  # "pack": names the task
    unit: str  # "slots"
    items: Sequence[Item]
    function: Callable[..., Result]
    arguments: tuple[Any, ...]
    label: Callable[[Item], str]
    size: Callable[[Result], int]  # bytes that went through
    kept: Callable[[Result], bool]  # it was done before
    explain: Callable[[Exception, Item], str]  # what went wrong, without the item's name and without secrets
    fatal: tuple[type[Exception], ...] = ()


Results = tuple[list[Any], list[tuple[Any, Exception]]]


class Run(Protocol):
    """Get the work done by at most `n_jobs` workers (0: all there are): results, and failures as (item, error).

    `check` is called now and then with the results so far, and may raise to end it.
    """

    def __call__(
        self, work: Work[Any, Any], n_jobs: int, check: Callable[[list[Any]], None] | None = None
    ) -> Results: ...


class Group(Generic[Item, Result]):
    """Consecutive items of some work, from the one numbered `begin`; what is done stays done in a second attempt.

    No dataclass: Prefect would take it apart, and copy it, on its way into a task.
    """

    def __init__(self, work: Work[Item, Result], begin: int, items: Sequence[Item]) -> None:
        self.work = work
        self.items = items
        self.results: list[Result] = []
        self.failures: list[tuple[Item, Exception]] = []
        last = begin + len(items)
        numbers = f"{begin + 1:,}" if len(items) == 1 else f"{begin + 1:,} to {last:,}"
        self.name = f"{work.kind} {work.unit} {numbers} of {len(work.items):,}"
        self._left = list(items)

    def attempt(
        self,
        workers: Workers,
        on_done: Callable[[Result | None], None] = lambda result: None,
        then: Sequence[Item] = (),
    ) -> None:
        """Do what is not done yet and may succeed; `on_done` is told of each item, with None for a failed one.

        Workers that have nothing left to do begin the items in `then`, which are those of the next group. Raises
        the first error that is fatal, and whatever `on_done` raises.
        """
        left = {id(item): item for item in self._left}
        self.failures = [(item, error) for item, error in self.failures if id(item) not in left]
        outcomes = workers.run_all(self.work.function, self._left, *self.work.arguments, then=then)
        try:
            for item, outcome in outcomes:
                if isinstance(outcome, self.work.fatal):
                    raise outcome
                del left[id(item)]
                if isinstance(outcome, Exception):
                    self.failures.append((item, outcome))
                else:
                    self.results.append(outcome)
                on_done(None if isinstance(outcome, Exception) else outcome)
        finally:
            # Whatever ends the loop ends the workers, now and not when a traceback lets go of them.
            cast("Generator[object, None, None]", outcomes).close()
            again = {id(item) for item, error in self.failures if may_pass(error)} | left.keys()
            self._left = [item for item in self.items if id(item) in again]

    @property
    def worth_retrying(self) -> bool:
        """Whether something is left that another attempt could do."""
        return bool(self._left)

    def line(self, seconds: float) -> str:
        """What a log says of it: ``8 done, 410 MiB, 34.2 MiB/s``."""
        work = self.work
        kept = sum(map(work.kept, self.results))
        size = sum(work.size(result) for result in self.results if not work.kept(result))
        counts = {"done": len(self.results) - kept, "were done before": kept, "failed": len(self.failures)}
        parts = [f"{count:,} {what}" for what, count in counts.items() if count]
        if size:
            parts += [human_size(size), f"{human_size(size / max(seconds, 1e-3))}/s"]
        return ", ".join(parts)

    def complaint(self) -> str:
        """The first failure, and how many there are."""
        item, error = self.failures[0]
        first = f"{self.work.label(item)}: {self.work.explain(error, item)}"
        return f"{len(self.failures)} of {len(self.items)} {self.work.unit} failed; {first}"

    def __repr__(self) -> str:
        return f"<{self.name}>"

    __str__ = __repr__


def run_in_one(
    work: Work[Item, Result],
    workers: Workers,
    on_done: Callable[[Result | None], None] = lambda result: None,
    wait: Callable[[float], None] = time.sleep,
) -> Group[Item, Result]:
    """All of the work as one group with its retries, in this process and its pool."""
    group = Group(work, 0, work.items)
    group.attempt(workers, on_done)
    for retry in range(RETRIES):
        if not group.worth_retrying:
            break
        wait(delay(retry))
        group.attempt(workers)
    return group
