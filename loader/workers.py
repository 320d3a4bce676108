"""Whoever works on items: what a pool of processes has in common with a cluster.

A few items are handed out at a time, so that a long list costs neither memory nor time beforehand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, TypeVar

Self = TypeVar("Self", bound="Workers")
Item = TypeVar("Item")
Result = TypeVar("Result")


def portable(error: Exception) -> Exception:
    """The error, or what can be said of it: not every one survives the way to another process."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # noqa: BLE001 - a user's own may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class Workers(ABC):
    """`n_jobs` workers. Use them from one thread, as a context manager; leaving it by an exception ends them at once."""

    def __init__(self, n_jobs: int, waiting: int = 0) -> None:
        self._waiting = waiting  # items out beside those in work
        self.n_jobs = n_jobs
        self._begun: dict[int, tuple[Any, Future[Any]]] = {}  # by id, of items whose turn is in the next call

    @abstractmethod
    def submit(
        self, function: Callable[..., Result], item: Any, arguments: tuple[Any, ...]
    ) -> Future[Result]:
        """Hand out one call of ``function(item, *arguments)``."""

    @abstractmethod
    def run_all(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        *arguments: Any,
        then: Sequence[Item] = (),
    ) -> Iterator[tuple[Item, Result | Exception]]:
        """``function(item, *arguments)`` for each item; pairs come as they are completed.

        An exception of the function is a result, not raised; so is the death of a worker, if the item may be its
        cause. An item may be worked on twice. `then`: the items with which the next call will begin. Workers that
        have nothing else to do begin them now, so that nobody waits for the last of these.
        """

    @abstractmethod
    def terminate(self) -> object:
        """Give up what is under way; a later call starts anew."""

    def close(self) -> None:
        """Let go of the workers. What is under way has come to its end by then."""
        self.terminate()

    def completed(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        arguments: tuple[Any, ...],
        then: Sequence[Item] = (),
    ) -> Iterator[tuple[Item, Future[Result]]]:
        """Each item with its future, as they are completed. Close it, or go to its end."""
        left, following = deque(items), deque(then)
        out: dict[Future[Result], Item] = {}

        def hand_out() -> None:
            while left and (len(out) < self.n_jobs + self._waiting or id(left[0]) in self._begun):
                item = left.popleft()
                _, future = self._begun.pop(id(item), (None, None))
                out[future or self.submit(function, item, arguments)] = item
            while following and not left and len(out) + len(self._begun) < self.n_jobs:
                item = following.popleft()
                if id(item) not in self._begun:
                    self._begun[id(item)] = (item, self.submit(function, item, arguments))

        hand_out()
        while out:
            done, _ = wait(out, return_when=FIRST_COMPLETED)
            # A failed one may be the end of all: the others first.
            for future in sorted(
                done, key=lambda future: future.cancelled() or future.exception() is not None
            ):
                item = out.pop(future)  # a result is held no longer than its consumer wants it
                yield item, future
                del future
                hand_out()

    def forget(self) -> list[Future[Any]]:
        """What was begun for a later call, which won't come."""
        begun = [future for _, future in self._begun.values()]
        self._begun.clear()
        return begun

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.terminate()
        else:
            self.close()
